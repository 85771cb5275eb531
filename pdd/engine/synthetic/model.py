"""A model folder in Hugging Face's layout, without weights: tokenizer, chat template, sizes.

Written by ``pdd up --engine synthetic``; nothing is downloaded. Any text round-trips, because the
vocabulary holds all 256 bytes beside the words (byte-level alphabet).
"""

import json
import os
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from pdd.core.errors import ConfigError
from pdd.engine.synthetic.choice import Vocabulary, vocabulary
from pdd.engine.synthetic.words import punctuation, spellings
from pdd.model.folder import check_model_folder

MODEL_NAME = "synthetic"
MAX_MODEL_LEN = 131_072
END_OF_TEXT, TURN_BEGIN, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
_SPECIAL = (END_OF_TEXT, TURN_BEGIN, TURN_END)
_SPACE = "\u0120"  # a space in the byte-level alphabet
_CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def make_tokenizer() -> Tokenizer:
    """Words of several letters win over bytes; what is no word is cut into bytes."""
    pieces: dict[str, float] = {}
    for token in sorted(pre_tokenizers.ByteLevel.alphabet()):
        pieces[token] = -20.0
    for text in (*spellings(), *punctuation()):
        pieces.setdefault(text.replace(" ", _SPACE), -10.0)
    tokenizer = Tokenizer(models.Unigram(list(pieces.items()), unk_id=None, byte_fallback=False))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in _SPECIAL])
    return tokenizer


def write_model(folder: Path) -> None:
    """Make or complete ``folder``; files that are right already are left alone.

    Raises:
        ConfigError: it cannot be written.
    """
    tokenizer = make_tokenizer()
    end_id = tokenizer.token_to_id(TURN_END)
    files = {
        "tokenizer.json": tokenizer.to_str(),
        "tokenizer_config.json": _json(
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "model_max_length": MAX_MODEL_LEN,
                "eos_token": TURN_END,
                "bos_token": END_OF_TEXT,
                "pad_token": END_OF_TEXT,
                "clean_up_tokenization_spaces": False,
                "chat_template": _CHAT_TEMPLATE,
            }
        ),
        "config.json": _json(
            {
                "model_type": "pdd-synthetic",
                "vocab_size": tokenizer.get_vocab_size(),
                "max_position_embeddings": MAX_MODEL_LEN,
                "eos_token_id": end_id,
            }
        ),
        "generation_config.json": _json({"eos_token_id": [end_id]}),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            _write(folder / name, text)
    except OSError as error:
        raise ConfigError(
            f"cannot write the synthetic model to {folder}: {error.strerror}; "
            "use another --state-dir"
        ) from error


def resolve_synthetic_model(spec: str | None, *, state_dir: Path) -> tuple[Path, str]:
    """Folder and name for ``pdd up --engine synthetic``: made in ``state_dir`` unless a folder
    with another tokenizer is named.

    Raises:
        ConfigError: ``spec`` names no folder with a tokenizer, or nothing can be written.
    """
    if spec is None or spec == MODEL_NAME:
        folder = state_dir / "synthetic-model"
        write_model(folder)
        return folder, MODEL_NAME
    folder = Path(spec).expanduser().absolute()
    check_model_folder(folder, need_weights=False)
    return folder, folder.resolve().name


def words_of(tokenizer: Tokenizer, *, eos_token_ids: tuple[int, ...], size: int) -> Vocabulary:
    """What the engine says with this tokenizer: whole lower-case words after a space, and
    punctuation. With a tokenizer that has none, any token that is not special.

    Raises:
        ConfigError: it has too few tokens.
    """
    tokens = tokenizer.get_vocab(with_added_tokens=False)
    marks = set(punctuation())
    said = []
    for token, token_id in sorted(tokens.items(), key=lambda item: item[1]):
        letters = token[1:]
        is_word = token[0] in (_SPACE, "\u2581") and letters.isalpha() and letters.islower()
        if (
            token_id < size
            and token_id not in eos_token_ids
            and (token in marks or (is_word and letters.isascii() and len(letters) > 1))
        ):
            said.append(token_id)
    if len(said) < 100:
        special = {*eos_token_ids, *(i for i, t in tokenizer.get_added_tokens_decoder().items())}
        said = [i for i in sorted(tokens.values()) if i < size and i not in special]
    try:
        return vocabulary(said, eos_token_ids=eos_token_ids, size=size)
    except ValueError as error:
        raise ConfigError(f"engine.model: the synthetic engine has {error}") from error


def _json(content: dict[str, object]) -> str:
    return json.dumps(content, indent=2) + "\n"


def _write(path: Path, text: str) -> None:
    """Whole or not at all: daemons of a running cluster may read it."""
    if path.is_file() and path.read_text(encoding="utf-8") == text:
        return
    new = path.with_suffix(".new")
    try:
        new.write_text(text, encoding="utf-8")
        os.replace(new, path)
    finally:
        new.unlink(missing_ok=True)  # a full disk must not stay full of half a file

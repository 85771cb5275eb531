"""Texts encoded in pieces: the same ids as in one go, whatever is in them."""

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from pdd.engine.synthetic.model import make_tokenizer
from pdd.gateway.piece_encoder import PieceEncoder

_LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN = _LLAMA_3.replace(r"\p{N}{1,3}", r"\p{N}")
_SAID = [
    "the cat's on the mat and 12345 dogs aren't, I'LL say\r\n\r\n  so",
    "<|start|>user\nWhat is a caf\u00e9?  Nothing new.<|end|>\n<|start|>assistant\n",
]


def _trained(
    splitter: pre_tokenizers.PreTokenizer, normalizer: normalizers.Normalizer | None = None
) -> Tokenizer:
    """A byte-level BPE that begins every text with <|start|>."""
    tokenizer = Tokenizer(models.BPE())
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = splitter
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=360,
        special_tokens=["<|start|>", "<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_SAID, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|start|> $A", special_tokens=[("<|start|>", 0)]
    )
    return tokenizer


def _split(pattern: str) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def _smol() -> Tokenizer:
    """As SmolLM 2 has it."""
    words = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return _trained(pre_tokenizers.Sequence([pre_tokenizers.Digits(True), words]))


_KINDS: dict[str, Callable[[], Tokenizer]] = {
    "synthetic": make_tokenizer,
    "GPT-2": lambda: _trained(pre_tokenizers.ByteLevel(add_prefix_space=False)),
    "SmolLM 2": _smol,
    "Llama 3": lambda: _trained(_split(_LLAMA_3)),
    "Qwen": lambda: _trained(_split(_QWEN), normalizers.NFC()),
}
_TOKENIZERS = {name: make() for name, make in _KINDS.items()}

_TEXTS = st.lists(
    st.one_of(
        st.sampled_from(
            [
                *(" ", "  ", "\n", "\r\n", "\t", "\u00a0", "\u3000"),
                *("a", " a", "cat", " Dog", "'s", "'LL", " don't", "the cat", "7", " 1234"),
                *("<|start|>", "<|end|>", "<|im_end|>", "e\u0301", " \u0301", "\u1100\u1161"),
                *("\u732b", " \u732b", "\U0001f408", "...", " (b)", "x y z"),
            ]
        ),
        st.text(max_size=3),
    ),
    max_size=40,
).map("".join)


@pytest.mark.parametrize("kind", _KINDS)
@given(text=_TEXTS, piece_chars=st.integers(1, 20), add_special_tokens=st.booleans())
def test_the_ids_are_those_of_the_whole_text(
    kind: str, text: str, piece_chars: int, add_special_tokens: bool
) -> None:
    tokenizer = _TOKENIZERS[kind]
    encoder = PieceEncoder(tokenizer, piece_chars=piece_chars, kept_pieces_max=3)
    assert encoder.cuts
    for _ in range(2):  # the second time some of its pieces are known
        ids = encoder.encode(text, add_special_tokens=add_special_tokens)
        assert ids == tokenizer.encode(text, add_special_tokens=add_special_tokens).ids


class _Counting:
    """A tokenizer that notes what it is given."""

    def __init__(self) -> None:
        self._tokenizer = make_tokenizer()
        self.given: list[str] = []

    def __getattr__(self, name: str) -> object:
        return getattr(self._tokenizer, name)

    def encode_batch_fast(self, texts: list[str], *, add_special_tokens: bool) -> object:
        self.given.extend(texts)
        return self._tokenizer.encode_batch_fast(texts, add_special_tokens=add_special_tokens)


def _counted(**bounds: int) -> tuple[_Counting, PieceEncoder]:
    tokenizer = _Counting()
    return tokenizer, PieceEncoder(tokenizer, **bounds)  # type: ignore[arg-type]


def _words(seed: int, count: int) -> str:
    rng = random.Random(seed)
    return " ".join(rng.choice(("apple", "river", "of", "stone", "seven")) for _ in range(count))


def test_what_texts_begin_with_is_encoded_once() -> None:
    tokenizer, encoder = _counted()
    prompt = _words(1, 1000)
    encoder.encode(f"{prompt} {_words(2, 100)}", add_special_tokens=True)
    tokenizer.given.clear()
    encoder.encode(f"{prompt} {_words(3, 100)}", add_special_tokens=True)
    assert sum(map(len, tokenizer.given)) < 2 * 512 + len(_words(3, 100))


def test_a_piece_that_comes_twice_in_a_text_is_encoded_once() -> None:
    tokenizer, encoder = _counted(piece_chars=6)
    encoder.encode("apples apples apples apples", add_special_tokens=False)
    assert tokenizer.given == ["apples", " apples", " apples"]


def test_at_its_bound_the_piece_used_longest_ago_is_forgotten() -> None:
    tokenizer, encoder = _counted(piece_chars=4, kept_pieces_max=2)
    encoder.encode("first then", add_special_tokens=False)
    encoder.encode("again then", add_special_tokens=False)
    encoder.encode("first then", add_special_tokens=False)
    encoder.encode("third then", add_special_tokens=False)
    tokenizer.given.clear()
    encoder.encode("first then", add_special_tokens=False)
    assert tokenizer.given == [" then"]
    tokenizer.given.clear()
    encoder.encode("again then", add_special_tokens=False)
    assert tokenizer.given == ["again", " then"]


def test_at_its_bound_of_bytes_too_and_a_piece_without_end_is_not_kept() -> None:
    tokenizer, encoder = _counted(piece_chars=1000, kept_bytes_max=20_000)
    texts = [f"{'x' * 1000}{letter} end" for letter in "abcdefgh"]
    for text in (*texts, f"{chr(0x4E00) * 20_000}x end"):
        encoder.encode(text, add_special_tokens=False)
    tokenizer.given.clear()
    for text in reversed(texts):
        encoder.encode(text, add_special_tokens=False)
    assert " end" in tokenizer.given
    kept_count = len(texts) - sum(given != " end" for given in tokenizer.given)
    assert 2 <= kept_count <= 4  # 1,000 characters are as many ids here
    tokenizer.given.clear()
    encoder.encode(f"{chr(0x4E00) * 20_000}x end", add_special_tokens=False)
    assert [len(given) for given in tokenizer.given] == [20_001, 4]


def _with_added(token: AddedToken) -> Tokenizer:
    tokenizer = make_tokenizer()
    tokenizer.add_tokens([token])
    return tokenizer


_UNCUT: dict[str, Callable[[], Tokenizer]] = {
    "a space before every text": lambda: _trained(pre_tokenizers.ByteLevel(add_prefix_space=True)),
    "no split at words": lambda: _trained(
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    ),
    "a pattern that is not known": lambda: _trained(_split(r"\w+ \w+")),
    "words without their spaces": lambda: _trained(
        pre_tokenizers.Split(Regex(_LLAMA_3), "removed")
    ),
    "a normaliser that adds to a text": lambda: _trained(
        pre_tokenizers.ByteLevel(add_prefix_space=False), normalizers.Prepend("_")
    ),
    "an added token of two words": lambda: _with_added(AddedToken("of stone")),
    "an added token that takes a space": lambda: _with_added(AddedToken("<x>", lstrip=True)),
}


@pytest.mark.parametrize("kind", _UNCUT)
def test_a_tokenizer_that_looks_across_words_is_used_in_one_go(kind: str) -> None:
    tokenizer = _UNCUT[kind]()
    encoder = PieceEncoder(tokenizer, piece_chars=4)
    assert not encoder.cuts
    text = "the river of stone <x> and of apples"
    ids = encoder.encode(text, add_special_tokens=True)
    assert ids == tokenizer.encode(text, add_special_tokens=True).ids

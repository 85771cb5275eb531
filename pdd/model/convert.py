"""GGUF -> bf16 safetensors + tokeniser. Needs torch, transformers, gguf and accelerate.

transformers (5.19) dequantises the weights and undoes llama.cpp's rotary permutation. Its
tokeniser from GGUF is not quite right for this model, so two things are put right here:

- ``tokenizer.ggml.pre = smollm`` means: cut every digit apart, then GPT-2's byte-level rule.
  transformers applies the second only, and then e.g. two spaces before a number become two
  tokens instead of the one that the model was trained on.
- the context length is written as ``model_max_length``.
"""

import errno
import importlib
import importlib.metadata
import io
import json
import os
import sys
from collections.abc import Callable
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from pdd.core.errors import ConfigError

LIBRARIES = ("torch", "transformers", "gguf", "accelerate")
_PRE_TOKENIZER = "smollm"


def library_versions() -> dict[str, str]:
    """Versions of the libraries that write the files.

    Raises:
        ConfigError: some are not installed (the base install has no torch).
    """
    versions, missing = {}, []
    for name in LIBRARIES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            missing.append(name)
    if missing:
        raise ConfigError(
            f"converting the default model needs {', '.join(missing)}, which the base install "
            "leaves out; run `PDD_EXTRA=cpu bin/pdd setup` (or cuda), or give --model a folder"
        )
    return versions


def convert(gguf_path: Path, folder: Path, *, name: str) -> None:
    """Write the model in ``gguf_path`` into the existing empty ``folder``.

    Shows a bar of finished steps on stderr. ``name`` is for the reader of that bar.

    Raises:
        ConfigError: a library is missing, or the file is not the kind this recipe is for.
    """
    library_versions()
    work = _Conversion(gguf_path, folder)
    steps: list[tuple[str, Callable[[], None]]] = [
        ("loading libraries", work.load_libraries),
        ("dequantising weights", work.load_model),
        ("writing weights", work.write_model),
        ("writing tokeniser", work.write_tokenizer),
    ]
    columns = (
        TextColumn(f"{name}: {{task.description}}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("steps"),
        TimeElapsedColumn(),
    )
    console = Console(file=sys.stderr)
    if not console.is_terminal:  # nothing is drawn there until the end
        console.print(f"{name}: converting to bf16, about 20 s on an idle machine")
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(steps[0][0], total=len(steps))
        for description, run in steps:
            progress.update(task, description=description)
            run()
            progress.advance(task)
        progress.update(task, description="converted")


class _Conversion:
    """The steps, in order; each leaves what the next one needs."""

    def __init__(self, gguf_path: Path, folder: Path) -> None:
        self._gguf_path = gguf_path
        self._folder = folder
        self._transformers: Any = None
        self._model: Any = None

    def load_libraries(self) -> None:
        self._transformers = importlib.import_module("transformers")
        self._transformers.utils.logging.disable_progress_bar()
        self._transformers.utils.logging.set_verbosity_error()

    def load_model(self) -> None:
        torch = importlib.import_module("torch")
        # The GGUF reader draws a bar of its own that no switch turns off and that would tear
        # ours; what goes wrong comes as an exception, so nothing but that bar is lost.
        with redirect_stderr(io.StringIO()):
            self._model = self._transformers.AutoModelForCausalLM.from_pretrained(
                self._gguf_path.parent,
                gguf_file=self._gguf_path.name,
                quantization_config=self._transformers.GgufConfig(dequantize=True),
                dtype=torch.bfloat16,
            )

    def write_model(self) -> None:
        config = self._model.config
        if not config.tie_word_embeddings:
            raise ConfigError(f"{self._gguf_path}: expected tied embeddings; the file has changed")
        self._model.generation_config = self._transformers.GenerationConfig(
            bos_token_id=config.bos_token_id,
            eos_token_id=config.eos_token_id,
            pad_token_id=config.pad_token_id,
        )
        errors = importlib.import_module("safetensors")
        try:
            self._model.save_pretrained(self._folder)
        except errors.SafetensorError as error:
            # Its writer has one error type for everything; a full disk is told by its number.
            if f"os error {errno.ENOSPC}" in str(error):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from error
            raise

    def write_tokenizer(self) -> None:
        gguf = importlib.import_module("gguf")
        rules = importlib.import_module("tokenizers.pre_tokenizers")
        field = gguf.GGUFReader(self._gguf_path).fields["tokenizer.ggml.pre"]
        if field.contents() != _PRE_TOKENIZER:
            raise ConfigError(
                f"{self._gguf_path}: tokenizer.ggml.pre is {field.contents()!r}, this recipe "
                f"is for {_PRE_TOKENIZER!r}"
            )
        tokenizer = self._transformers.AutoTokenizer.from_pretrained(
            self._gguf_path.parent, gguf_file=self._gguf_path.name
        )
        if not tokenizer.chat_template:
            raise ConfigError(f"{self._gguf_path}: no chat template in the file's metadata")
        tokenizer.backend_tokenizer.pre_tokenizer = rules.Sequence(
            [
                rules.Digits(individual_digits=True),
                rules.ByteLevel(add_prefix_space=False, use_regex=True),
            ]
        )
        tokenizer.model_max_length = self._model.config.max_position_embeddings
        tokenizer.save_pretrained(self._folder)
        _drop_keys(self._folder / "tokenizer_config.json", ("is_local", "local_files_only"))


def _drop_keys(path: Path, keys: tuple[str, ...]) -> None:
    """Remove keys that tell about this host rather than about the model."""
    content = json.loads(path.read_text(encoding="utf-8"))
    kept = {key: value for key, value in content.items() if key not in keys}
    path.write_text(json.dumps(kept, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")

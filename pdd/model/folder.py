"""What a model folder must hold before a daemon is given it. Reads local files only."""

import json
from pathlib import Path

from pdd.core.errors import ConfigError

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "tekken.json")
_WEIGHT_PATTERNS = ("*.safetensors", "*.bin", "*.pt")
_INDEX_NAME = "model.safetensors.index.json"


def check_model_folder(folder: Path, *, need_weights: bool = True) -> None:
    """Check that ``folder`` looks like a whole Hugging Face model.

    Args:
        need_weights: False for callers that only tokenise, as the synthetic engine does.
    Raises:
        ConfigError: names everything that is missing, at once.
    """
    if not folder.is_dir():
        what = "is not a folder" if folder.exists() else "does not exist"
        raise ConfigError(f"model folder {folder} {what}; give --model a Hugging Face model folder")
    missing = []
    if not (folder / "config.json").is_file():
        missing.append("config.json")
    if not _has_tokenizer(folder):
        missing.append(f"a tokenizer ({', '.join(_TOKENIZER_FILES)}, or vocab.json + merges.txt)")
    if need_weights:
        missing += _missing_weights(folder)
    if missing:
        raise ConfigError(f"model folder {folder} lacks {'; '.join(missing)}")
    _check_config(folder / "config.json")


def _has_tokenizer(folder: Path) -> bool:
    if any((folder / name).is_file() for name in _TOKENIZER_FILES):
        return True
    return (folder / "vocab.json").is_file() and (folder / "merges.txt").is_file()


def _missing_weights(folder: Path) -> list[str]:
    index = folder / _INDEX_NAME
    if index.is_file():
        content = _read_object(index)
        shards = content.get("weight_map")
        if not isinstance(shards, dict) or not shards:
            raise ConfigError(f"{index} has no weight_map; download the model again")
        return [name for name in sorted(set(shards.values())) if not (folder / name).is_file()]
    if any(next(folder.glob(pattern), None) for pattern in _WEIGHT_PATTERNS):
        return []
    return [f"weights ({', '.join(_WEIGHT_PATTERNS)})"]


def _check_config(path: Path) -> None:
    if "model_type" not in _read_object(path):
        raise ConfigError(f"{path} has no model_type, so no engine can tell what model it is")


def _read_object(path: Path) -> dict[str, object]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path} must hold a JSON object, has a {type(content).__name__}")
    return content

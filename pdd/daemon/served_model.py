"""What the scheduler must know of the model that its nodes serve: read from the model's folder."""

import json
from pathlib import Path
from typing import Any

from pdd.config.sections import EngineSection
from pdd.core.errors import ConfigError
from pdd.gateway.served import ServedModel


def model_folder(engine: EngineSection) -> Path:
    """Where the model lies. Raises ConfigError when none is named."""
    if not engine.model:
        raise ConfigError(
            "engine.model is empty: name a model folder; `bin/pdd setup` makes the default model "
            "and prints its folder"
        )
    return Path(engine.model)


def served_model(engine: EngineSection) -> ServedModel:
    """Name and bounds of the model. Raises ConfigError naming the file that is missing or odd."""
    folder = model_folder(engine)
    config = _read_json(folder / "config.json", required=True)
    text_config = config.get("text_config", config)
    own_len = text_config.get("max_position_embeddings")
    if not isinstance(own_len, int):
        raise ConfigError(f"{folder / 'config.json'}: max_position_embeddings is {own_len!r}")
    vocab_size = text_config.get("vocab_size")
    if not isinstance(vocab_size, int):
        raise ConfigError(f"{folder / 'config.json'}: vocab_size is {vocab_size!r}")
    generation = _read_json(folder / "generation_config.json", required=False)
    eos = generation.get("eos_token_id", text_config.get("eos_token_id"))
    if eos is None:
        eos = []
    return ServedModel(
        name=engine.served_model_name or folder.name,
        max_model_len=min(engine.max_model_len, own_len) if engine.max_model_len else own_len,
        vocab_size=vocab_size,
        eos_token_ids=tuple(eos) if isinstance(eos, list) else (eos,),
        created_s=int((folder / "config.json").stat().st_mtime),
    )


def _read_json(path: Path, *, required: bool) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text())
    except FileNotFoundError:
        if not required:
            return {}
        raise ConfigError(f"engine.model: {path} is missing") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"engine.model: cannot read {path}: {error}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"engine.model: {path} does not hold a JSON object")
    return content

"""What the scheduler reads from a model's folder, and what it says of an odd one."""

import json
from pathlib import Path
from typing import Any

import pytest

from pdd.config.sections import EngineSection
from pdd.core.errors import ConfigError
from pdd.daemon.served_model import served_model

CONFIG = {"max_position_embeddings": 8192, "vocab_size": 49152, "eos_token_id": 2}


def model_folder(tmp_path: Path, config: Any = CONFIG, generation: Any = None) -> Path:
    folder = tmp_path / "tiny-model"
    folder.mkdir()
    (folder / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    return folder


def engine(folder: Path, **fields: Any) -> EngineSection:
    return EngineSection(**{"model": str(folder), "max_model_len": 0, **fields})


def test_name_bounds_and_end_tokens_come_from_the_folder(tmp_path: Path) -> None:
    model = served_model(engine(model_folder(tmp_path)))
    assert (model.name, model.max_model_len, model.vocab_size) == ("tiny-model", 8192, 49152)
    assert model.eos_token_ids == (2,)
    assert model.created_s > 0


def test_the_generation_config_knows_the_end_tokens_better(tmp_path: Path) -> None:
    model = served_model(engine(model_folder(tmp_path, generation={"eos_token_id": [2, 7]})))
    assert model.eos_token_ids == (2, 7)


def test_a_model_without_an_end_token_is_served(tmp_path: Path) -> None:
    folder = model_folder(tmp_path, {"max_position_embeddings": 64, "vocab_size": 9})
    assert served_model(engine(folder)).eos_token_ids == ()


def test_the_operators_limit_lowers_the_models_own_and_never_raises_it(tmp_path: Path) -> None:
    folder = model_folder(tmp_path)
    assert served_model(engine(folder, max_model_len=100)).max_model_len == 100
    assert served_model(engine(folder, max_model_len=100_000)).max_model_len == 8192


def test_the_operators_name_wins(tmp_path: Path) -> None:
    assert served_model(engine(model_folder(tmp_path), served_model_name="gpt")).name == "gpt"


def test_the_text_part_of_a_larger_model_counts(tmp_path: Path) -> None:
    assert served_model(engine(model_folder(tmp_path, {"text_config": CONFIG}))).vocab_size == 49152


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ("{", r"cannot read .*config\.json"),
        ("[]", r"config\.json does not hold a JSON object"),
        ({"vocab_size": 9}, "max_position_embeddings is None"),
        ({"max_position_embeddings": 64}, "vocab_size"),
    ],
)
def test_an_odd_config_is_named(tmp_path: Path, config: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        served_model(engine(model_folder(tmp_path, config)))


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"config\.json is missing"):
        served_model(engine(tmp_path / "nowhere"))

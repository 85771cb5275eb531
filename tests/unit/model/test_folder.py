"""What a model folder must hold: errors name everything that is missing, at once."""

import json
from pathlib import Path

import pytest

from pdd.core.errors import ConfigError
from pdd.model.folder import check_model_folder


def make_model(folder: Path, **changes: str | None) -> Path:
    """Write a folder that passes; ``changes`` gives other contents, None leaves a file out."""
    files = {
        "config.json": '{"model_type": "llama"}',
        "tokenizer.json": "{}",
        "model.safetensors": "x",
        **changes,
    }
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        if content is not None:
            (folder / name).write_text(content)
    return folder


def test_whole_folder_passes(tmp_path: Path) -> None:
    check_model_folder(make_model(tmp_path))


@pytest.mark.parametrize(
    "tokenizer_files", [("tokenizer.model",), ("tekken.json",), ("vocab.json", "merges.txt")]
)
def test_other_kinds_of_tokenizer_pass(tmp_path: Path, tokenizer_files: tuple[str, ...]) -> None:
    changes = dict.fromkeys(tokenizer_files, "{}")
    check_model_folder(make_model(tmp_path, **{"tokenizer.json": None, **changes}))


def test_everything_missing_is_named_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        check_model_folder(tmp_path)
    for part in (str(tmp_path), "config.json", "tokenizer.json", "merges.txt", "*.safetensors"):
        assert part in str(caught.value)


def test_half_of_a_vocabulary_is_not_a_tokenizer(tmp_path: Path) -> None:
    model = make_model(tmp_path, **{"tokenizer.json": None, "vocab.json": "{}"})
    with pytest.raises(ConfigError, match="lacks a tokenizer"):
        check_model_folder(model)


def test_caller_that_only_tokenises_needs_no_weights(tmp_path: Path) -> None:
    model = make_model(tmp_path, **{"model.safetensors": None})
    check_model_folder(model, need_weights=False)
    with pytest.raises(ConfigError, match="lacks weights"):
        check_model_folder(model)


def test_missing_shards_of_a_split_model_are_named(tmp_path: Path) -> None:
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    model = make_model(
        tmp_path,
        **{"model.safetensors.index.json": json.dumps(index), "model-1.safetensors": "x"},
    )
    with pytest.raises(ConfigError, match=r"lacks model-2\.safetensors$"):
        check_model_folder(model)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "cannot be read"),
        ("[]", "must hold a JSON object, has a list"),
        ("{}", "has no model_type"),
    ],
)
def test_unusable_config_is_explained(tmp_path: Path, content: str, message: str) -> None:
    with pytest.raises(ConfigError, match=rf"config\.json.*{message}"):
        check_model_folder(make_model(tmp_path, **{"config.json": content}))


def test_index_without_a_map_is_explained(tmp_path: Path) -> None:
    model = make_model(tmp_path, **{"model.safetensors.index.json": "{}"})
    with pytest.raises(ConfigError, match="has no weight_map"):
        check_model_folder(model)


def test_missing_folder_and_file_in_its_place_differ(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        check_model_folder(tmp_path / "absent")
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="is not a folder"):
        check_model_folder(tmp_path / "file")

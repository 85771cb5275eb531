"""The record inside a converted model's folder, by which later runs trust it without reading it.

Written last, inside the temporary folder, before the rename that publishes everything at
once; a folder without a readable manifest is therefore not ours or not whole. Verifying
costs one small read and one ``stat`` per file; it does not hash 270 MB on every start.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

MANIFEST_NAME = "pdd-model.json"
MANIFEST_FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where the weights came from. ``package`` is ``name==version`` of the Python package."""

    package: str
    file: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a converted folder holds.

    ``recipe`` counts changes to our conversion: a higher one in the code makes old folders
    stale. ``versions`` tells which libraries wrote it; it is for people, and not compared,
    because a newer library does not make correct files wrong. ``size_bytes_by_file`` lists
    every file but the manifest.
    """

    name: str
    recipe: int
    source: Source
    versions: dict[str, str]
    size_bytes_by_file: dict[str, int]


def list_sizes(folder: Path) -> dict[str, int]:
    """Size in bytes of every regular file directly in ``folder``, by name, but the manifest."""
    return {
        path.name: path.stat().st_size
        for path in sorted(folder.iterdir())
        if path.is_file() and path.name != MANIFEST_NAME
    }


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write ``manifest`` into ``folder``. The caller publishes the folder atomically."""
    text = json.dumps({"format": MANIFEST_FORMAT, **asdict(manifest)}, indent=2, sort_keys=True)
    (folder / MANIFEST_NAME).write_text(text + "\n", encoding="utf-8")


def find_fault(folder: Path, *, name: str, recipe: int, package: str | None) -> str | None:
    """Say why ``folder`` cannot be used as it is, or None when it can.

    Args:
        name: the model that the folder must hold.
        recipe: the conversion recipe of the running code.
        package: ``name==version`` that is installed now, or None when none is; then the
            source is not compared (a host may have the converted model and nothing else).
    """
    path = folder / MANIFEST_NAME
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if found["format"] != MANIFEST_FORMAT:
            return f"{path} has format {found['format']}, this version writes {MANIFEST_FORMAT}"
        facts = (found["name"], found["recipe"], found["source"]["package"])
        sizes = dict(found["size_bytes_by_file"])
    except FileNotFoundError:
        return f"{path} is missing" if folder.exists() else f"{folder} does not exist"
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"{path} cannot be read ({error!r})"
    wanted = (name, recipe, package or facts[2])
    for field, is_value, want_value in zip(
        ("name", "recipe", "source"), facts, wanted, strict=True
    ):
        if is_value != want_value:
            return f"{path} has {field} {is_value!r}, wanted {want_value!r}"
    return _find_size_fault(folder, sizes)


def _find_size_fault(folder: Path, sizes: dict[str, int]) -> str | None:
    for file_name, size_bytes in sizes.items():
        try:
            found_bytes = (folder / file_name).stat().st_size
        except OSError as error:
            return f"{folder / file_name} cannot be read ({error.strerror})"
        if found_bytes != size_bytes:
            return f"{folder / file_name} has {found_bytes} bytes, its manifest says {size_bytes}"
    return None

"""The committed code is what the generator makes of proto/, and every message says what it is."""

import importlib.resources
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PROTOS = sorted((ROOT / "proto").rglob("*.proto"))
NEEDS_COMMENT = re.compile(
    r"^\s*(service|rpc|message|enum|oneof|repeated|optional|map<|[\w.]+ \w+ =)"
)


def body_of(generated: str) -> str:
    """Without the lines that name the generator's version: any version must give the same code."""
    noise = re.compile(r"runtime_version|GRPC_GENERATED_VERSION|Protobuf Python Version|^\s+\d+,$")
    return "\n".join(line for line in generated.splitlines() if not noise.search(line))


def test_the_committed_code_is_fresh(tmp_path: Path) -> None:
    pytest.importorskip("grpc_tools")
    well_known = importlib.resources.files("grpc_tools") / "_proto"
    subprocess.run(
        [
            sys.executable,
            "-m",
            "grpc_tools.protoc",
            f"-I{ROOT / 'proto'}",
            f"-I{well_known}",
            f"--python_out={tmp_path}",
            f"--pyi_out={tmp_path}",
            f"--grpc_python_out={tmp_path}",
            *map(str, PROTOS),
        ],
        check=True,
    )
    fresh = {path.relative_to(tmp_path): path for path in tmp_path.rglob("*_pb2*")}
    committed = {
        path.relative_to(ROOT): path
        for path in (ROOT / "pdd" / "rpc").rglob("*_pb2*")
        if path.suffix in (".py", ".pyi")
    }
    assert sorted(map(str, fresh)) == sorted(map(str, committed))
    for name, path in fresh.items():
        assert body_of(committed[name].read_text()) == body_of(path.read_text()), (
            f"{name} is out of date: run python -m grpc_tools.protoc -I proto --python_out=. "
            "--pyi_out=. --grpc_python_out=. proto/pdd/rpc/v1/*.proto"
        )


def test_the_committed_code_runs_with_the_installed_protobuf() -> None:
    from pdd.rpc.v1 import cluster_pb2, inference_pb2, node_pb2

    for module in (cluster_pb2, inference_pb2, node_pb2):
        assert module.DESCRIPTOR.package == "pdd.rpc.v1"


@pytest.mark.parametrize("path", PROTOS, ids=lambda path: path.name)
def test_every_service_call_message_and_field_has_a_comment(path: Path) -> None:
    lines = path.read_text().splitlines()
    bare = [
        f"{path.name}:{number}: {line.strip()}"
        for number, line in enumerate(lines, start=1)
        if NEEDS_COMMENT.match(line)
        and not line.startswith(("syntax", "package", "import", "option"))
        and not lines[number - 2].strip().startswith("//")
    ]
    assert not bare, "\n".join(bare)


@pytest.mark.parametrize("path", PROTOS, ids=lambda path: path.name)
def test_files_lie_where_their_package_says(path: Path) -> None:
    package = re.search(r"^package ([\w.]+);$", path.read_text(), re.MULTILINE)
    assert package is not None
    assert path.parent == ROOT / "proto" / Path(*package[1].split("."))

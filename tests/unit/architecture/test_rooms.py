"""What keeps the rooms apart and light, beyond what the import contracts check."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
MODULES = sorted(path for path in (ROOT / "pdd").rglob("*.py") if "rpc/v1" not in path.as_posix())
PURE_ROOMS = ("core", "scheduler", "wire", "raft", "directory", "cell", "timing")
PURE_MODULES = [
    path
    for path in MODULES
    if path.relative_to(ROOT / "pdd").parts[0] in PURE_ROOMS
    or (path.parent.name == "transfer" and path.name.startswith("protocol"))
]
IMPURE = {
    *("asyncio", "threading", "multiprocessing", "concurrent", "subprocess", "socket", "select"),
    *("time", "secrets", "logging", "structlog", "grpc", "os", "signal"),
}
TEXT_FILES = sorted(
    path
    for folder in ("pdd", "tests", "proto", "config", "systemd", "bin", ".ci")
    for path in (ROOT / folder).rglob("*")
    if path.is_file() and "__pycache__" not in path.parts and path.name != Path(__file__).name
)


def imports_of(path: Path) -> set[str]:
    """Top-level names of everything that a module imports when it runs, at any depth of code."""
    tree = ast.parse(path.read_text())
    for_types_only = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for statement in node.body
        for inner in ast.walk(statement)
    }
    names = set()
    for node in ast.walk(tree):
        if id(node) in for_types_only:
            continue
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.split(".")[0])
    return names


def test_there_are_pure_modules_to_check() -> None:
    assert len(PURE_MODULES) > 25


@pytest.mark.parametrize("path", PURE_MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_pure_module_reads_no_clock_and_does_no_io(path: Path) -> None:
    found = imports_of(path) & IMPURE
    assert not found, (
        f"{path.relative_to(ROOT)} imports {sorted(found)}: take time, randomness and I/O as "
        "arguments; the driver owns them"
    )


@pytest.mark.parametrize("path", PURE_MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_pure_module_draws_only_from_a_generator_that_it_is_given(path: Path) -> None:
    shared = {
        ast.unparse(node)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "random"
        and node.attr != "Random"
    }
    assert not shared, f"{path.relative_to(ROOT)} uses {sorted(shared)}"


@pytest.mark.parametrize(
    "path",
    [path for path in MODULES if path.name == "__init__.py"],
    ids=lambda path: str(path.parent.relative_to(ROOT)),
)
def test_a_package_says_what_it_is_for(path: Path) -> None:
    docstring = ast.get_docstring(ast.parse(path.read_text()))
    assert docstring, f"{path.relative_to(ROOT)} has no docstring: what is this room for?"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_has_a_docstring_and_no_relative_import(path: Path) -> None:
    tree = ast.parse(path.read_text())
    assert ast.get_docstring(tree), f"{path.relative_to(ROOT)} has no docstring"
    relative = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.level]
    assert not relative, f"{path.relative_to(ROOT)} imports relatively"


HEAVY = ("torch", "vllm", "transformers", "ucxx", "numpy", "numba", "grpc", "aiohttp", "structlog")


@pytest.mark.parametrize(
    ("module", "forbidden"),
    [
        ("pdd.cli.main", tuple(name for name in HEAVY if name != "structlog")),
        ("pdd.core.ports", HEAVY),
        # Decisions read columns; the block directory, in the same process, needs both as well.
        ("pdd.scheduler.core", tuple(name for name in HEAVY if name not in ("numpy", "numba"))),
        # 80 MB and 0.2 s that a scheduler alone has a use for.
        ("pdd.daemon.node_daemon", ("numba",)),
        ("pdd.daemon.replica_process", ("numba",)),
        ("pdd.daemon.supervisor", ("numba",)),
        ("pdd.engine", ("numba",)),
        ("pdd.connector", ("numba",)),
        ("pdd.wire", HEAVY),
        ("pdd.raft", HEAVY),
        ("pdd.replication", ("torch", "vllm", "transformers", "ucxx", "grpc", "aiohttp")),
        ("pdd.config.load", ("torch", "vllm", "transformers", "ucxx", "grpc", "aiohttp")),
        ("pdd.connector.link_messages", ("torch", "vllm", "ucxx")),
        ("pdd.connector.params", ("torch", "vllm", "ucxx")),
        ("pdd.control.cluster_server", ("torch", "vllm", "ucxx", "transformers")),
        ("pdd.daemon.scheduler_daemon", ("torch", "vllm", "ucxx")),
    ],
)
def test_importing_it_stays_light(module: str, forbidden: tuple[str, ...]) -> None:
    code = f"import sys, {module}; print(*sorted({set(forbidden)!r} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout.strip() == "", f"import {module} loads {done.stdout.strip()}"


# Put together at run time, so that this file does not find itself.
UNFINISHED = re.compile("|".join(("TO" + "DO", "FIX" + "ME", r"\bXX" + r"X\b")))
MACHINE_PATHS = re.compile("|".join((r"/wo" + "rk/", "/tmp/de" + "v", "/ro" + "ot/", "/op" + "t/")))


@pytest.mark.parametrize("path", TEXT_FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_file_is_finished_and_names_no_path_of_one_machine(path: Path) -> None:
    try:
        text = path.read_text()
    except UnicodeDecodeError:
        return  # no text
    for pattern in (UNFINISHED, MACHINE_PATHS):
        found = pattern.search(text)
        assert found is None, f"{path.relative_to(ROOT)} contains {found[0]!r}"

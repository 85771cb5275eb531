"""Compiled functions: what they promise, and what happens where nothing can be cached."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numba.core.errors import NumbaError

from pdd.core.compiled import compiled

ROOT = Path(__file__).parents[3]
MODULE = """
import numpy as np
from pdd.core.compiled import compiled

@compiled("int64(int64[::1])")
def total(values):
    answer = 0
    for value in values:
        answer += value
    return answer

@compiled("int64(int64[::1])")
def twice_the_total(values):
    return 2 * total(values)

print(twice_the_total(np.arange(4)), twice_the_total.py_func(np.arange(4)))
"""


@compiled("uint64(Array(uint64, 1, 'C', True))")
def product(values):
    answer = np.uint64(1)
    for value in values:
        answer *= value
    return answer


def test_a_compiled_function_reads_what_cannot_be_written_and_wraps_around_at_its_width():
    values = np.frombuffer(np.array([2**63, 3], dtype=np.uint64).tobytes(), dtype=np.uint64)
    assert not values.flags.writeable
    assert product(values) == 2**63
    assert product.py_func(values[1:]) == 3


def test_arrays_of_another_type_are_refused_instead_of_compiled_for():
    with pytest.raises(TypeError, match="No matching definition"):
        product(np.array([1.5]))


def test_numbers_are_converted_as_c_does_it():
    """So ``compiled`` says; no call of it would be as quick if each were looked at."""

    @compiled("int64(int64)")
    def same(value):
        return value

    assert same(1.7) == 1


def test_a_function_that_cannot_be_compiled_fails_when_it_is_defined():
    def unsuitable(value):
        return value.no_such_attribute

    with pytest.raises(NumbaError, match="no_such_attribute"):
        compiled("int64(int64)")(unsuitable)


def test_a_function_without_a_signature_is_refused():
    with pytest.raises(ValueError, match="signatures are missing"):
        compiled()


OTHER = """
from first import LIMIT, compiled, total

@compiled("int64(int64[::1])")
def limited(values):
    return min(total(values), LIMIT)

@compiled("int64(int64[::1])")
def twice_limited(values):
    return 2 * limited(values)

import numpy as np
print(twice_limited(np.arange(4)))
"""


@pytest.mark.parametrize(
    ("before", "after"), [("LIMIT = 5", "LIMIT = 4"), ("answer = 0", "answer = -2")]
)
def test_what_is_of_another_file_may_be_called_and_named_and_its_changes_are_seen(
    tmp_path, before, after
):
    first = MODULE.replace("import numpy as np", "import numpy as np\nLIMIT = 5", 1)
    (tmp_path / "first.py").write_text(first)
    (tmp_path / "second.py").write_text(OTHER)
    assert run(tmp_path, "second") == (0, "12 12\n10\n", "")
    assert before in first
    (tmp_path / "first.py").write_text(first.replace(before, after))
    code, out, err = run(tmp_path, "second")
    assert (code, out.splitlines()[-1], err) == (0, "8", "")


def test_a_constant_of_the_function_around_it_is_part_of_its_name():
    def made(step):
        @compiled("int64(int64)")
        def stepped(value):
            return value + step

        return stepped

    one, two = made(1), made(2)
    assert (one(1), two(1)) == (2, 3)
    assert one.py_func.__qualname__ != two.py_func.__qualname__


@pytest.mark.parametrize("value", [os, [1, 2], np.arange(3), len], ids=repr)
def test_what_may_change_unseen_cannot_be_named(value):
    def suspicious(number):
        return number if value is None else 0

    with pytest.raises(ValueError, match=r"suspicious names value, a .*would not reach cached"):
        compiled("int64(int64)")(suspicious)


def test_machine_code_is_kept_beside_the_source_and_found_there(tmp_path):
    (tmp_path / "first.py").write_text(MODULE)
    assert run(tmp_path, "first") == (0, "12 12\n", "")
    kept = sorted((tmp_path / "__pycache__").glob("*.nb?"))
    assert len(kept) == 4, "an index and an entry for each function"
    written_ns = [path.stat().st_mtime_ns for path in kept]
    assert run(tmp_path, "first") == (0, "12 12\n", "")
    assert [path.stat().st_mtime_ns for path in kept] == written_ns


def test_another_version_of_the_file_has_entries_of_its_own(tmp_path):
    """Two processes that start at once write an index before the code: under one name, the code
    could be the old one."""
    (tmp_path / "first.py").write_text(MODULE)
    assert run(tmp_path, "first")[0] == 0
    before = {path: path.read_bytes() for path in (tmp_path / "__pycache__").glob("*.nb?")}
    (tmp_path / "first.py").write_text(MODULE.replace("2 *", "3 *"))
    assert run(tmp_path, "first") == (0, "18 18\n", "")
    after = {path: path.read_bytes() for path in (tmp_path / "__pycache__").glob("*.nb?")}
    assert len(after) == 8
    assert before.items() <= after.items()


def test_where_no_folder_can_be_written_it_compiles_and_says_once_what_to_do(tmp_path):
    (tmp_path / "first.py").write_text(MODULE)
    (tmp_path / "__pycache__").write_text("a file, so that nobody can make the folder")
    code, out, err = run(tmp_path, "first", XDG_CACHE_HOME=str(tmp_path / "first.py"))
    assert (code, out) == (0, "12 12\n")
    assert err.count("RuntimeWarning") == 1
    assert "every start compiles it anew" in err
    assert "set NUMBA_CACHE_DIR to a folder" in err


def test_a_function_without_a_source_file_is_compiled_and_not_kept(monkeypatch):
    monkeypatch.setattr("pdd.core.compiled._warned", [])
    scope = {}
    exec("def twice(value): return 2 * value", scope)
    with pytest.warns(RuntimeWarning, match="cannot be kept"):
        assert compiled("int64(int64)")(scope["twice"])(4) == 8


def test_a_cache_that_a_power_failure_has_cut_short_does_not_stop_the_start(tmp_path):
    (tmp_path / "first.py").write_text(MODULE)
    assert run(tmp_path, "first")[0] == 0
    for path in (tmp_path / "__pycache__").glob("*.nb?"):
        path.write_bytes(b"")
    code, out, err = run(tmp_path, "first")
    assert (code, out) == (0, "12 12\n")
    assert err.count("RuntimeWarning") == 1
    assert "empty that folder (EOFError" in err


def test_a_cache_that_holds_something_else_does_not_stop_the_start(tmp_path):
    """Which error such bytes end in is up to them: of another protocol, a module that is gone."""
    (tmp_path / "first.py").write_text(MODULE)
    assert run(tmp_path, "first")[0] == 0
    kept = list((tmp_path / "__pycache__").glob("*.nb?"))
    for content, error in ((b"\x80\xff", "ValueError"), (b"cgone\nx\n.", "ModuleNotFoundError")):
        for path in kept:
            path.write_bytes(content)
        code, out, err = run(tmp_path, "first")
        assert (code, out) == (0, "12 12\n"), err
        assert f"empty that folder ({error}" in err


def run(folder: Path, module: str, **environment: str) -> tuple[int, str, str]:
    """Import a module of the folder in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", f"import {module}"],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env={
            **{name: value for name, value in os.environ.items() if "NUMBA" not in name},
            "PYTHONPATH": os.pathsep.join((str(folder), str(ROOT))),
            "PYTHONDONTWRITEBYTECODE": "1",
            **environment,
        },
    )
    return done.returncode, done.stdout, done.stderr

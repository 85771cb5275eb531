"""Publishing a folder: readers see all of it or none, whatever happens to the writer."""

import errno
from pathlib import Path

import pytest

from pdd.core.errors import ConfigError
from pdd.model import cache


def never_waits() -> None:
    pytest.fail("nobody else holds this lock")


def write_file(folder: Path) -> None:
    (folder / "weights").write_bytes(b"new")


def test_publish_puts_the_whole_folder_in_place_readable_by_all(tmp_path: Path) -> None:
    target = tmp_path / "model"
    cache.publish(target, write_file)
    assert (target / "weights").read_bytes() == b"new"
    assert target.stat().st_mode & 0o777 == 0o755
    assert (target / "weights").stat().st_mode & 0o777 == 0o644
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_publish_replaces_a_folder_that_was_there(tmp_path: Path) -> None:
    target = tmp_path / "model"
    target.mkdir()
    (target / "old").write_bytes(b"old")
    cache.publish(target, write_file)
    assert [path.name for path in target.iterdir()] == ["weights"]
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize("error", [RuntimeError("bad weights"), KeyboardInterrupt()])
def test_failed_attempt_leaves_the_old_folder_and_nothing_else(
    tmp_path: Path, error: BaseException
) -> None:
    target = tmp_path / "model"
    target.mkdir()
    (target / "old").write_bytes(b"old")

    def fail(folder: Path) -> None:
        write_file(folder)
        raise error

    with pytest.raises(type(error)):
        cache.publish(target, fail)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert [path.name for path in target.iterdir()] == ["old"]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_full_disk_is_a_clear_error_and_leaves_nothing(tmp_path: Path, code: int) -> None:
    def fill_disk(folder: Path) -> None:
        write_file(folder)
        raise OSError(code, "No space left on device")

    with pytest.raises(ConfigError, match=r"No space left on device.*nothing was left.*PDD_CACHE"):
        cache.publish(tmp_path / "model", fill_disk)
    assert list(tmp_path.iterdir()) == []


def test_other_disk_errors_keep_their_own_type(tmp_path: Path) -> None:
    def fail(_folder: Path) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with pytest.raises(OSError, match="Input/output") as caught:
        cache.publish(tmp_path / "model", fail)
    assert caught.value.errno == errno.EIO


def test_leftovers_of_dead_attempts_are_removed_but_not_those_of_other_models(
    tmp_path: Path,
) -> None:
    for name in (".model.partial-abc", ".model.partial-old-17", ".model2.partial-abc"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "half").write_bytes(b"x")
    cache.publish(tmp_path / "model", write_file)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".model2.partial-abc", "model"]


def test_lock_is_exclusive_and_its_wait_is_bounded(tmp_path: Path) -> None:
    waits: list[str] = []
    target = tmp_path / "model"
    with cache.locked(target, timeout_s=0.0, on_wait=never_waits):
        other = cache.locked(target, timeout_s=0.0, on_wait=lambda: waits.append("waiting"))
        with pytest.raises(ConfigError, match=r"another process held .*\.model\.lock"), other:
            pytest.fail("two holders at once")
    assert waits == ["waiting"]
    with cache.locked(target, timeout_s=0.0, on_wait=never_waits):
        pass


def test_lock_in_an_impossible_place_names_the_setting(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    lock = cache.locked(tmp_path / "file" / "model", timeout_s=0.0, on_wait=never_waits)
    with pytest.raises(ConfigError, match="set PDD_CACHE_DIR to a writable folder"), lock:
        pytest.fail("locked a file inside a file")


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"PDD_CACHE_DIR": "/a", "XDG_CACHE_HOME": "/b", "HOME": "/c"}, "/a"),
        ({"XDG_CACHE_HOME": "/b", "HOME": "/c"}, "/b/pdd"),
        ({"HOME": "/c"}, "/c/.cache/pdd"),
        ({"PDD_CACHE_DIR": "", "XDG_CACHE_HOME": "", "HOME": "/c"}, "/c/.cache/pdd"),
    ],
)
def test_cache_folder_follows_the_environment(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], expected: str
) -> None:
    for name in ("PDD_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert cache.cache_folder() == Path(expected)

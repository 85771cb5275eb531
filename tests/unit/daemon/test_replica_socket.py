"""Where a replica's socket is, and what becomes of it when a scheduler is killed."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from pdd.daemon.replica_socket import replica_socket

HOLD = """
import socket, sys
from pdd.daemon.replica_socket import replica_socket
with replica_socket() as path:
    socket.socket(socket.AF_UNIX).bind(str(path))
    print(path.parent, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def temp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def scheduler(temp: Path) -> "subprocess.Popen[str]":
    """Another process with a socket of its own."""
    return subprocess.Popen(
        [sys.executable, "-c", HOLD],
        env={**os.environ, "TMPDIR": str(temp)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_the_folder_is_its_users_alone_and_goes_with_the_context(temp: Path) -> None:
    with replica_socket() as path:
        assert path.parent.parent == temp
        assert path.parent.stat().st_mode & 0o777 == 0o700
    assert list(temp.iterdir()) == []


def test_what_a_killed_scheduler_left_is_removed_and_a_running_ones_stays(temp: Path) -> None:
    with scheduler(temp) as killed, scheduler(temp) as running:
        folders = [Path(one.stdout.readline().strip()) for one in (killed, running)]  # type: ignore[union-attr]
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        assert all((folder / "replica").exists() for folder in folders)
        with replica_socket() as path:
            assert set(temp.iterdir()) == {folders[1], path.parent}
        running.communicate()
    assert list(temp.iterdir()) == []


def test_a_folder_without_a_lock_is_left_while_it_may_be_in_the_making(temp: Path) -> None:
    new, old = temp / "pdd-replica-new", temp / "pdd-replica-old"
    for folder in (new, old):
        folder.mkdir()
    os.utime(old, (0, 0))
    with replica_socket():
        assert new.exists()
        assert not old.exists()


def test_what_it_did_not_make_is_left(temp: Path) -> None:
    (temp / "elsewhere").mkdir()
    (temp / "pdd-replica-link").symlink_to(temp / "elsewhere")
    (temp / "pdd-replica-full").mkdir()
    (temp / "pdd-replica-full" / "notes").write_text("mine")
    os.utime(temp / "pdd-replica-full", (0, 0))
    with replica_socket():
        assert (temp / "pdd-replica-link").is_symlink()
        assert (temp / "pdd-replica-full" / "notes").exists()

"""Finding a cluster's processes and what they leave."""

import mmap
import os
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import pytest

from pdd.daemon.supervisor_members import (
    SharedFile,
    end_members,
    find_members,
    make_temporary_dir,
    member_environment,
    remove_shared_files,
    remove_temporary_dir,
    shared_files,
    start_ticks,
    wait_for_exit,
)

WAIT = "import sys; print('up', flush=True); sys.stdin.read()"
TITLE = "import setproctitle; setproctitle.setproctitle('VLLM::EngineCore ' * 20);"


@pytest.fixture
def start(tmp_path):
    """Start a process that carries a cluster's mark and waits for its stdin to close."""
    processes = []

    def start(cluster_id: str, name: str, script: str = WAIT) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-c", script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=member_environment(
                dict(os.environ), cluster_id=cluster_id, name=name, temporary_dir=tmp_path
            ),
        )
        processes.append(process)
        assert process.stdout.readline() == b"up\n"
        return process

    yield start
    for process in processes:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def test_members_are_found_by_cluster_and_by_daemon(start):
    one, other = uuid4().hex, uuid4().hex
    a, b, c = start(one, "decode-0"), start(one, "decode-01"), start(other, "decode-0")
    assert sorted(find_members(one)) == sorted([a.pid, b.pid])
    assert find_members(one, name="decode-0") == [a.pid]
    assert find_members(other) == [c.pid]


def test_a_process_that_renames_itself_as_engines_do_is_still_found(start):
    pytest.importorskip("setproctitle", reason="comes with vLLM")
    cluster_id = uuid4().hex
    process = start(cluster_id, "decode-0", TITLE + WAIT)
    assert b"EngineCore" in Path(f"/proc/{process.pid}/cmdline").read_bytes()
    assert find_members(cluster_id) == [process.pid]


def test_a_zombie_is_no_member_and_has_no_start_time(start):
    cluster_id = uuid4().hex
    process = start(cluster_id, "decode-0")
    assert start_ticks(process.pid) is not None
    process.stdin.close()
    assert wait_for_exit(process.pid, timeout_s=60)
    assert find_members(cluster_id) == []
    assert start_ticks(process.pid) is None


def test_ending_members_kills_those_that_ignore_sigterm(start):
    cluster_id = uuid4().hex
    ignore = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
    process = start(cluster_id, "decode-0", ignore + WAIT)
    end_members(lambda: find_members(cluster_id), grace_s=0.1)
    assert process.wait(timeout=60) == -9


def test_a_search_that_takes_all_the_time_still_ends_what_it_finds(start):
    """As on a machine so busy that looking through /proc takes longer than the grace."""
    cluster_id = uuid4().hex
    process = start(cluster_id, "decode-0")
    now_s = 0.0

    def find() -> list[int]:
        nonlocal now_s
        now_s += 10.0
        return find_members(cluster_id)

    end_members(find, grace_s=2.0, clock=lambda: now_s)
    assert process.wait(timeout=60) in (-15, -9)


def test_mapped_shared_memory_is_seen_and_removed_but_not_a_later_namesake():
    path = Path("/dev/shm") / f"pdd-test-{uuid4()}"
    with path.open("w+b") as file:
        file.truncate(4096)
        mapping = mmap.mmap(file.fileno(), 4096)
    try:
        (found,) = [file for file in shared_files([os.getpid()]) if file.path == str(path)]
        remove_shared_files([SharedFile(str(path), found.inode + 1)])
        assert path.exists()
        remove_shared_files([found])
        assert not path.exists()
        remove_shared_files([found])  # gone already: no error
    finally:
        mapping.close()
        path.unlink(missing_ok=True)


def test_only_folders_of_ours_are_removed_as_temporary(tmp_path):
    made = make_temporary_dir()
    (made / "socket").touch()
    remove_temporary_dir(str(made))
    assert not made.exists()
    precious = tmp_path / "precious"
    precious.mkdir()
    remove_temporary_dir(str(precious))
    remove_temporary_dir("")
    assert precious.exists()

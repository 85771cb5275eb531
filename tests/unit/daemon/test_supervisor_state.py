"""The state folder: lock and record."""

import json

import pytest

from pdd.core.errors import PddError
from pdd.daemon.supervisor_state import (
    ClusterRecord,
    DaemonRecord,
    StateDir,
    StateDirBusy,
    read_record,
    write_atomically,
)


def make_record(**fields: object) -> ClusterRecord:
    node = DaemonRecord(name="decode-0", role="decode", pid=7, address="127.0.0.1:1")
    defaults = {
        "cluster_id": "c0ffee",
        "supervisor_pid": 1,
        "supervisor_start_ticks": 2,
        "temporary_dir": "/tmp/pdd-x",
        "state": "ready",
        "http": "http://127.0.0.1:8000",
        "grpc": "127.0.0.1:7070",
        "nodes": (node,),
    }
    return ClusterRecord(**(defaults | fields))


@pytest.fixture
def state_dir(tmp_path):
    state_dir = StateDir.lock(tmp_path / "a" / "b")
    yield state_dir
    state_dir.close()


def test_a_record_reads_back_as_it_was_written(state_dir):
    state_dir.write_record(make_record())
    assert read_record(state_dir.path) == make_record()
    state_dir.remove_record()
    assert read_record(state_dir.path) is None
    state_dir.remove_record()  # twice is no error


def test_the_public_part_is_what_scripts_rely_on():
    assert make_record().public() == {
        "http": "http://127.0.0.1:8000",
        "grpc": "127.0.0.1:7070",
        "nodes": [{"name": "decode-0", "role": "decode", "pid": 7, "address": "127.0.0.1:1"}],
    }


def test_a_locked_folder_is_refused_and_free_again_when_closed(state_dir):
    with pytest.raises(StateDirBusy, match="another pdd up or pdd down works on"):
        StateDir.lock(state_dir.path)
    state_dir.write_record(make_record(supervisor_pid=4711))
    with pytest.raises(StateDirBusy, match=r"ready in .* \(pid 4711\); stop it with 'pdd down"):
        StateDir.wait_for_lock(state_dir.path, timeout_s=0.1)


def test_a_folder_that_cannot_be_made_is_an_error_that_names_it(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(PddError, match=r"state folder .*/file/x cannot be used: Not a directory"):
        StateDir.lock(tmp_path / "file" / "x")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"version": 1, "nodes": [{"x": 1}]}', "\x00"])
def test_a_damaged_record_is_an_error_that_says_what_to_do(state_dir, text):
    (state_dir.path / "cluster.json").write_text(text)
    with pytest.raises(PddError, match="if no cluster runs there, remove it"):
        read_record(state_dir.path)


def test_a_record_of_another_version_is_refused_by_number(state_dir):
    state_dir.write_record(make_record())
    file = state_dir.path / "cluster.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"version": 99}))
    with pytest.raises(PddError, match="has version 99, this pdd reads 1"):
        read_record(state_dir.path)


def test_a_failed_write_keeps_the_old_text_and_names_the_file(tmp_path, monkeypatch):
    file = tmp_path / "f"
    write_atomically(file, "old")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.replace", fail)
    with pytest.raises(OSError, match=r"No space left on device: '.*/f'"):
        write_atomically(file, "new")
    assert [path.name for path in tmp_path.iterdir()] == ["f"]
    assert file.read_text() == "old"

"""[raft]: a group is named alike everywhere, or refused with all faults."""

from pathlib import Path

import pytest

from pdd.config.load import load_config
from pdd.config.sections import Config
from pdd.core.errors import ConfigError
from pdd.daemon.replica_plan import begin_log_of, log_folder

HEAD = "[node]\nname = 's0'\nrole = 'scheduler'\nstate_dir = '{folder}'\n[raft]\n"
THREE = "{{ s0 = '127.0.0.1:{0}1', s1 = '127.0.0.1:{0}2', s2 = '127.0.0.1:{0}3' }}"


def load(folder: Path, text: str) -> Config:
    path = folder / "pdd.toml"
    path.write_text(HEAD.format(folder=folder / "state") + text)
    return load_config(path, environment={"HOME": "/h"}, flags=()).config


def group(folder: Path) -> Config:
    return load(folder, f"replicas = {THREE.format(710)}\nschedulers = {THREE.format(700)}\n")


def test_three_schedulers_are_read_by_name(tmp_path: Path) -> None:
    raft = group(tmp_path).raft
    assert str(raft.replicas["s1"]) == "127.0.0.1:7102"
    assert list(raft.schedulers) == ["s0", "s1", "s2"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("replicas = { s0 = '127.0.0.1:1' }", "must name the same schedulers; s0 is in one"),
        (
            "replicas = { s0 = '127.0.0.1:1', s1 = '127.0.0.1:2' }\n"
            "schedulers = { s0 = '127.0.0.1:3', s1 = '127.0.0.1:4' }",
            "has 2 schedulers; a group has 3 or 5",
        ),
        (
            "replicas = { s7 = '127.0.0.1:1' }\nschedulers = { s7 = '127.0.0.1:3' }",
            "names s7, and this is s0: name it too",
        ),
        (
            "replicas = { s0 = '10.0.0.1:1' }\nschedulers = { s0 = '10.0.0.1:3' }",
            "beyond loopback: give [tls]",
        ),
        ("replicas = { s0 = '127.0.0.1:0' }", "port 0 cannot be connected to"),
    ],
)
def test_what_cannot_be_a_group_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text + "\n")
    assert message in str(caught.value)


def test_a_log_is_begun_once(tmp_path: Path) -> None:
    config = group(tmp_path)
    folder = begin_log_of(config)
    assert folder == log_folder(config)
    with pytest.raises(ConfigError, match="has begun its log already"):
        begin_log_of(config)

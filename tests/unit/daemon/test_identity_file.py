"""A node's uuid stays, its boot epoch grows, and a damaged file is never replaced in silence."""

import json
import os
import uuid
from pathlib import Path
from typing import Any

import pytest

from pdd.core.errors import ConfigError
from pdd.core.identity import NodeName
from pdd.daemon.identity_file import next_identity

NAME = NodeName("decode-0")

UUID_TEXT = "9e40a7db-237d-400c-8751-cfbd554345f0"


def test_the_first_start_makes_a_node_and_every_later_one_a_new_life(tmp_path: Path) -> None:
    state_dir = tmp_path / "not" / "there" / "yet"
    lives = [next_identity(state_dir, NAME) for _ in range(3)]
    assert [life.boot_epoch for life in lives] == [1, 2, 3]
    assert len({life.uuid for life in lives}) == 1
    assert str(uuid.UUID(lives[0].uuid)) == lives[0].uuid
    assert [path.name for path in state_dir.iterdir()] == ["identity.json"]


def test_two_folders_are_two_nodes(tmp_path: Path) -> None:
    one, other = (next_identity(tmp_path / name, NAME) for name in ("a", "b"))
    assert one.uuid != other.uuid


def test_a_renamed_node_stays_the_same_node(tmp_path: Path) -> None:
    before = next_identity(tmp_path, NAME)
    after = next_identity(tmp_path, NodeName("decode-9"))
    assert (after.uuid, after.boot_epoch, after.name) == (before.uuid, 2, "decode-9")


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "null",
        json.dumps({"name": "decode-0", "uuid": "no uuid", "boot_epoch": 1}),
        json.dumps({"name": "decode-0", "uuid": 7, "boot_epoch": 1}),
        json.dumps({"name": "decode-0", "uuid": UUID_TEXT}),
        json.dumps({"name": "decode-0", "uuid": UUID_TEXT, "boot_epoch": "many"}),
        b"\xff\xfe",
    ],
)
def test_a_damaged_file_is_named_and_left_alone(tmp_path: Path, content: Any) -> None:
    path = tmp_path / "identity.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    before = path.read_bytes()
    with pytest.raises(ConfigError, match=r"identity\.json is damaged.*remove it"):
        next_identity(tmp_path, NAME)
    assert path.read_bytes() == before


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"node\.state_dir: cannot keep"):
        next_identity(tmp_path / "file" / "state", NAME)


def test_a_crash_while_writing_leaves_the_former_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    next_identity(tmp_path, NAME)

    def no_space(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", no_space)
        with pytest.raises(ConfigError, match="No space left"):
            next_identity(tmp_path, NAME)
    assert [path.name for path in tmp_path.iterdir()] == ["identity.json"]
    assert next_identity(tmp_path, NAME).boot_epoch == 2

"""A node's uuid, and its boot epoch, which grows by one at every start."""

import json
import os
import uuid
from pathlib import Path

from pdd.core.errors import ConfigError
from pdd.core.identity import NodeIdentity, NodeName

_FILE_NAME = "identity.json"


def next_identity(state_dir: Path, name: NodeName) -> NodeIdentity:
    """The identity of this start; written to disk before it is used anywhere.

    Raises:
        ConfigError: the file is damaged (never silently replaced: peers may still hold tickets of
            the former life), or it cannot be written.
    """
    path = state_dir / _FILE_NAME
    try:
        state_dir.mkdir(parents=True, exist_ok=True)
        former = _read(path)
        identity = NodeIdentity(
            name=name,
            uuid=former.uuid if former else str(uuid.uuid4()),
            boot_epoch=former.boot_epoch + 1 if former else 1,
        )
        _write(path, identity)
    except OSError as error:
        raise ConfigError(f"node.state_dir: cannot keep {path}: {error}") from error
    return identity


def _read(path: Path) -> NodeIdentity | None:
    try:
        fields = json.loads(path.read_text())
        return NodeIdentity(
            name=NodeName(str(fields["name"])),
            uuid=str(uuid.UUID(str(fields["uuid"]))),
            boot_epoch=int(fields["boot_epoch"]),
        )
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{path} is damaged ({error}): remove it to start as a new node"
        ) from error


def _write(path: Path, identity: NodeIdentity) -> None:
    temporary = path.with_suffix(f".tmp-{os.getpid()}")
    fields = {
        "name": identity.name,
        "uuid": identity.uuid,
        "boot_epoch": identity.boot_epoch,
    }
    try:
        with temporary.open("w") as file:
            json.dump(fields, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)

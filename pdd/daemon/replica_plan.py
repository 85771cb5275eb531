"""How a scheduler's replica is started: where its log is, and how it is reached."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pdd.config.sections import Config
from pdd.daemon.replicated_agreement import ReplicaPlan
from pdd.daemon.state_dir import state_dir_of
from pdd.replication.unix_socket import PREFIX, UnixSocketSecurity

CELL_ID = "pdd"
"""In every message and on disk. A group of one speaks to nobody whom it could confuse."""
LOG_FOLDER = "raft"
_NOT_INHERITED = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")
"""The replica must not speak to systemd in the daemon's place."""


@contextmanager
def replica_plan(config: Config) -> Iterator[ReplicaPlan]:
    """A group of one, behind a socket in a folder that lasts as long as the context."""
    folder = tempfile.mkdtemp(prefix="pdd-raft-")  # 0700
    try:
        yield ReplicaPlan(
            settings={
                "node": config.node.name,
                "addresses": {config.node.name: f"{PREFIX}{Path(folder) / 'replica'}"},
                "cluster_id": CELL_ID,
                "data_dir": str(log_folder(config)),
                # Alone it has given no vote to anybody and can contradict nobody: a log that is
                # gone is an empty state, not a danger.
                "is_new_cluster": True,
                "tls": None,
                "is_unix": True,
                "log": config.log.model_dump(mode="json"),
            },
            environment={
                key: value for key, value in os.environ.items() if key not in _NOT_INHERITED
            },
            security=UnixSocketSecurity(),
        )
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def log_folder(config: Config) -> Path:
    """Raft's log and snapshots of this scheduler."""
    return (state_dir_of(config) / LOG_FOLDER).absolute()

"""How a scheduler's replica is started: where its log is, and how it is reached."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pdd.config.sections import Config
from pdd.config.tls_files import member_paths
from pdd.daemon.replica_socket import replica_socket
from pdd.daemon.replicated_agreement import ReplicaPlan
from pdd.daemon.security import make_security
from pdd.daemon.state_dir import state_dir_of
from pdd.raft.values import NodeId
from pdd.replication.offline import begin_log
from pdd.replication.unix_socket import PREFIX, UnixSocketSecurity

LOG_FOLDER = "raft"
_NOT_INHERITED = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")
"""The replica must not speak to systemd in the daemon's place."""


@contextmanager
def replica_plan(config: Config) -> Iterator[ReplicaPlan]:
    """A group of one, behind a socket in a folder that lasts as long as the context; or a replica
    of the group that the configuration names."""
    if config.raft.replicas:
        yield _plan_of_group(config)
        return
    with replica_socket() as path:
        yield ReplicaPlan(
            settings=_common(config)
            | {
                "addresses": {config.node.name: f"{PREFIX}{path}"},
                # Alone it has given no vote to anybody and can contradict nobody: a log that is
                # gone is an empty state, not a danger.
                "is_new_cluster": True,
                "tls": None,
                "is_unix": True,
            },
            environment=_environment(),
            security=UnixSocketSecurity(),
        )


def _plan_of_group(config: Config) -> ReplicaPlan:
    paths = member_paths(config)
    return ReplicaPlan(
        settings=_common(config)
        | {
            "addresses": {name: str(address) for name, address in config.raft.replicas.items()},
            "is_new_cluster": False,  # 'pdd raft init' begins a log
            "tls": None
            if paths is None
            else {
                "ca": str(paths.ca),
                "certificate": str(paths.certificate),
                "key": str(paths.key),
            },
            "is_unix": False,
        },
        environment=_environment(),
        security=make_security(config),
    )


def _common(config: Config) -> dict[str, object]:
    return {
        "node": config.node.name,
        "cluster_id": config.raft.cluster_id,
        "data_dir": str(log_folder(config)),
        "log": config.log.model_dump(mode="json"),
    }


def _environment() -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if key not in _NOT_INHERITED}


def begin_log_of(config: Config) -> Path:
    """Make the empty log of a new group's scheduler; where it is.

    Raises:
        ConfigError, StorageError: see ``begin_log``.
    """
    folder = log_folder(config)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    begin_log(
        NodeId(config.node.name),
        directory=folder,
        voters=[NodeId(name) for name in config.raft.replicas],
        cluster_id=config.raft.cluster_id,
    )
    return folder


def log_folder(config: Config) -> Path:
    """Raft's log and snapshots of this scheduler."""
    return (state_dir_of(config) / LOG_FOLDER).absolute()

"""The process of a scheduler's replica: ``python -m pdd.daemon.replica_process SETTINGS``.

A process of its own, because the scheduler's event loop carries every token of the cluster: a slow
client, a large prompt or a garbage collection there must not look like a dead leader to the others.
It holds the hard state and raft's log, nothing else; block entries pass by.

SETTINGS is a JSON object: node, addresses, cluster_id, data_dir, is_new_cluster, tls (three paths,
or null), is_unix, log (level, format). Tells its parent one JSON line on stdout: ``{"address"}``
when it listens, ``{"leader"}`` whenever another replica leads (null: none is known to),
``{"longest_pause_s"}`` whenever its loop has paused longer than ever, or ``{"refused"}`` with the
reason. Ends when its stdin is closed, that is, with its parent; signals
that are meant for the daemon (systemd tells all of a unit's processes) are left to the daemon.

A leader is of use only with its scheduler: when the parent has not said a word on stdin for
PARENT_SILENCE_S, or says that it stops, leadership is handed to another replica.
"""

import asyncio
import contextlib
import gc
import json
import os
import signal
import sys
import time
from pathlib import Path

import structlog
import uvloop

from pdd.cell.machine import CellMachine
from pdd.config.sections import LogSection
from pdd.core.errors import PddError
from pdd.daemon.replica_child import HAND_OVER
from pdd.raft.values import NodeId
from pdd.replication.directory_lock import DirectoryInUseError
from pdd.replication.replica import Replica, ReplicaSettings
from pdd.replication.replica_main import GC_THRESHOLDS, SWITCH_INTERVAL_S, die_with_parent
from pdd.replication.unix_socket import UnixSocketSecurity
from pdd.telemetry.logging import configure_logging
from pdd.tls.light_io import use_light_io
from pdd.tls.paths import TlsPaths
from pdd.tls.security import PLAIN, Security, TlsSecurity

log = structlog.get_logger(__name__)

PARENT_SILENCE_S = 1.0
"""As long as a silent leader may be before others elect another one."""
LOCK_WAIT_S = 5.0
"""The replica of a scheduler that was just killed may still be ending."""
_LOCK_POLL_S = 0.05


def main(text: str) -> int:
    """Serve until the parent is gone; the exit status."""
    die_with_parent()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    use_light_io()
    fields = json.loads(text)
    configure_logging(LogSection(**fields["log"]), node=fields["node"], role="replica")
    try:
        uvloop.run(_serve(fields))
    except PddError as error:
        _tell(refused=str(error))
        return 1
    return 0


async def _serve(fields: dict[str, object]) -> None:
    machine = CellMachine()
    settings = settings_from(fields)
    replica = await _open(settings, machine)
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    parent = _Parent(replica)
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), parent.read)
    watching = asyncio.create_task(parent.watch())
    try:
        await replica.run()
    finally:
        watching.cancel()


async def _open(settings: ReplicaSettings, machine: CellMachine) -> Replica:
    """Raises: DirectoryInUseError, after a while; what ``Replica`` raises."""
    deadline_s = time.monotonic() + LOCK_WAIT_S
    while True:
        try:
            return Replica(
                settings,
                machine,
                machine.query,
                on_listening=lambda address: _tell(address=address),
                on_leader=lambda leader, term: _tell(leader=leader),
            )
        except DirectoryInUseError:
            if time.monotonic() > deadline_s:
                raise
        await asyncio.sleep(_LOCK_POLL_S)


def settings_from(fields: dict[str, object]) -> ReplicaSettings:
    """Raises ConfigError: a certificate that is not what it should be."""
    addresses = fields["addresses"]
    assert isinstance(addresses, dict)
    return ReplicaSettings(
        node=NodeId(str(fields["node"])),
        addresses={NodeId(name): str(address) for name, address in addresses.items()},
        cluster_id=str(fields["cluster_id"]),
        data_dir=Path(str(fields["data_dir"])),
        is_new_cluster=bool(fields["is_new_cluster"]),
        security=security_from(fields),
    )


def security_from(fields: dict[str, object]) -> Security:
    """Of the connections to the other replicas and to schedulers. Raises ConfigError."""
    if fields["is_unix"]:
        return UnixSocketSecurity()
    tls = fields["tls"]
    if tls is None:
        return PLAIN
    assert isinstance(tls, dict)
    paths = TlsPaths(ca=Path(tls["ca"]), certificate=Path(tls["certificate"]), key=Path(tls["key"]))
    return TlsSecurity(paths)


class _Parent:
    """What the scheduler says on stdin, and its silence."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._heard_s = time.monotonic()
        self._told_pause_s = 0.0

    def read(self) -> None:
        said = os.read(sys.stdin.fileno(), 4096)
        self._heard_s = time.monotonic()
        if not said:
            asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
            self._replica.stop()
        elif HAND_OVER in said:
            self._hand_over("the scheduler is stopping")

    async def watch(self) -> None:
        while True:
            await asyncio.sleep(PARENT_SILENCE_S / 4)
            silent_s = time.monotonic() - self._heard_s
            if silent_s > PARENT_SILENCE_S:
                self._hand_over(f"the scheduler has been silent for {silent_s:.1f} s")
            pause_s = self._replica.driver.longest_pause_s
            if pause_s > self._told_pause_s:
                self._told_pause_s = pause_s
                _tell(longest_pause_s=pause_s)

    def _hand_over(self, reason: str) -> None:
        target = self._replica.driver.hand_over()
        if target is not None:
            log.warning("leadership_handed_over", target=target, reason=reason)


def _tell(**fields: str | float | None) -> None:
    with contextlib.suppress(BrokenPipeError):  # the parent is gone, and stdin says so too
        os.write(sys.stdout.fileno(), json.dumps(fields).encode() + b"\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

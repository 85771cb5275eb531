"""The process of one replica of a test group: ``python -m pdd.replication.replica_main SETTINGS``.

`bench` and `drill` start it. A process of its own, so that nothing else's pauses look like a dead
leader. SETTINGS is a JSON object: node, addresses, cluster_id, data_dir, is_new_cluster, and the
fields of `DriverSettings`. Writes ``{"node", "role", "term"}`` to ``NODE-roles.jsonl`` beside its
data_dir, one line for each change, unbuffered: kill -9 loses none, and the drill counts leaders.
SIGTERM stops it; it dies with its parent.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import json
import os
import signal
import sys
from pathlib import Path

import uvloop

from pdd.core.errors import PddError
from pdd.raft.state import Role
from pdd.raft.values import NodeId
from pdd.replication.driver import DriverSettings
from pdd.replication.kv_machine import KvMachine
from pdd.replication.replica import Replica, ReplicaSettings
from pdd.tls.light_io import use_light_io

ROLES_FILE = "roles.jsonl"
_PR_SET_PDEATHSIG = 1


SWITCH_INTERVAL_S = 0.0005
"""How long the disk's thread waits for a busy loop, and the other way round. Python's 5 ms would be
added to every commit."""
GC_THRESHOLDS = (20_000, 20, 100)


def main(text: str) -> int:
    die_with_parent()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    use_light_io()
    try:
        uvloop.run(_serve(json.loads(text)))
    except PddError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    return 0


async def _serve(fields: dict[str, object]) -> None:
    settings = settings_from(fields)
    settings.data_dir.mkdir(parents=True, exist_ok=True)
    roles = os.open(
        settings.data_dir.parent / f"{settings.node}-{ROLES_FILE}",
        os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC,
        0o600,
    )

    def note_role(role: Role, term: int) -> None:
        line = json.dumps({"node": settings.node, "role": role, "term": term})
        os.write(roles, line.encode() + b"\n")

    machine = KvMachine()
    replica = Replica(settings, machine, machine.query, on_role=note_role)
    # What was built so far stays: later collections need not look at it again. The log and the
    # state hold no cycles, so full collections, which pause everything, may be rare.
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, replica.stop)
    await replica.run()


def settings_from(fields: dict[str, object]) -> ReplicaSettings:
    addresses = fields.pop("addresses")
    assert isinstance(addresses, dict)
    return ReplicaSettings(
        node=NodeId(str(fields.pop("node"))),
        addresses={NodeId(name): str(address) for name, address in addresses.items()},
        cluster_id=str(fields.pop("cluster_id")),
        data_dir=Path(str(fields.pop("data_dir"))),
        is_new_cluster=bool(fields.pop("is_new_cluster")),
        driver=DriverSettings(**fields),  # type: ignore[arg-type]  # what is left
    )


def die_with_parent() -> None:
    """Even SIGKILL to the parent leaves no replica behind."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

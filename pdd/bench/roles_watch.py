"""Follows the roles of a running cluster in a thread: pools over time, and every switch."""

import contextlib
import threading
import time
from typing import Any, Self

from pdd.core.errors import NodeUnavailable
from pdd.daemon.cluster_admin import ClusterAdmin

_POLL_S = 0.5
_JOIN_LIMIT_S = 10.0


class RoleWatch:
    """A context. Times are seconds since ``origin_s``, on CLOCK_MONOTONIC; set it when the load
    begins. At a poll that gets no answer a sample is missing, no more."""

    def __init__(self, admin: ClusterAdmin) -> None:
        self._admin = admin
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="role watch", daemon=True)
        self._samples: list[tuple[float, Any]] = []
        self._began_s = time.monotonic()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(timeout=_JOIN_LIMIT_S)

    def pools(self, *, origin_s: float) -> list[dict[str, Any]]:
        """Nodes and pressure of each duty at each poll."""
        rows = []
        for at_s, roles in self._samples:
            row: dict[str, Any] = {"at_s": round(at_s - origin_s, 2)}
            for pool in roles.pools:
                duties = [node.role for node in roles.nodes if not node.next_role]
                row[pool.role] = {
                    "nodes": duties.count(pool.role),
                    "load_nodes": round(pool.load_nodes, 3),
                    "pressure": round(min(pool.pressure, 99.0), 3),
                    "wanted": pool.wanted_count,
                }
            row["changing"] = sum(bool(node.next_role) for node in roles.nodes)
            rows.append(row)
        return rows

    def switches(self, *, origin_s: float) -> list[dict[str, Any]]:
        """What has happened since this was begun, oldest first."""
        if not self._samples:
            return []
        at_s, roles = self._samples[-1]
        return [
            {
                "at_s": round(at_s - switch.age_s - origin_s, 2),
                "node": switch.node,
                "source": switch.source,
                "target": switch.target,
                "by": switch.by,
                "stage": switch.stage,
                "reason": switch.reason,
                "held": switch.held_request_count,
                "duration_s": round(switch.duration_s, 2),
            }
            for switch in roles.switches
            if at_s - switch.age_s >= self._began_s
        ]

    def _follow(self) -> None:
        while True:
            # A scheduler that is busy or gone: whoever measures will see that.
            with contextlib.suppress(NodeUnavailable):
                self._samples.append((time.monotonic(), self._admin.roles()))
            if self._over.wait(_POLL_S):
                return

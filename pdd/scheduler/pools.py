"""The members, and what decisions read of them: one column per node, one row per quantity.

A decision looks at every node that takes work. Reading each node's attributes would cost it some
microseconds per node; as one table all nodes cost about as much as a few. It is a copy of what
nodes and their leases say, never a count of its own: a node whose leases change notes itself, and
before the next decision the columns of those that did are copied anew. ``Nodes.check`` compares all
with a fresh copy.
"""

from collections.abc import Iterable

import numpy as np

from pdd.core.identity import Forking, NodeName, Role
from pdd.scheduler.nodes import Changes, Node
from pdd.scheduler.policy.parts import (
    FORKS_APART,
    FORKS_NOT,
    FORKS_SHARED,
    LOAD,
    MAY_TAKE,
    PREFILL_PER_S,
    ROW_COUNT,
    USABLE,
)

_CHANGING = slice(LOAD, USABLE)
_FIXED = slice(USABLE, PREFILL_PER_S)
_FORKS = {
    Forking.NONE: FORKS_NOT,
    Forking.APART: FORKS_APART,
    Forking.SHARED: FORKS_SHARED,
}


class Pool:
    """The nodes of one role that take work, in order of joining: ``first`` and the following
    columns of the table are theirs."""

    def __init__(self, nodes: tuple[Node, ...], *, first: int) -> None:
        self.nodes, self.first = nodes, first
        self.names: tuple[NodeName, ...] = tuple(node.name for node in nodes)


class Pools:
    """Those that take work, prefill nodes first. ``table``: ``(row, node)``, rows as ``parts``
    names them, as they are before any question. ``index``: column by name."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        by_role: dict[Role, list[Node]] = {Role.PREFILL: [], Role.DECODE: []}
        for node in nodes:
            by_role[node.role].append(node)
        prefills, decodes = (tuple(of_role) for of_role in by_role.values())
        self.nodes = prefills + decodes
        self.names = tuple(node.name for node in self.nodes)
        self.index = {name: position for position, name in enumerate(self.names)}
        self.table = np.zeros((ROW_COUNT, len(self.nodes)))
        self.table[MAY_TAKE] = np.inf
        self._cells = self.table[_CHANGING].T
        for position, node in enumerate(self.nodes):
            self._cells[position] = _changing(node)
            self.table[_FIXED, position] = (
                node.usable_block_count,
                node.max_num_seqs,
                node.token_count_max(),
                node.block_size,
                node.block_bytes,
                _FORKS[node.forking],
                node.pulls,
            )
        self.prefill = Pool(prefills, first=0)
        self.decode = Pool(decodes, first=len(prefills))

    def copy_node(self, node: Node) -> None:
        """Its leases have changed; one that is not here has no column."""
        position = self.index.get(node.name)
        if position is not None and self.nodes[position] is node:
            self._cells[position] = _changing(node)


def _changing(node: Node) -> tuple[float, ...]:
    sums = node.sums
    unpromised = node.usable_block_count - sums.leased
    return (
        max(1.0 - unpromised / node.usable_block_count, sums.sequences / node.max_num_seqs),
        unpromised,
        sums.sequences,
        sums.claimed - sums.leased,
        len(node.long),
        sums.long_blocks,
        sums.queued,
        sums.worked_until_s,
        sums.inbound_bytes,
    )


class Nodes(dict[NodeName, Node]):
    """Members and lost ones by name, in order of joining, with what decisions read of them."""

    def __init__(self) -> None:
        super().__init__()
        self._changes = Changes()
        self._pools = Pools(())

    def __setitem__(self, name: NodeName, node: Node) -> None:
        super().__setitem__(name, node)
        node.changes = self._changes
        self._changes.are_places = True

    def __delitem__(self, name: NodeName) -> None:
        super().__delitem__(name)
        self._changes.are_places = True

    def pools(self) -> Pools:
        """As its nodes are now."""
        changes = self._changes
        if changes.are_places:
            self._pools = self._fresh_pools()
            changes.are_places = False
            changes.by_id.clear()
        elif changes.by_id:
            for node in changes.by_id.values():
                self._pools.copy_node(node)
            changes.by_id.clear()
        return self._pools

    def _fresh_pools(self) -> Pools:
        return Pools(node for node in self.values() if node.takes_work)

    def check(self) -> None:
        """What stands in the table is what the nodes say."""
        pools, fresh = self.pools(), self._fresh_pools()
        assert list(map(id, pools.nodes)) == list(map(id, fresh.nodes)), pools.names
        assert np.array_equal(pools.table, fresh.table), "the table differs from the nodes"

"""The members, and what decisions read of them: one column per quantity, one pool per role.

A decision looks at every node that takes work. Reading each node's attributes would cost it some
microseconds per node; as columns all nodes of a role cost about as much as a few. A column is a
copy of what nodes and their leases say, never a count of its own: a node whose leases change notes
itself, and before the next decision the rows of those that did are copied anew. ``Nodes.check``
compares all with a fresh copy.
"""

from collections.abc import Iterable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from pdd.core.identity import NodeName, Role
from pdd.scheduler.nodes import Changes, Node

Column: TypeAlias = npt.NDArray[np.float64]
"""``(node count,)``; whole numbers are exact up to 2**53."""

# Rows of ``Pool.state``. Those up to LOAD are inputs of a decision as they are.
UNPROMISED, SEQUENCES, LOAD = 0, 1, 2
GROWTH, LONG_COUNT, LONG_BLOCKS, QUEUED, WORKED_UNTIL, INBOUND_BYTES = 3, 4, 5, 6, 7, 8
USABLE, SEQUENCES_MAX, TOKENS_MAX, BLOCK_TOKENS, BLOCK_BYTES = 9, 10, 11, 12, 13
_CHANGING_COUNT = 9


class Pool:
    """The nodes of one role that take work, in order of joining.

    ``state``: ``(14, node count)``, rows as named above. ``block_size``: in tokens, where it is
    the same everywhere, else 0.
    """

    def __init__(self, nodes: Iterable[Node]) -> None:
        self.nodes = tuple(nodes)
        self.names: tuple[NodeName, ...] = tuple(node.name for node in self.nodes)
        self.index = {name: position for position, name in enumerate(self.names)}
        sizes = {node.block_size for node in self.nodes}
        self.block_size = sizes.pop() if len(sizes) == 1 else 0
        self.state = np.empty((14, len(self.nodes)))
        self._cells = self.state[:_CHANGING_COUNT].T
        for position, node in enumerate(self.nodes):
            self._cells[position] = _changing(node)
            self.state[_CHANGING_COUNT:, position] = (
                node.usable_block_count,
                node.max_num_seqs,
                node.token_count_max(),
                node.block_size,
                node.block_bytes,
            )

    def copy_node(self, node: Node) -> None:
        """Its leases have changed; one that is not here has no row."""
        position = self.index.get(node.name)
        if position is not None and self.nodes[position] is node:
            self._cells[position] = _changing(node)


def _changing(node: Node) -> tuple[float, ...]:
    sums = node.sums
    unpromised = node.usable_block_count - sums.leased
    return (
        unpromised,
        sums.sequences,
        max(1.0 - unpromised / node.usable_block_count, sums.sequences / node.max_num_seqs),
        sums.claimed - sums.leased,
        len(node.long),
        sums.long_blocks,
        sums.queued,
        sums.worked_until_s,
        sums.inbound_bytes,
    )


class Nodes(dict[NodeName, Node]):
    """Members and lost ones by name, in order of joining, with a pool for each role."""

    def __init__(self) -> None:
        super().__init__()
        self._changes = Changes()
        self._pools: dict[Role, Pool] = {}

    def __setitem__(self, name: NodeName, node: Node) -> None:
        super().__setitem__(name, node)
        node.changes = self._changes
        self._changes.are_places = True

    def __delitem__(self, name: NodeName) -> None:
        super().__delitem__(name)
        self._changes.are_places = True

    def pool(self, role: Role) -> Pool:
        """As its nodes are now."""
        changes = self._changes
        if changes.are_places:
            self._pools = self._fresh_pools()
            changes.are_places = False
            changes.by_id.clear()
        elif changes.by_id:
            for node in changes.by_id.values():
                self._pools[node.role].copy_node(node)
            changes.by_id.clear()
        return self._pools[role]

    def _fresh_pools(self) -> dict[Role, Pool]:
        ready = [node for node in self.values() if node.takes_work]
        return {role: Pool(node for node in ready if node.role is role) for role in Role}

    def check(self) -> None:
        """What stands in the columns is what the nodes say."""
        for role, fresh in self._fresh_pools().items():
            pool = self.pool(role)
            assert list(map(id, pool.nodes)) == list(map(id, fresh.nodes)), f"{role}: {pool.names}"
            assert pool.block_size == fresh.block_size, role
            assert np.array_equal(pool.state, fresh.state), f"{role}: columns differ from nodes"

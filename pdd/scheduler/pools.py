"""The members, and what decisions read of them: one column per quantity, one pool per role.

A decision looks at every node that takes work. Reading each node's attributes would cost it some
microseconds per node; as columns all nodes of a role cost about as much as a few. A column is a
copy of what nodes and their leases say, never a count of its own: every write to a node's attribute
notes the node, and before the next decision the rows of those that were noted are copied anew.
``Nodes.check`` compares all with a fresh copy.
"""

from collections.abc import Iterable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from pdd.core.identity import NodeName, Role
from pdd.scheduler.nodes import Node

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
        """It has changed."""
        self._cells[self.index[node.name]] = _changing(node)


def _changing(node: Node) -> tuple[float, ...]:
    unpromised, sequences = node.unleased_block_count(), node.sequence_count
    return (
        unpromised,
        sequences,
        max(1.0 - unpromised / node.usable_block_count, sequences / node.max_num_seqs),
        node.growth_block_count(),
        len(node.long),
        node.long_block_count(),
        node.queued_token_count,
        node.worked_until_s,
        node.inbound_size_bytes,
    )


class Nodes(dict[NodeName, Node]):
    """Members and lost ones by name, in order of joining, with a pool for each role."""

    def __init__(self) -> None:
        super().__init__()
        self._noted: list[Node] = []
        self._are_others = False
        """Nodes have come or gone since the pools were made."""
        self._pools = {role: Pool(()) for role in Role}

    def __setitem__(self, name: NodeName, node: Node) -> None:
        super().__setitem__(name, node)
        node.note_in(self._noted)
        self._are_others = True

    def __delitem__(self, name: NodeName) -> None:
        super().__delitem__(name)
        self._are_others = True

    def pool(self, role: Role) -> Pool:
        """As its nodes are now."""
        if self._noted or self._are_others:
            self._refresh()
        return self._pools[role]

    def _refresh(self) -> None:
        noted = [node for node in self._noted if self.get(node.name) is node]
        for node in self._noted:
            node.note_again()
        self._noted.clear()
        if self._are_others or any(not self._is_in_place(node) for node in noted):
            self._pools = self._fresh_pools()
            self._are_others = False
            return
        for node in noted:
            pool = self._pools[node.role]
            if node.name in pool.index:
                pool.copy_node(node)

    def _is_in_place(self, node: Node) -> bool:
        return all(
            (node.name in pool.index) == (node.takes_work and node.role is role)
            for role, pool in self._pools.items()
        )

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

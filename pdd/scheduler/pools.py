"""The members, and what decisions read of them: one column per node, one row per quantity.

A decision looks at every node that takes work. Reading each node's attributes would cost it some
microseconds per node; as one table all nodes cost about as much as a few. It is a copy of what
nodes and their leases say, never a count of its own: a node whose leases change notes itself, and
before the next decision the columns of those that did are copied anew. ``Nodes.check`` compares all
with a fresh copy.
"""

from collections.abc import Iterable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from pdd.core.identity import NodeName, Role
from pdd.scheduler.nodes import Changes, Node

Column: TypeAlias = npt.NDArray[np.float64]
"""``(node count,)``, one number per node; whole numbers are exact up to 2**53."""
Table: TypeAlias = npt.NDArray[np.float64]
"""``(row, node)``."""

# Rows of ``Pools.table``. Those below INPUT_COUNT are what a decision rests on; the first of them
# depend on the question: each decision fills them in, in a copy of its own.
CACHED, REMAINDER, COMPLETION_S, BLOCKS, CLAIM, TRANSFER_S, INBOUND_S = range(7)
UNPROMISED, SEQUENCES, LOAD = range(7, 10)
INPUT_COUNT = 10
GROWTH, LONG_COUNT, LONG_BLOCKS, QUEUED, WORKED_UNTIL, INBOUND_BYTES = range(10, 16)
USABLE, SEQUENCES_MAX, TOKENS_MAX, BLOCK_TOKENS, BLOCK_BYTES = range(16, 21)
_ROW_COUNT = 21
_CHANGING = slice(UNPROMISED, USABLE)


_BOUND_CHANGES = 64


class Bounds:
    """What holds on each node of a pool, for those who need not look at every one: at least so many
    ``unpromised`` blocks, free ``sequences`` and ``tokens`` in one sequence, at most so many
    ``usable`` blocks.

    True at any time, if not always tight: what a node has less lowers them at once, what it has
    more is seen after at most ``_BOUND_CHANGES`` changes.
    """

    __slots__ = ("_change_count", "_state", "sequences", "tokens", "unpromised", "usable")

    def __init__(self, state: Table) -> None:
        self._state, self._change_count = state, 0
        self.tokens = float(state[TOKENS_MAX].min(initial=np.inf))
        self.usable = float(state[USABLE].max(initial=0.0))
        self._count()

    def _count(self) -> None:
        state = self._state
        self.unpromised = float(state[UNPROMISED].min(initial=np.inf))
        self.sequences = float((state[SEQUENCES_MAX] - state[SEQUENCES]).min(initial=np.inf))

    def changed(self, *, unpromised: float, sequences: float) -> None:
        """A node has so many now."""
        self._change_count += 1
        if self._change_count >= _BOUND_CHANGES:
            self._change_count = 0
            self._count()
            return
        if unpromised < self.unpromised:
            self.unpromised = unpromised
        if sequences < self.sequences:
            self.sequences = sequences


class Pool:
    """The nodes of one role that take work, in order of joining.

    ``columns``: theirs in the table; ``state`` is the table's part. ``block_size``: in tokens,
    where it is the same everywhere, else 0.
    """

    def __init__(self, nodes: tuple[Node, ...], table: Table, *, start: int) -> None:
        self.nodes = nodes
        self.names: tuple[NodeName, ...] = tuple(node.name for node in nodes)
        self.index = {name: position for position, name in enumerate(self.names)}
        self.columns = slice(start, start + len(nodes))
        self.state = table[:, self.columns]
        self.bounds = Bounds(self.state)
        sizes = {node.block_size for node in nodes}
        self.block_size = sizes.pop() if len(sizes) == 1 else 0


class Pools:
    """Those that take work, prefill nodes first. ``table``: ``(row, node)``, rows as named above,
    0 where they depend on the question."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        by_role: dict[Role, list[Node]] = {Role.PREFILL: [], Role.DECODE: []}
        for node in nodes:
            by_role[node.role].append(node)
        prefills, decodes = (tuple(of_role) for of_role in by_role.values())
        self.nodes = prefills + decodes
        self.names = tuple(node.name for node in self.nodes)
        self.index = {name: position for position, name in enumerate(self.names)}
        self.table = np.zeros((_ROW_COUNT, len(self.nodes)))
        self._cells = self.table[_CHANGING].T
        for position, node in enumerate(self.nodes):
            self._cells[position] = _changing(node)
            self.table[USABLE:, position] = (
                node.usable_block_count,
                node.max_num_seqs,
                node.token_count_max(),
                node.block_size,
                node.block_bytes,
            )
        self.prefill = Pool(prefills, self.table, start=0)
        self.decode = Pool(decodes, self.table, start=len(prefills))

    def copy_node(self, node: Node) -> None:
        """Its leases have changed; one that is not here has no column."""
        position = self.index.get(node.name)
        if position is None or self.nodes[position] is not node:
            return
        self._cells[position] = cells = _changing(node)
        pool = self.prefill if position < self.decode.columns.start else self.decode
        pool.bounds.changed(unpromised=cells[0], sequences=node.max_num_seqs - cells[1])


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
        for pool, other in ((pools.prefill, fresh.prefill), (pools.decode, fresh.decode)):
            assert (pool.columns, pool.block_size) == (other.columns, other.block_size)
            low, real = pool.bounds, other.bounds
            assert (low.tokens, low.usable) == (real.tokens, real.usable)
            assert low.unpromised <= real.unpromised, "a bound is too high"
            assert low.sequences <= real.sequences, "a bound is too high"

"""The directory against a dumb model of dicts and sets, under random histories.

Nodes join, restart, clear, lose deltas, repeat them, send snapshots whole or broken, leave. After
every entry all prefixes and holders agree with the model, a second replica has the same hash, and a
third, restored from a snapshot, carries on from there alike.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from pdd.directory.entries import (
    BlockDelta,
    DirectoryEntry,
    NodeJoined,
    NodeLeft,
    Operation,
    SnapshotPart,
)
from pdd.directory.keys import BlockKey
from pdd.directory.machine import DirectoryMachine, read_result
from pdd.directory.status import Status

NODES = [f"node-{number}" for number in range(5)]
# Small, so that nodes share blocks; the last six have 16 zero bits where the table looks first.
KEYS = [BlockKey(bytes([number]) * 16) for number in range(1, 30)] + [
    BlockKey(bytes([number]) * 14 + b"\0\0") for number in range(1, 7)
]
CHAINS = [KEYS[start : start + 12] for start in range(0, len(KEYS), 5)]
keys_strategy = st.lists(st.sampled_from(KEYS), max_size=15)
node_strategy = st.sampled_from(NODES)


@dataclass
class ModelNode:
    epoch: int
    next_sequence: int = 1
    has_gap: bool = False
    held: set[bytes] = field(default_factory=set)


class DirectoryHistory(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.index = 0
        self.replicas = [DirectoryMachine(max_key_count=200) for _ in range(2)]
        self.model: dict[str, ModelNode] = {}
        self.epochs = dict.fromkeys(NODES, 0)

    def apply(self, *operations: Operation) -> list[Status]:
        self.index += 1
        data = DirectoryEntry(operations=operations).encode()
        results = [replica.apply(self.index, data) for replica in self.replicas]
        assert len(set(results)) == 1
        return read_result(results[0])

    @rule(node=node_strategy)
    def join_or_restart(self, node: str) -> None:
        self.epochs[node] += 1
        joined = NodeJoined(
            node=node, uuid=f"u-{node}", boot_epoch=self.epochs[node], block_count=100
        )
        assert self.apply(joined, joined) == [Status.APPLIED, Status.DUPLICATE]
        self.model[node] = ModelNode(epoch=self.epochs[node])

    @rule(
        pairs=st.lists(
            st.tuples(node_strategy, keys_strategy, keys_strategy, st.booleans()), max_size=8
        ),
        lost=st.sampled_from([0, 0, 0, 1, 3]),
        is_former_life=st.booleans(),
    )
    def deltas(
        self,
        pairs: list[tuple[str, list[BlockKey], list[BlockKey], bool]],
        lost: int,
        is_former_life: bool,
    ) -> None:
        operations, expected = [], []
        for node, removed, stored, is_cleared in pairs:
            model = self.model.get(node)
            is_stale = model is not None and is_former_life and len(stored) % 5 == 0
            sequence = 1 if model is None else model.next_sequence + lost
            operations.append(
                BlockDelta(
                    node=node,
                    boot_epoch=1 if model is None else model.epoch - is_stale,
                    first_sequence=sequence,
                    last_sequence=sequence + 1,
                    is_cleared=is_cleared and len(removed) % 4 == 0,
                    removed=b"".join(removed),
                    stored=b"".join(stored),
                )
            )
            if model is None or is_stale:
                expected.append(Status.UNKNOWN if model is None else Status.STALE)
                continue
            model.has_gap |= lost > 0
            model.next_sequence = sequence + 2
            if operations[-1].is_cleared:
                model.held.clear()
                model.has_gap = False
            model.held -= set(removed)
            model.held |= set(stored)
            expected.append(Status.GAP if model.has_gap else Status.APPLIED)
        assert self.apply(*operations) == expected

    @rule(node=node_strategy, keys=keys_strategy)
    def repeat_of_a_known_delta(self, node: str, keys: list[BlockKey]) -> None:
        model = self.model.get(node)
        if model is None or model.next_sequence == 1:
            return
        known = BlockDelta(
            node=node,
            boot_epoch=model.epoch,
            first_sequence=model.next_sequence - 1,
            last_sequence=model.next_sequence - 1,
            is_cleared=True,
            stored=b"".join(keys),
        )
        assert self.apply(known) == [Status.DUPLICATE]

    @rule(
        node=node_strategy,
        slices=st.lists(keys_strategy, min_size=1, max_size=3),
        ahead=st.integers(0, 2),
        fault=st.sampled_from(["none", "none", "part missing", "delta between", "together"]),
    )
    def snapshot_of_a_node(
        self, node: str, slices: list[list[BlockKey]], ahead: int, fault: str
    ) -> None:
        model = self.model.get(node)
        if model is None:
            return
        parts = [
            SnapshotPart(
                node=node,
                boot_epoch=model.epoch,
                as_of_sequence=model.next_sequence - 1 + ahead,
                part_index=index,
                part_count=len(slices),
                keys=b"".join(keys),
            )
            for index, keys in enumerate(slices)
        ]
        if fault == "part missing":
            del parts[len(parts) // 2]
        elif fault == "delta between":
            delta = BlockDelta(
                node=node,
                boot_epoch=model.epoch,
                first_sequence=model.next_sequence,
                last_sequence=model.next_sequence + ahead,
            )
            parts_then = parts[1:]
            self.apply(parts[0])
            if not parts_then:  # it was whole already
                model.held, model.has_gap = set(slices[0]), False
                model.next_sequence += ahead
            self.apply(delta)
            if parts_then:
                model.next_sequence += ahead + 1
                model.has_gap = True
                assert self.apply(*parts_then)[-1] is not Status.APPLIED
            else:
                model.next_sequence = max(model.next_sequence, delta.last_sequence + 1)
            return
        if fault == "together":
            self.apply(*parts)
        else:
            for part in parts:
                self.apply(part)
        if fault != "part missing":
            model.held, model.has_gap = {key for keys in slices for key in keys}, False
            model.next_sequence += ahead
        elif len(slices) > 1:
            model.has_gap = True
            self.settle_gap(node, model)

    def settle_gap(self, node: str, model: ModelNode) -> None:
        """A broken snapshot leaves either a gap or a snapshot that never ends; a restart of the
        snapshot, broken in its first part, makes both a gap."""
        broken = SnapshotPart(
            node=node,
            boot_epoch=model.epoch,
            as_of_sequence=model.next_sequence - 1,
            part_index=1,
            part_count=9,
            keys=b"",
        )
        first = SnapshotPart(
            node=node,
            boot_epoch=model.epoch,
            as_of_sequence=model.next_sequence - 1,
            part_index=0,
            part_count=8,
            keys=KEYS[0],
        )
        assert self.apply(first, broken) == [Status.APPLIED, Status.SNAPSHOT_DROPPED]
        assert node in self.replicas[0].nodes_wanting_snapshot()

    @rule(node=node_strategy)
    def leave(self, node: str) -> None:
        model = self.model.pop(node, None)
        status = self.apply(NodeLeft(node=node, boot_epoch=self.epochs[node]))
        assert status == [Status.UNKNOWN if model is None else Status.APPLIED]

    @rule()
    def a_replica_is_restored_from_the_other_ones_snapshot(self) -> None:
        fresh = DirectoryMachine(max_key_count=200)
        fresh.restore(self.replicas[0].snapshot())
        assert fresh.snapshot() == self.replicas[0].snapshot()
        self.replicas[1] = fresh

    @invariant()
    def all_answers_agree_with_the_model(self) -> None:
        assert len({replica.state_hash() for replica in self.replicas}) == 1
        for replica in self.replicas:
            for chain in CHAINS:
                lengths = {node: prefix_of(chain, model.held) for node, model in self.model.items()}
                match = replica.longest_prefixes(b"".join(chain))
                assert match.by_node == {node: held for node, held in lengths.items() if held}
            for key in KEYS[::4]:
                holders = sorted(node for node, model in self.model.items() if key in model.held)
                assert list(replica.holders(key)) == holders
            for node, model in self.model.items():
                assert replica.held_count(node) == len(model.held)
                assert replica.next_sequence(node) == model.next_sequence
            gaps = {node for node, model in self.model.items() if model.has_gap}
            assert set(replica.nodes_wanting_snapshot()) == gaps


def prefix_of(chain: list[BlockKey], held: set[bytes]) -> int:
    count = 0
    while count < len(chain) and chain[count] in held:
        count += 1
    return count


TestDirectoryHistory = DirectoryHistory.TestCase
TestDirectoryHistory.settings = settings(max_examples=60, stateful_step_count=30)

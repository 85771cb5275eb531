"""The same entries give the same bytes in two processes that hash strings differently, and bytes
that are no entry never do more than say so."""

import os
import random
import subprocess
import sys
from pathlib import Path

import hypothesis.strategies as st
import msgpack
from hypothesis import given

from pdd.directory.entries import (
    BlockDelta,
    DirectoryEntry,
    NodeJoined,
    NodeLeft,
    Operation,
    SnapshotPart,
)
from pdd.directory.keys import ChainScope, block_keys
from pdd.directory.machine import DirectoryMachine

ROOT = Path(__file__).parents[2]
SEEDS = (1, 2, 3)


def history(seed: int) -> list[bytes]:
    """Entries of a small cell: real chains, restarts, gaps, snapshots, faults."""
    rng = random.Random(seed)
    scope = ChainScope(block_size_tokens=2, model="m", kv_layout="l")
    chains = [
        block_keys(scope.root(), [rng.randrange(3) for _ in range(40)], block_size_tokens=2)
        for _ in range(30)
    ]
    nodes = {f"node-{number}": [1, 1] for number in range(12)}  # epoch, next sequence

    def operation() -> Operation:
        node = rng.choice(list(nodes))
        epoch, sequence = nodes[node]
        draw = rng.random()
        if draw < 0.05:
            nodes[node] = [epoch + 1, 1]
            return NodeJoined(node=node, uuid=node, boot_epoch=epoch + 1, block_count=100)
        if draw < 0.06:
            return NodeLeft(node=node, boot_epoch=epoch)
        if draw < 0.1:  # late word of a former life
            return BlockDelta(
                node=node,
                boot_epoch=epoch - 1,
                first_sequence=sequence,
                last_sequence=sequence,
                stored=rng.choice(chains),
            )
        if draw < 0.15:
            return SnapshotPart(
                node=node,
                boot_epoch=epoch,
                as_of_sequence=sequence - 1,
                part_index=rng.randrange(2),
                part_count=2,
                keys=rng.choice(chains),
            )
        first = max(1, sequence + rng.choice([0, 0, 0, 0, 2, -1]))
        nodes[node][1] = max(sequence, first + 1)
        return BlockDelta(
            node=node,
            boot_epoch=epoch,
            first_sequence=first,
            last_sequence=first,
            is_cleared=rng.random() < 0.03,
            removed=rng.choice(chains)[-16 * rng.randrange(1, 15) :],
            stored=rng.choice(chains)[: 16 * rng.randrange(20)],
        )

    entries = [
        DirectoryEntry(
            operations=tuple(operation() for _ in range(rng.randrange(1, 20))),
        ).encode()
        for _ in range(150)
    ]
    joins = tuple(NodeJoined(node=node, uuid=node, boot_epoch=1, block_count=100) for node in nodes)
    return [DirectoryEntry(operations=joins).encode(), *entries, b"\xc1"]


def trace(seed: int) -> str:
    """All answers, and the state after every entry."""
    machine = DirectoryMachine(max_key_count=250)
    lines = []
    for index, entry in enumerate(history(seed), start=1):
        result = machine.apply(index, entry)
        lines.append(f"{index} {result.hex()} {machine.state_hash().hex()}")
    lines.append(machine.snapshot().hex())
    return "\n".join(lines)


def test_two_processes_with_different_hash_seeds_agree_on_every_byte() -> None:
    outputs = []
    for hash_seed in ("1", "2"):
        code = (
            "import importlib.util as u\n"
            f"spec = u.spec_from_file_location('history', {__file__!r})\n"
            "module = u.module_from_spec(spec); spec.loader.exec_module(module)\n"
            f"print(*(module.trace(seed) for seed in {SEEDS}), sep='\\n')"
        )
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)},
        )
        outputs.append(done.stdout.splitlines())
    assert len(outputs[0]) > 150 * len(SEEDS)
    for line, (first, second) in enumerate(zip(*outputs, strict=True)):
        assert first == second, f"line {line} differs (seeds {SEEDS})"


def test_a_history_reaches_every_kind_of_answer() -> None:
    """Else the test above would say less than it seems to."""
    machine = DirectoryMachine(max_key_count=250)
    statuses = {
        status
        for index, entry in enumerate(history(1), start=1)
        for status in msgpack.unpackb(machine.apply(index, entry))[0]
    }
    assert statuses >= {0, 1, 2, 3, 4, 6}, statuses


anything = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 70) | st.binary(max_size=40) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=8) | st.dictionaries(st.text(max_size=2), inner),
    max_leaves=12,
)


@given(
    st.binary(max_size=60)
    | st.builds(lambda value: msgpack.packb([1, value]), anything)
    | st.builds(
        lambda kind, rest: msgpack.packb([1, [[kind, *rest]]]),
        st.integers(0, 5),
        st.lists(anything, max_size=8),
    )
)
def test_no_bytes_make_apply_raise(data: bytes) -> None:
    machine = DirectoryMachine(max_key_count=50)
    join = NodeJoined(node="", uuid="", boot_epoch=0, block_count=9)
    machine.apply(1, DirectoryEntry(operations=(join,)).encode())
    statuses, fault = msgpack.unpackb(machine.apply(2, data))
    assert isinstance(statuses, list)
    assert fault is None or fault.startswith("entry 2: ")
    machine.snapshot()

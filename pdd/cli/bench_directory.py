"""``pdd bench directory``: memory and speed of the block directory at given sizes."""

import random
import time
from typing import TYPE_CHECKING, Any

import click

from pdd.cli.options import output_option
from pdd.cli.output import print_json, print_table, say

if TYPE_CHECKING:
    from pdd.directory.machine import DirectoryMachine

_CHAIN_BLOCKS = 128
_CHAIN_HIT_BLOCKS = 77  # 60 %
_COPY_WEIGHTS = {1: 0.6, 2: 0.3, 3: 0.1}  # holders of a chain: 1.5 on average
_CHAINS_PER_ENTRY = 96
_LOOKUPS = 3000
_DECISIONS = 2000
_CHURN_ENTRIES = 40
_CHURN_BLOCKS_PER_NODE = 7  # stored, and as many removed: 700,000/s in entries of 20 ms
_COLUMNS = ("BLOCKS", "NODES", "BYTES/KEY", "LOOKUP p50 us", "p99 us", "EVENTS/S", "LONGEST APPLY")


def add_to(group: click.Group) -> None:
    """Register the command under ``pdd bench``."""
    group.add_command(directory)


@click.command("directory")
@click.option(
    "--blocks",
    multiple=True,
    type=click.IntRange(min=10_000, max=100_000_000),
    metavar="N",
    help="Distinct blocks; may be given several times. Default: 1, 3 and 10 million. "
    "10 million take about 0.6 GB and half a minute.",
)
@click.option(
    "--nodes", default=1000, show_default=True, type=click.IntRange(8, 4000), help="Nodes."
)
@click.option(
    "--decision-nodes",
    default=8,
    show_default=True,
    type=click.IntRange(2, 1000),
    help="Nodes among which decisions choose.",
)
@click.option("--seed", default=1, show_default=True, help="Of the keys and of who holds them.")
@output_option
def directory(
    blocks: tuple[int, ...], nodes: int, decision_nodes: int, seed: int, output: str
) -> None:
    """Memory and speed of the block directory.

    Chains of 128 blocks, each on 1.5 nodes on average, are applied as log entries (decoding
    included); then look-ups of a 128-block chain of which 60 % is held, over all nodes; then
    entries in which every node stores and removes blocks, as events_per_s. bytes_per_key is what
    the process grew by. Each size runs in a process of its own.

    Then routing decisions on prompts of 2,048 tokens, of which 60 % is held, over --decision-nodes
    nodes: hashing, look-up, placement and record, in CPU time.
    """
    import multiprocessing
    from dataclasses import asdict

    from pdd.bench.decisions import measure_decisions

    rows = []
    for block_count in blocks or (1_000_000, 3_000_000, 10_000_000):
        say(f"{block_count:,} blocks on {nodes} nodes, seed {seed}")
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            rows.append(pool.apply(measure, (block_count, nodes, seed)))
    decisions = asdict(
        measure_decisions(node_count=decision_nodes, decision_count=_DECISIONS, seed=seed)
    )
    if output == "json":
        print_json({"rows": rows, "decision_nodes": decision_nodes, **decisions})
        return
    print_table(
        _COLUMNS,
        [
            (
                f"{row['blocks']:,}",
                row["nodes"],
                f"{row['bytes_per_key']:.1f}",
                f"{row['lookup_us_p50']:.1f}",
                f"{row['lookup_us_p99']:.1f}",
                f"{row['events_per_s']:,.0f}",
                f"{row['apply_ms_max']:.0f} ms",
            )
            for row in rows
        ],
    )
    say(
        f"decisions among {decision_nodes} nodes: p50 {decisions['decision_us_p50']:.0f} us, "
        f"p99 {decisions['decision_us_p99']:.0f} us, {decisions['decisions_per_s']:,}/s on one core"
    )


def measure(block_count: int, node_count: int, seed: int) -> dict[str, Any]:
    """One row, in a process that did nothing else before."""
    from pdd.directory.machine import DirectoryMachine

    rng = random.Random(seed)  # noqa: S311  # a benchmark's load, no secret
    machine = DirectoryMachine(
        max_key_count=block_count + 4 * _CHURN_BLOCKS_PER_NODE * node_count + 65_536
    )
    load = _Load(machine, node_count=node_count, rng=rng)
    load.join()
    before_bytes = _resident_bytes()
    chains = load.fill(block_count)
    grown_bytes = _resident_bytes() - before_bytes - len(chains) * _CHAIN_BLOCKS * 16
    key_count = machine.key_count
    lookup_us = _time_lookups(machine, chains, rng)
    events_per_s = load.churn()
    return {
        "blocks": key_count,
        "nodes": node_count,
        "bytes_per_key": round(grown_bytes / key_count, 1),
        "lookup_us_p50": round(lookup_us[len(lookup_us) // 2], 1),
        "lookup_us_p99": round(lookup_us[len(lookup_us) * 99 // 100], 1),
        "events_per_s": round(events_per_s),
        "apply_ms_max": round(load.apply_s_max * 1e3, 1),
    }


class _Load:
    """Entries as a leader would write them."""

    def __init__(self, machine: "DirectoryMachine", *, node_count: int, rng: random.Random) -> None:
        self._machine = machine
        self._nodes = [f"node-{number:04}" for number in range(node_count)]
        self._sequences = [0] * node_count
        self._rng = rng
        self._index = 0
        self.apply_s_max = 0.0

    def join(self) -> None:
        from pdd.directory.entries import NodeJoined

        self._apply(
            [
                NodeJoined(node=node, uuid=node, boot_epoch=1, block_count=2**40)
                for node in self._nodes
            ]
        )
        self.apply_s_max = 0.0

    def fill(self, block_count: int) -> list[bytes]:
        """Chains until there are ``block_count`` keys; some of them, to be asked for."""
        asked: list[bytes] = []
        share = min(1.0, _LOOKUPS * _CHAIN_BLOCKS / block_count)
        while self._machine.key_count < block_count:
            operations: list[Any] = []
            for _ in range(_CHAINS_PER_ENTRY):
                chain = self._rng.randbytes(_CHAIN_BLOCKS * 16)
                [copies] = self._rng.choices(
                    list(_COPY_WEIGHTS), weights=list(_COPY_WEIGHTS.values())
                )
                holders = self._rng.sample(range(len(self._nodes)), copies)
                operations.extend(self._delta(node, stored=chain) for node in holders)
                if self._rng.random() < share:
                    asked.append(chain)
            self._apply(operations)
        return asked

    def churn(self) -> float:
        """Every node stores new blocks and removes those of two entries ago; events per second."""
        size = _CHURN_BLOCKS_PER_NODE * 16
        told: list[bytes] = []
        events, spent_s = 0, 0.0
        for turn in range(_CHURN_ENTRIES):
            told.append(self._rng.randbytes(size * len(self._nodes)))
            removed = told[turn - 2] if turn >= 2 else b""
            spent_s += self._apply(
                [
                    self._delta(
                        node,
                        removed=removed[node * size : (node + 1) * size],
                        stored=told[turn][node * size : (node + 1) * size],
                    )
                    for node in range(len(self._nodes))
                ]
            )
            events += (len(removed) + len(told[turn])) // 16
        return events / spent_s

    def _delta(self, node: int, *, stored: bytes, removed: bytes = b"") -> Any:
        from pdd.directory.entries import BlockDelta

        self._sequences[node] += 1
        return BlockDelta(
            node=self._nodes[node],
            boot_epoch=1,
            first_sequence=self._sequences[node],
            last_sequence=self._sequences[node],
            removed=removed,
            stored=stored,
        )

    def _apply(self, operations: list[Any]) -> float:
        """Seconds that applying took; encoding is the leader's work and not counted."""
        from pdd.directory.entries import DirectoryEntry

        data = DirectoryEntry(operations=tuple(operations)).encode()
        self._index += 1
        began_s = time.perf_counter()
        self._machine.apply(self._index, data)
        spent_s = time.perf_counter() - began_s
        self.apply_s_max = max(self.apply_s_max, spent_s)
        return spent_s


def _time_lookups(
    machine: "DirectoryMachine", chains: list[bytes], rng: random.Random
) -> list[float]:
    """Ascending microseconds. Every chain is asked for once: nothing of it is in a cache."""
    missing = (_CHAIN_BLOCKS - _CHAIN_HIT_BLOCKS) * 16
    spent_us = []
    for chain in chains:
        asked = chain[: _CHAIN_HIT_BLOCKS * 16] + rng.randbytes(missing)
        began_ns = time.perf_counter_ns()
        match = machine.longest_prefixes(asked)
        spent_us.append((time.perf_counter_ns() - began_ns) / 1e3)
        assert match.block_count == _CHAIN_HIT_BLOCKS, "the benchmark asked for what is held"
        assert set(match.by_node.values()) == {_CHAIN_HIT_BLOCKS}
    return sorted(spent_us)


def _resident_bytes() -> int:
    """Of this process, by the kernel (Linux)."""
    import gc
    import resource
    from pathlib import Path

    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()

"""Measures transfers between two processes on this machine: what ``pdd bench transfer`` runs.

Two ``bytes_node`` processes, scattered block ids on both sides. The clock is the target's, from
``target_open`` (so the grant's way to the source is in it) to the last verified block. Beside each
case, in the same minute: one thread copying the same blocks, and UCX's own ``ucx_perftest`` with
one hot buffer as the ceiling.
"""

import statistics
from typing import Any

from pdd.transfer.benchmark_pair import Case, pair

CASES = (
    Case(name="a", block_count=128, layer_count=1, segment_bytes=5_242_880),
    Case(name="b", block_count=128, layer_count=1, segment_bytes=1_310_720),
    Case(name="d", block_count=128, layer_count=160, segment_bytes=32_768),
    Case(name="e", block_count=128, layer_count=30, segment_bytes=98_304),
)
"""a: Llama-3-70B, 2k tokens, all layers in a block; b: one of four ranks of it; d: a, layer-major;
e: what CPU vLLM has for SmolLM2-135M."""


def measure(
    case: Case,
    *,
    transport: str = "auto",
    digest: bool = True,
    repetitions: int = 5,
    chunk_count: int = 1,
    perftest_gb_per_s: float | None = None,
) -> dict[str, Any]:
    """One row of the result: the median and the spread over ``repetitions`` after a warm-up."""
    step = -(-case.block_count // chunk_count)
    cuts = list(range(step, case.block_count, step))
    with pair(case=case, settings={"digest": digest}, transport=transport) as moved:
        moved.move(cuts=cuts)
        before_s = moved.cpu_s()
        times = [moved.move(cuts=cuts) for _ in range(repetitions)]
        cpu_s = moved.cpu_s() - before_s
        checksums_ok = moved.checksums_ok()
        copied = moved.source.do("memcpy", block_ids=moved.source_ids)["gb_per_s"]
    gb = case.size_bytes / 1e9
    return {
        "case": case.name,
        "layout": case.layout,
        "transport": transport,
        "digest": digest,
        "gb_per_s": round(gb / statistics.median(times), 3),
        "gb_per_s_min": round(gb / max(times), 3),
        "gb_per_s_max": round(gb / min(times), 3),
        "cpu_s_per_gb": round(cpu_s / repetitions / gb, 3),
        "checksums_ok": checksums_ok,
        "memcpy_gb_per_s": round(copied, 3),
        "perftest_gb_per_s": perftest_gb_per_s,
    }


def measure_exposed(
    case: Case, *, transport: str, prompt_tokens: int, block_tokens: int, chunk_tokens: int = 512
) -> dict[str, Any]:
    """How much of a transfer is left after the last prefill chunk, for a prompt in chunks.

    ``case`` has the blocks of the longest prompt. Chunks are appended twice as slowly as one is
    transferred alone, as an engine would that is slower than its network.
    """
    count = prompt_tokens // block_tokens
    step = max(1, chunk_tokens // block_tokens)
    cuts = list(range(step, count, step))
    with pair(case=case, settings={}, transport=transport) as moved:
        moved.move(cuts=[], block_count=count)
        alone = statistics.median(moved.move(cuts=[], block_count=step) for _ in range(5))
        whole = statistics.median(moved.move(cuts=[], block_count=count) for _ in range(3))
        exposed = statistics.median(
            moved.move(cuts=cuts, pause_s=2 * alone, block_count=count) for _ in range(5)
        )
    return {
        "prompt_tokens": prompt_tokens,
        "chunk_tokens": chunk_tokens,
        "transport": transport,
        "exposed_ms": round(exposed * 1e3, 2),
        "last_chunk_ms": round(alone * 1e3, 2),
        "whole_ms": round(whole * 1e3, 2),
    }


def measure_cancel(case: Case, *, transport: str, repetitions: int = 5) -> dict[str, Any]:
    """How soon a cancel is obeyed in engines that are busy with a whole case all the while."""
    with pair(case=case, settings={}, transport=transport) as moved:
        moved.move(cuts=[])
        times = sorted(t for _ in range(repetitions) for t in moved.cancels())
    return {
        "case": case.name,
        "transport": transport,
        "cancels": len(times),
        "p50_ms": round(statistics.median(times) * 1e3, 2),
        "p99_ms": round(times[min(len(times) - 1, int(len(times) * 0.99))] * 1e3, 2),
        "max_ms": round(times[-1] * 1e3, 2),
    }

"""Transfers between live vLLM engines, and what they do to a stream: ``pdd bench transfer --live``.

1. Warm: every prompt once, for one token. Such a request ends on the prefill node, which then
   holds the prompt's blocks; that the decode node got none is checked with its counters.
2. Reference: every prompt once, for two tokens, and the stream, each with nothing beside it.
3. In turn, ``rounds`` times: the stream alone; beside requests whose blocks the decode node holds,
   which it answers by itself; beside requests that move all their blocks, one after another without
   a pause.

Texts are compared with the references: of requests, and of streams that were alone. A stream beside
requests is computed in other batches, and an engine's rounding may depend on the batch: its text
may differ beside requests that move nothing, too.

Both transports are measured in clusters of their own, one after the other.
"""

import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

from pdd.bench.live_cluster import STATUS_INTERVAL_S, with_live_pair
from pdd.bench.live_figures import Kind, Phase, Reading, gaps_s, live_row
from pdd.bench.live_http import Answer, Cluster, Stream
from pdd.bench.prompts import TextPool
from pdd.core.errors import PddError

BLOCK_BYTES = 2_949_120
"""Of the default model: 128 tokens, 30 layers x 98,304 B. Other models are counted in it, too."""

BLOCK_TOKENS = 128
SEED = 3
_STREAM_PROMPT = "A long story about a lighthouse, a storm and the people of a small harbour:"
_LEAD_EVENTS = 10
"""Events of a stream before others ask: its own hand-over is over then."""

_SETTLE_TIMEOUT_S = 10.0
_DECODE, _PREFILL = "decode-0", "prefill-0"


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveSpec:
    """What to measure. ``blocks``: of each prompt. ``stream_tokens``: length of each stream."""

    transports: tuple[str, ...] = ("auto", "tcp")
    prompts: int = 8
    blocks: int = 24
    stream_tokens: int = 160
    rounds: int = 3
    model: str | None = None
    start_timeout_s: float = 600.0


def measure_live(spec: LiveSpec, *, report: Callable[[str], None]) -> list[dict[str, Any]]:
    """One row per transport. ``report`` takes a line of progress.

    Raises:
        PddError: a cluster did not start, or did not do what is measured here.
    """
    rows = []
    for transport in spec.transports:
        report(f"live engines, {transport} ...")
        rows.append(
            with_live_pair(
                partial(_measure, spec, transport, report),
                transport=transport,
                model=spec.model,
                start_timeout_s=spec.start_timeout_s,
                report=report,
                environment=os.environ,
            )
        )
    return rows


def make_prompts(spec: LiveSpec, encode: Callable[[str], list[int]]) -> list[list[int]]:
    """Token ids of prompts that differ from their first words on.

    One token more than the last full block: a prefill node that holds the rest computes as little
    as can be before the last block may leave.
    """
    tokens = (spec.blocks - 1) * BLOCK_TOKENS + 1
    pool = TextPool(seed=SEED)
    return [encode(pool.text(number, tokens))[:tokens] for number in range(spec.prompts)]


def _measure(
    spec: LiveSpec,
    transport: str,
    report: Callable[[str], None],
    address: str,
    encode: Callable[[str], list[int]],
) -> dict[str, Any]:
    session = _Session(spec, Cluster(address), make_prompts(spec, encode), report)
    session.warm()
    session.take_references()
    phases = []
    for number in range(spec.rounds):
        for kind in Kind:
            phase = session.phase(kind)
            phases.append(phase)
            row = live_row([phase], transport=transport, block_bytes=BLOCK_BYTES)
            report(
                f"round {number + 1}, {kind}: ITL p50 {row[f'itl_p50_ms_{kind}']} ms, p99 "
                f"{row[f'itl_p99_ms_{kind}']} ms; {len(phase.sizes)} requests, "
                f"{row['gb_per_s'] or '-'} GB/s, "
                f"texts {'as undisturbed' if phase.texts_ok else 'differ'}"
            )
    return live_row(phases, transport=transport, block_bytes=BLOCK_BYTES)


class _Session:
    """One cluster's measurement."""

    def __init__(
        self,
        spec: LiveSpec,
        cluster: Cluster,
        prompts: list[list[int]],
        report: Callable[[str], None],
    ) -> None:
        self._spec = spec
        self._cluster = cluster
        self._report = report
        self._prompts = prompts
        self._answers: list[str] = []
        self._stream_text = ""
        self._next = 0

    def warm(self) -> None:
        """Step 1."""
        before = self._settled()
        self._report(f"computing {len(self._prompts)} prompts of {len(self._prompts[0])} tokens")
        for prompt in self._prompts:
            self._cluster.ask(prompt, tokens=1)
        moved = _grown(before, self._settled(), "received_bytes", _DECODE)
        if moved:
            raise PddError(
                f"requests for one token moved {moved:.0f} B to the decode node; they should end "
                "on the prefill node"
            )

    def take_references(self) -> None:
        """Step 2."""
        self._answers = [self._cluster.ask(prompt, tokens=2).text for prompt in self._prompts]
        self._stream_text = self._stream(lambda _: None).text

    def phase(self, kind: Kind) -> Phase:
        """One stream, and what comes beside it."""
        if kind is Kind.ALONE:
            stream = self._stream(lambda _: None)
            return Phase(
                kind=kind,
                gaps_s=gaps_s(stream.times_s[_LEAD_EVENTS:]),
                texts_ok=stream.text == self._stream_text,
            )
        held = 0
        if kind is Kind.HELD:
            held, _ = self._ask(self._take_turn())
        before = self._settled()
        asker = _Asker(
            (lambda: self._ask(held, stays=True))
            if kind is Kind.HELD
            else (lambda: self._ask(self._take_turn()))
        )
        reader = _Reader(self._cluster, before)
        with reader, asker:
            stream = self._stream(asker.on_event)
        answers = asker.answers
        moved = sum(answer.transferred_bytes > 0 for _, answer in answers)
        after = self._settled(before, transfers=moved)
        return Phase(
            kind=kind,
            gaps_s=gaps_s(stream.times_s, after_s=asker.began_s),
            sizes=tuple(answer.transferred_bytes for _, answer in answers),
            readings=reader.readings(),
            lane_bytes=tuple(
                (lane, round(_grown(before, after, counter, _PREFILL)))
                for lane, counter in (
                    ("shared_memory", "sent_shared_memory_bytes"),
                    ("tcp", "sent_ucx_bytes"),
                )
            ),
            cpu_s=sum(
                _grown(before, after, "thread_cpu_seconds", node) for node in (_PREFILL, _DECODE)
            ),
            texts_ok=all(answer.text == self._answers[which] for which, answer in answers),
        )

    # --- inside ------------------------------------------------------------------------------

    def _take_turn(self) -> int:
        """The prompt that was asked for longest ago: the decode node does not hold it any more."""
        which = self._next
        self._next = (which + 1) % len(self._prompts)
        return which

    def _ask(self, which: int, *, stays: bool = False) -> tuple[int, Answer]:
        """``stays``: the decode node holds the prompt, and may answer by itself."""
        answer = self._cluster.ask(self._prompts[which], tokens=2)
        if answer.path != "disaggregated" and not stays:
            raise PddError(f"a request of the measurement took the path {answer.path}")
        return which, answer

    def _stream(self, on_event: Callable[[int], None]) -> Stream:
        return self._cluster.stream(
            _STREAM_PROMPT, tokens=self._spec.stream_tokens, on_event=on_event
        )

    def _settled(
        self, before: Mapping[str, float] | None = None, *, transfers: int = 0
    ) -> dict[str, float]:
        """The counters once they tell of all ``transfers`` since ``before`` and stand still.

        They come with the nodes' status; what is not told in time stays untold, and is then
        missing from the figures.
        """
        until_s = time.monotonic() + _SETTLE_TIMEOUT_S
        seen: dict[str, float] = {}
        while time.monotonic() < until_s:
            last, seen = seen, self._cluster.counters()
            told = _grown(before or {}, seen, "received_transfers", _DECODE)
            still = all(
                last.get(f"{name}@{node}") == seen.get(f"{name}@{node}")
                for name in ("received_bytes", "sent_bytes", "received_transfers")
                for node in (_PREFILL, _DECODE)
            )
            if last and still and (before is None or told >= transfers):
                break
            time.sleep(3 * STATUS_INTERVAL_S)
        return seen


class _Asker:
    """Sends one request after another, from a stream's ``_LEAD_EVENTS``th event to its end."""

    def __init__(self, ask: Callable[[], tuple[int, Answer]]) -> None:
        self._ask = ask
        self._begin = threading.Event()
        self._stop = False
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="asker")
        self.answers: list[tuple[int, Answer]] = []
        self.began_s = 0.0

    def on_event(self, number: int) -> None:
        if number == _LEAD_EVENTS:
            self.began_s = time.monotonic()
            self._begin.set()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop = True
        self._begin.set()
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        self._begin.wait()
        try:
            while not self._stop:
                self.answers.append(self._ask())
        except Exception as error:  # raised again by __exit__, in the thread that waits
            self._failure = error


class _Reader:
    """Reads the counters all the time, so that few transfers fall into one reading."""

    def __init__(self, cluster: Cluster, before: Mapping[str, float]) -> None:
        self._cluster = cluster
        self._seen = [before]
        self._stop = threading.Event()
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="reader")

    def readings(self) -> tuple[Reading, ...]:
        """Those in which transfers ended."""
        found = []
        for sooner, later in zip(self._seen, self._seen[1:], strict=False):
            transfers = round(_grown(sooner, later, "received_transfers", _DECODE))
            if transfers:
                moving_s = _grown(sooner, later, "received_moving_seconds", _DECODE)
                found.append(Reading(transfers=transfers, moving_s=moving_s))
        return tuple(found)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            while not self._stop.wait(STATUS_INTERVAL_S):
                self._seen.append(self._cluster.counters())
        except PddError as error:  # raised again by __exit__, in the thread that waits
            self._failure = error


def _grown(before: Mapping[str, float], after: Mapping[str, float], name: str, node: str) -> float:
    key = f"{name}@{node}"
    return after.get(key, 0.0) - before.get(key, 0.0)

"""Sends the planned requests of one process and keeps what it saw. Runs on one event loop.

Open loop: requests leave when they are due, whatever the server does. How late they really left is
recorded. Closed loop: so many clients, each of which sends its next request when the one before has
ended.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher

from pdd.bench.arrival_clock import ArrivalClock
from pdd.bench.http_client import ConnectionPool, Exchange
from pdd.bench.prompts import Calibration
from pdd.bench.samples import Outcome, Sample
from pdd.bench.target import BodyMaker, BodyOptions, Target
from pdd.bench.token_events import StreamFault
from pdd.bench.workload import PlannedRequest, Shape, requests_of_shape
from pdd.core.ports import Clock

_EARLY_S = 0.0005
"""The loop's timers have whole milliseconds: what is due within half of one leaves now."""
_SWEEP_S = 0.25
_HEARTBEAT_S = 0.02
_REJECTED = (429, 503)
CUT_OFF = "cut_off"
"""Error class of requests that Ctrl-C ended; they are not among the samples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedLoop:
    """``clients`` of this process. Their requests are ``planned``, or made of ``shape``."""

    clients: int
    shape: Shape | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratorSpec:
    """All that one process needs to know; sent to it as it is.

    ``duration_s``: no request begins later. ``grace_s``: how long the open ones may go on after the
    last has begun; then they fail as ``unfinished``. ``expected``: for each persona, the text of
    every token; answers are compared with it. ``process_index`` of ``process_count``.
    """

    target: Target
    body: BodyOptions
    calibration: Calibration
    seed: int
    planned: Sequence[PlannedRequest] = ()
    closed: ClosedLoop | None = None
    request_count: int | None = None
    duration_s: float | None = None
    timeout_s: float = 600.0
    grace_s: float = 60.0
    connections_max: int = 4096
    expected: Mapping[int, Sequence[str]] = field(default_factory=dict)
    process_index: int = 0
    process_count: int = 1

    def share(self, index: int, count: int) -> "GeneratorSpec":
        """The part of process ``index`` of ``count``."""
        closed, number = self.closed, self.request_count
        if closed is not None:
            closed = replace(closed, clients=len(range(index, closed.clients, count)))
        return replace(
            self,
            planned=self.planned[index::count],
            closed=closed,
            request_count=None if number is None else len(range(index, number, count)),
            connections_max=max(1, self.connections_max // count),
            process_index=index,
            process_count=count,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Where a process is, since its start."""

    sent: int = 0
    open: int = 0
    done: int = 0
    rejected: int = 0
    failed: int = 0
    tokens: int = 0


class Generator:
    """One run. Call ``run`` once; read the attributes afterwards."""

    def __init__(self, spec: GeneratorSpec, *, clock: Clock) -> None:
        self._spec = spec
        self._clock = clock
        self._origin_s = 0.0
        self._maker = BodyMaker(spec.body, calibration=spec.calibration, seed=spec.seed)
        self._head = spec.target.request_head("POST", spec.body.endpoint.path)
        self._pool = ConnectionPool(spec.target, connections_max=spec.connections_max, clock=clock)
        self._requests = self._planned()
        self._next: PlannedRequest | None = None
        self._open: dict[int, Exchange] = {}
        self._counts: Counter[str] = Counter()
        self._over = asyncio.Event()
        self._stopping = False
        self._sent_all = False
        self._grace_ends_s = float("inf")
        self.samples: list[Sample] = []
        self.lateness_s: list[float] = []
        self.loop_lag_s: list[float] = []
        self.cut_off_count = 0

    @property
    def arrivals(self) -> ArrivalClock:
        """How the times of what was read were told."""
        return self._pool.arrivals

    @property
    def waited_count(self) -> int:
        """Requests that found every connection busy."""
        return self._pool.waited_count

    @property
    def progress(self) -> Progress:
        counts = self._counts
        live = sum(len(one.reader.times_s) for one in self._open.values())
        return Progress(
            sent=counts["sent"],
            open=len(self._open),
            done=counts["ok"],
            rejected=counts["rejected"],
            failed=counts["failed"],
            tokens=counts["tokens"] + live,
        )

    async def prepare(self) -> None:
        """Look up the host. Raises OSError."""
        await self._pool.resolve()

    async def run(self, *, origin_s: float) -> None:
        """Until every request has ended.

        Args:
            origin_s: the clock's time that all offsets count from; in the future, so that several
                processes begin together.
        """
        loop = asyncio.get_running_loop()
        self._origin_s = origin_s
        self._take()
        tickers = [
            loop.create_task(self._sweep(), name="timeouts"),
            loop.create_task(self._heartbeat(), name="heartbeat"),
        ]
        for ticker in tickers:
            ticker.add_done_callback(self._ticker_ended)
        try:
            if self._spec.closed is None:
                self._send_due()
            else:
                self._begin_clients(self._spec.closed.clients)
            await self._over.wait()
        finally:
            for ticker in tickers:
                ticker.cancel()
            self._pool.close()
        for ticker in tickers:
            if ticker.done() and not ticker.cancelled() and (error := ticker.exception()):
                raise error

    def _ticker_ended(self, ticker: asyncio.Task[None]) -> None:
        """Tickers end by a fault only, or cancelled when the run is over."""
        self._over.set()

    def stop(self) -> None:
        """Send nothing more and drop what is open: Ctrl-C. The samples stay."""
        self._stopping = True
        self._sent_all = True
        self._pool.end_all(CUT_OFF)
        self._check_over()

    # --- sending -----------------------------------------------------------------------------

    def _send_due(self) -> None:
        """Open loop: everything that is due, then a timer for the next."""
        now_s = self._clock() - self._origin_s
        while (request := self._next) is not None and request.due_s <= now_s + _EARLY_S:
            if self._stopping:
                return
            self.lateness_s.append(max(0.0, now_s - request.due_s))
            self._send(request, due_s=request.due_s)
            self._take()
            now_s = self._clock() - self._origin_s
        if self._next is None:
            self._last_was_sent(now_s)
        else:
            delay_s = max(0.0, self._next.due_s - now_s)
            asyncio.get_running_loop().call_later(delay_s, self._send_due)

    def _begin_clients(self, count: int) -> None:
        loop = asyncio.get_running_loop()
        if count == 0:  # more processes than clients
            self._last_was_sent(0.0)
        delay_s = max(0.0, self._origin_s - self._clock())
        for _ in range(count):
            loop.call_later(delay_s, self._client_sends)

    def _client_sends(self) -> None:
        """Closed loop: one client's next request, if there is one."""
        now_s = self._clock() - self._origin_s
        duration_s = self._spec.duration_s
        is_late = duration_s is not None and now_s >= duration_s
        if self._next is None or is_late or self._stopping:
            if not self._sent_all:
                self._last_was_sent(now_s)
            self._check_over()
            return
        request = self._next
        self._send(request, due_s=now_s)
        self._take()

    def _last_was_sent(self, now_s: float) -> None:
        self._sent_all = True
        self._grace_ends_s = now_s + self._spec.grace_s
        self._check_over()

    def _send(self, request: PlannedRequest, *, due_s: float) -> None:
        body = self._maker.body(request)
        exchange = Exchange(
            request=b"%b%d\r\n\r\n%b" % (self._head, len(body), body),
            key=(request, due_s),
            start_s=self._clock(),
            on_end=self._on_end,
            keep_texts=request.persona in self._spec.expected,
        )
        self._open[request.index] = exchange
        self._counts["sent"] += 1
        self._pool.send(exchange)

    def _take(self) -> None:
        self._next = next(self._requests, None)

    def _planned(self) -> Iterator[PlannedRequest]:
        closed = self._spec.closed
        if closed is None or closed.shape is None:
            yield from self._spec.planned
            return
        rng = random.Random(f"{self._spec.seed}:{self._spec.process_index}")  # noqa: S311
        number = 0
        while self._spec.request_count is None or number < self._spec.request_count:
            [request] = requests_of_shape(
                closed.shape,
                [0.0],
                rng=rng,
                overhead_tokens=self._spec.calibration.overhead_tokens,
            )
            index = self._spec.process_index + number * self._spec.process_count
            yield replace(request, index=index)
            number += 1

    # --- ending ------------------------------------------------------------------------------

    def _on_end(self, exchange: Exchange) -> None:
        request, due_s = exchange.key
        del self._open[request.index]
        if exchange.fault == CUT_OFF:
            self.cut_off_count += 1
        else:
            sample = self._sample(exchange, request, due_s)
            self.samples.append(sample)
            self._counts[sample.outcome.name.lower()] += 1
            self._counts["tokens"] += len(sample.event_times_s)
        if self._spec.closed is not None and not self._stopping:
            if exchange.fault or exchange.status != 200:
                # A server that refuses at once must not make this a busy loop.
                asyncio.get_running_loop().call_later(0.01, self._client_sends)
            else:
                self._client_sends()
        self._check_over()

    def _check_over(self) -> None:
        if self._sent_all and not self._open:
            self._over.set()

    def _sample(self, exchange: Exchange, request: PlannedRequest, due_s: float) -> Sample:
        reader, origin_s = exchange.reader, self._origin_s
        outcome, error, detail = verdict(exchange)
        events = [time_s - origin_s for time_s in reader.times_s]
        usage = reader.usage
        texts = reader.texts
        if exchange.status == 200 and not exchange.is_stream and outcome is Outcome.OK:
            document = exchange.document()
            usage = document.get("usage") or {}
            reader.usage = usage  # for its stages
            events = [exchange.end_s - origin_s]
            texts = [whole_text(document)]
        lost = doubled = 0
        if request.persona in self._spec.expected:
            lost, doubled = compare(texts, self._spec.expected[request.persona])
        return Sample(
            index=request.index,
            due_s=due_s,
            sent_s=exchange.sent_s - origin_s,
            end_s=exchange.end_s - origin_s,
            event_times_s=events,
            outcome=outcome,
            error=error,
            detail=detail,
            output_tokens=_count(usage.get("completion_tokens")) or len(events),
            prompt_tokens=_count(usage.get("prompt_tokens")),
            cached_tokens=_cached(usage),
            stages_ms=reader.stages_ms(),
            persona=request.persona,
            request_id=exchange.request_id,
            tokens_lost=lost,
            tokens_doubled=doubled,
        )

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_S)
            self._pool.raise_failure()
            self._pool.end_overdue(timeout_s=self._spec.timeout_s)
            now_s, duration_s = self._clock() - self._origin_s, self._spec.duration_s
            is_closed = self._spec.closed is not None  # then all clients may be waiting
            if is_closed and not self._sent_all and duration_s is not None and now_s >= duration_s:
                self._last_was_sent(now_s)
                self._check_over()
            if self._sent_all and self._clock() - self._origin_s > self._grace_ends_s:
                self._pool.end_all("unfinished")

    async def _heartbeat(self) -> None:
        """How long the loop makes others wait: its own times cannot be better than that."""
        while True:
            self._pool.arrivals.compare()
            due_s = self._clock() + _HEARTBEAT_S
            await asyncio.sleep(_HEARTBEAT_S)
            self.loop_lag_s.append(max(0.0, self._clock() - due_s))


def verdict(exchange: Exchange) -> tuple[Outcome, str, str]:
    """How a request ended: the outcome, its class and what the server said."""
    if exchange.fault:
        return Outcome.FAILED, exchange.fault, exchange.detail
    if exchange.status != 200:
        outcome = Outcome.REJECTED if exchange.status in _REJECTED else Outcome.FAILED
        return outcome, f"http_{exchange.status}", error_message(exchange)
    if not exchange.is_stream:
        if exchange.document() is None:
            return Outcome.FAILED, "bad_json", exchange.body[:200].decode(errors="replace")
        return Outcome.OK, "", ""
    reader = exchange.reader
    if reader.fault is not StreamFault.NONE:
        return Outcome.FAILED, reader.fault.value, reader.fault_text
    if not reader.done:
        return Outcome.FAILED, "no_done", "the stream ended without [DONE]"
    if not reader.times_s:
        return Outcome.FAILED, "no_tokens", "the stream had no event with a text"
    return Outcome.OK, "", ""


def error_message(exchange: Exchange) -> str:
    """What an answer other than 200 says."""
    document = exchange.document()
    error = document.get("error") if isinstance(document, dict) else None
    if isinstance(error, dict):
        return str(error.get("message", error))[:500]
    return exchange.body[:500].decode(errors="replace")


def whole_text(document: Mapping[str, object]) -> str:
    """The text of an answer that was no stream."""
    choices = document.get("choices")
    if not isinstance(choices, list) or not choices:
        return ""
    choice = choices[0]
    return str(choice.get("text") or (choice.get("message") or {}).get("content") or "")


def compare(texts: Sequence[str], expected: Sequence[str]) -> tuple[int, int]:
    """Tokens of ``expected`` that did not come, and events that should not have come.

    A token in a wrong place counts as both.
    """
    if len(texts) == len(expected) and all(map(str.__eq__, texts, expected)):
        return 0, 0
    matcher = SequenceMatcher(a=expected, b=texts, autojunk=False)
    matched = sum(block.size for block in matcher.get_matching_blocks())
    return len(expected) - matched, len(texts) - matched


def _count(value: object) -> int:
    return value if isinstance(value, int) and value >= 0 else 0


def _cached(usage: Mapping[str, object]) -> int:
    details = usage.get("prompt_tokens_details")
    return _count(details.get("cached_tokens")) if isinstance(details, dict) else 0

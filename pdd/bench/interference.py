"""Streams that run while long prompts arrive: ``pdd bench interference``.

Two clusters of the same daemon stand side by side on the same cores: one disaggregated (a prefill
and a decode node, a core each), one co-located (one node on all of these cores, with a chunk size
tuned for streams). They are measured in turn, one run each, while the other one has nothing to do:
what else happens on the machine meets both.

A run: ``streams`` clients, each with a short prompt and a long answer, one after another; after
``LEAD_S`` a prompt of 1,000 to 2,000 tokens every ``every_s``, for two tokens, so that its blocks
move and it takes part in a decode step. Every prompt is new to every cache.
"""

import asyncio
import json
import random
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import aiohttp

from pdd.bench.interference_figures import LONG_GAP_S, Case, Gap, Run, interference_document
from pdd.bench.up_process import UpProcess
from pdd.core.errors import PddError

LEAD_S = 4.0
TAIL_S = 6.0
"""No prompt arrives so shortly before the end: most of what it does would not be seen."""

ARRIVAL_TOKENS = (1024, 1536, 2000, 1200, 1024, 1800)
IDLE_TOKENS = 1024
_IDLE_COUNT = 2
_STREAM_PROMPT_TOKENS = 64
_STREAM_TOKENS = 200
_FIRST_ID, _LAST_ID = 300, 5300
"""Token ids that every vocabulary has."""

_REQUEST_TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class InterferenceSpec:
    """What to measure. ``colocated_chunk``: most tokens of a step of the co-located node."""

    engine: str = "vllm"
    runs: int = 5
    duration_s: float = 36.0
    unloaded_s: float = 10.0
    every_s: float = 8.0
    streams: int = 4
    cores: int = 2
    colocated_chunk: int = 256
    seed: int = 11
    model: str | None = None
    settings: tuple[str, ...] = ()

    def up_options(self, case: Case) -> list[str]:
        """Of ``pdd up`` for one of the two clusters."""
        options = ["--engine", self.engine]
        if self.model is not None:
            options += ["--model", self.model]
        for setting in ("engine.max_model_len=4096", *self.settings):
            options += ["--set", setting]
        if case is Case.COLOCATED:
            options += ["--prefill", "0", "--threads-per-node", str(self.cores)]
            return [*options, "--set", f"engine.max_num_batched_tokens={self.colocated_chunk}"]
        return [*options, "--prefill", "1", "--threads-per-node", str(max(1, self.cores // 2))]


@dataclass(frozen=True, slots=True)
class Measured:
    """``document``: the JSON. ``runs``: for a picture."""

    document: dict[str, Any]
    runs: list[Run]


def measure_interference(spec: InterferenceSpec, *, report: Callable[[str], None]) -> Measured:
    """Start both clusters, measure, stop them. Call it in the main thread.

    Raises:
        PddError: a cluster did not start, or a request failed.
    """
    with tempfile.TemporaryDirectory(prefix="pdd-bench-") as folder, ExitStack() as stack:
        addresses = {}
        for case in (Case.DISAGGREGATED, Case.COLOCATED):
            report(f"starting the {case} cluster ...")
            up = UpProcess(state_dir=Path(folder) / case.value, options=spec.up_options(case))
            addresses[case] = stack.enter_context(up).http
        try:
            runs = asyncio.run(_measure(spec, addresses, report))
        except BaseExceptionGroup as group:
            faults, others = group.split(PddError)
            if others is not None or faults is None:
                raise
            raise _first(faults) from group
    return Measured(interference_document(runs, spec=asdict(spec)), runs)


def _first(group: BaseExceptionGroup[PddError]) -> BaseException:
    """The first fault in a tree of them; the others have mostly the same reason."""
    first = group.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first


async def _measure(
    spec: InterferenceSpec, addresses: dict[Case, str], report: Callable[[str], None]
) -> list[Run]:
    runs: list[Run] = []
    timeout = aiohttp.ClientTimeout(total=_REQUEST_TIMEOUT_S)
    async with aiohttp.ClientSession(
        timeout=timeout, connector=aiohttp.TCPConnector(limit=0), trust_env=False
    ) as http:
        clients = {
            case: _Clients(http, address, random.Random(spec.seed + number))  # noqa: S311 - no secret
            for number, (case, address) in enumerate(addresses.items())
        }
        for one in clients.values():
            await one.warm()
        for number in range(spec.runs):
            for case, one in (
                (Case.DISAGGREGATED, clients[Case.DISAGGREGATED]),
                (Case.COLOCATED, clients[Case.COLOCATED]),
                (Case.UNLOADED, clients[Case.DISAGGREGATED]),
            ):
                run = await (
                    one.unloaded(spec) if case is Case.UNLOADED else one.loaded(case, spec)
                )
                runs.append(run)
                report(f"run {number + 1} of {spec.runs}, {case}: {_line(run)}")
    return runs


def _line(run: Run) -> str:
    figures = run.figures()
    return (
        f"longest gap {figures['gap_max_ms']} ms, {figures['gaps_over_250ms']} above 250 ms, ITL "
        f"p50 {figures['itl_p50_ms']} ms, p99 {figures['itl_p99_ms']} ms, "
        f"{figures['decode_tokens_per_s']} tokens/s, TTFT p50 {figures['ttft_p50_s']} s"
    )


class _Clients:
    """Everybody who asks one cluster."""

    def __init__(self, http: aiohttp.ClientSession, address: str, rng: random.Random) -> None:
        self._http = http
        self._url = f"{address}/v1/completions"
        self._rng = rng

    async def warm(self) -> None:
        """What only the first requests of an engine wait for."""
        await self._ask(200, 8, _nothing)
        await self._ask(IDLE_TOKENS, 2, _nothing)

    async def loaded(self, case: Case, spec: InterferenceSpec) -> Run:
        """Streams, and prompts that arrive."""
        run = Run(case=case, duration_s=spec.duration_s)
        began_s = time.monotonic()
        async with asyncio.TaskGroup() as streams, asyncio.TaskGroup() as arrivals:
            running = [streams.create_task(self._stream(run, began_s)) for _ in range(spec.streams)]
            due_s, number = LEAD_S, 0
            while due_s < spec.duration_s - TAIL_S:
                await asyncio.sleep(began_s + due_s - time.monotonic())
                tokens = ARRIVAL_TOKENS[number % len(ARRIVAL_TOKENS)]
                arrivals.create_task(self._arrive(run, began_s, tokens))
                due_s += spec.every_s
                number += 1
            await asyncio.sleep(began_s + spec.duration_s - time.monotonic())
            for task in running:  # the clients leave: it is over
                task.cancel()
        return run

    async def unloaded(self, spec: InterferenceSpec) -> Run:
        """Single prompts with nothing beside them, then streams with nothing beside them."""
        run = Run(case=Case.UNLOADED, duration_s=spec.unloaded_s)
        began_s = time.monotonic()
        for _ in range(_IDLE_COUNT):
            await self._arrive(run, began_s, IDLE_TOKENS)
        began_s = time.monotonic()
        async with asyncio.TaskGroup() as streams:
            running = [streams.create_task(self._stream(run, began_s)) for _ in range(spec.streams)]
            await asyncio.sleep(spec.unloaded_s)
            for task in running:
                task.cancel()
        return run

    async def _stream(self, run: Run, began_s: float) -> None:
        """One answer after another, until it is cancelled."""
        last_s: float | None = None

        def on_tokens(count: int, now_s: float) -> None:
            nonlocal last_s
            if now_s - began_s > run.duration_s:
                return
            run.token_count += count
            if last_s is not None:
                run.gaps.append(Gap(now_s - began_s, now_s - last_s))
            last_s = now_s

        try:
            while True:
                last_s = None
                await self._ask(_STREAM_PROMPT_TOKENS, _STREAM_TOKENS, on_tokens)
        finally:
            # Else a stall that outlasts the run would be no gap at all.
            open_s = 0.0 if last_s is None else began_s + run.duration_s - last_s
            if open_s > LONG_GAP_S:
                run.gaps.append(Gap(run.duration_s, open_s))

    async def _arrive(self, run: Run, began_s: float, tokens: int) -> None:
        asked_s = time.monotonic()
        first_s: list[float] = []
        await self._ask(tokens, 2, lambda _count, now_s: first_s.append(now_s))
        run.arrivals.append((asked_s - began_s, first_s[0] - asked_s))

    async def _ask(
        self, prompt_tokens: int, output_tokens: int, on_tokens: Callable[[int, float], None]
    ) -> None:
        """A streamed answer of exactly so many tokens."""
        body = {
            "prompt": [self._rng.randrange(_FIRST_ID, _LAST_ID) for _ in range(prompt_tokens)],
            "max_tokens": output_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "return_token_ids": True,
        }
        seen = 0
        try:
            async with self._http.post(self._url, json=body) as response:
                if response.status != 200:
                    raise PddError(f"{response.status}: {(await response.text())[:500]}")
                async for line in response.content:
                    if line.startswith(b"data: {"):
                        count = _token_count(line)
                        seen += count
                        if count:
                            on_tokens(count, time.monotonic())
        except (aiohttp.ClientError, TimeoutError) as error:
            raise PddError(f"{self._url}: {error!r}") from error
        if seen != output_tokens:
            raise PddError(f"an answer of {output_tokens} tokens has {seen}")


def _token_count(line: bytes) -> int:
    event = json.loads(line[len(b"data: ") :])
    if "error" in event:
        raise PddError(f"a stream ended with {event['error']}")
    return sum(len(choice.get("token_ids") or ()) for choice in event.get("choices") or ())


def _nothing(_count: int, _now_s: float) -> None:
    pass

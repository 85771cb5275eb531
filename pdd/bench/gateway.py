"""``pdd bench gateway``: what the scheduler process costs, and what it adds.

Phases, each on a synthetic cluster of its own:

* ``streams``   opened within some seconds, then all open for ``duration_s``: one token per stream
  and engine step, at a fixed rhythm.
  Every answer is compared token by token with what the engine must say (``gateway_expected``).
* ``fast``      the same at a rate that the machine cannot hold: the most that goes through.
* ``requests``  1-token answers as fast as they come: short prompts, then prompts of 2,000 tokens
  of which 1,500 are one of 16 texts; then memory over many requests.

Scheduler CPU is user and system time of the scheduler's whole process tree, from just before the
first request until the last answer has ended, over all tokens (or requests) of that time: opening
and ending streams, metrics (read once a second), usage and logs are in it. Nodes, generator and
scheduler share this machine; their CPU is reported beside it, and where a rate was not reached,
what it was limited by. The scheduler has a core for itself if there are two (see ``cores``).

The document (null: that phase was not run; other keys are only ever added)::

    streams, duration_s                    as asked for
    tokens_per_s                           while all streams were open (``steady_tokens_per_s``)
    limited_by, fast_limited_by            what kept it from the rate asked for; "" for nothing
    tokens_expected, _delivered            events with a text
    tokens_lost, tokens_doubled            against the oracle; a wrong token is one of each
    added_itl_p99_ms, added_itl_ms         see ``gateway_figures``; delivery_ms, streams_unmatched,
                                           added_itl_clock
    scheduler_cpu_us_per_token             and scheduler_cores, node_cpu_us_per_token
    scheduler_rss_mib_per_stream           most RSS during the load, less that before it
    ceiling_tokens_per_s                   of phase ``fast``, on this machine with all its nodes;
                                           scheduler_cpu_us_per_token_fast, fast_*
    requests_per_s_1tok, _2k               and scheduler_cpu_us_per_request_*, node_*
    rss_mib_after_tenth, _after_all        of rss_requests; rss_growth_fraction
    generator_ceiling_tokens_per_s         see ``ceiling``
    generator                              per phase: CPU, lateness, pauses
    failed, rejected, errors, warnings, interrupted, load, settings, machine
"""

import os
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

from pdd.bench.ceiling import measure_ceiling
from pdd.bench.cluster import RunningCluster
from pdd.bench.cores import limited_by, plan_cores
from pdd.bench.gateway_cluster import with_synthetic_cluster
from pdd.bench.gateway_expected import ROW_BYTES, Oracle
from pdd.bench.gateway_figures import added_itl, steady_tokens_per_s
from pdd.bench.generator import ClosedLoop, GeneratorSpec, Progress
from pdd.bench.percentiles import summary
from pdd.bench.process_tree import tree_usage
from pdd.bench.prompts import Calibration, Piece
from pdd.bench.report import warnings
from pdd.bench.samples import Outcome, Samples
from pdd.bench.target import BodyMaker, BodyOptions, Endpoint, Target
from pdd.bench.workers import Load, run_load
from pdd.bench.workload import PlannedRequest, Shape
from pdd.core.errors import PddError

T = TypeVar("T")
PHASES = ("streams", "fast", "requests")
_PROMPT_TOKENS = 16
_PROMPT_COUNT_MAX = 32
_RAMP_S_MAX = 5.0
_WARM_REQUESTS = 200
_SHORT = Shape(input_tokens=_PROMPT_TOKENS, output_tokens=1)
_LONG = Shape(
    input_tokens=2000, output_tokens=1, shared_tokens=1500, persona_count=16, hot_fraction=1 / 16
)
# The synthetic tokenizer has a token for every word, and completions have no template.
_ONE_TO_ONE = Calibration(tokens_per_word=1.0, overhead_tokens=0.0, measured=True)
_BLOCK_TOKENS = 128
_MODEL = "synthetic"


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayOptions:
    """``rate_per_s`` and ``fast_rate_per_s``: tokens per stream and second.
    ``divide_cores``: the scheduler has a core for itself (see ``cores``).
    ``memory_requests``: RSS after so many more requests is compared with that after a tenth of
    them; 0: not."""

    streams: int = 500
    rate_per_s: float = 24.0
    duration_s: float = 60.0
    fast_rate_per_s: float = 100.0
    fast_duration_s: float = 5.0
    requests_duration_s: float = 5.0
    clients: int = 64
    memory_requests: int = 100_000
    prefill_count: int = 1
    decode_count: int = 1
    divide_cores: bool = True
    process_count: int = 1
    seed: int = 1
    phases: tuple[str, ...] = PHASES
    settings: Mapping[str, str] = field(default_factory=dict)
    """More configuration of the clusters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One load and what it cost. ``*_cpu_s`` of whole process trees; ``rss_bytes`` of the
    scheduler's: before, and the most during the load."""

    load: Load
    scheduler_cpu_s: float
    node_cpu_s: float
    rss_before_bytes: int
    rss_most_bytes: int
    wall_s: float
    busiest_node_cpu_s: float

    def busy_cores(self) -> dict[str, float]:
        """By process that has one thread for most of its work."""
        return {
            "the scheduler": self.scheduler_cpu_s / self.wall_s,
            "a node": self.busiest_node_cpu_s / self.wall_s,
            "the generator": self.load.generator.busiest_cpu_fraction,
        }


class GatewayBench:
    """Runs the phases in order; ``document`` has what is known so far, at any time."""

    def __init__(
        self,
        options: GatewayOptions,
        *,
        say: Callable[[str], None],
        environment: Mapping[str, str],
    ) -> None:
        self._options = options
        self._say = say
        self._environment = environment
        self._oracle = Oracle()
        self._cores = plan_cores(tuple(os.sched_getaffinity(0)), divide=options.divide_cores)
        self.document: dict[str, Any] = {
            "streams": options.streams,
            "duration_s": options.duration_s,
            **dict.fromkeys(_FIGURES),
            "schema_version": 1,
            "load": {
                name: value for name, value in asdict(options).items() if name not in ("settings",)
            },
            "settings": dict(options.settings),
            "machine": {
                "cpus": os.cpu_count(),
                "usable_cpus": len(os.sched_getaffinity(0)),
                "load_before": round(os.getloadavg()[0], 2),
                "scheduler_cores": list(self._cores.scheduler),
                "other_cores": list(self._cores.others),
            },
            "failed": 0,
            "rejected": 0,
            "errors": {},
            "warnings": [],
            "interrupted": False,
        }

    def run(self) -> bool:
        """Everything; whether Ctrl-C ended it early.

        Raises:
            PddError: a cluster did not start, or died.
        """
        try:
            self._ceiling()
            for phase in self._options.phases:
                {"streams": self._streams, "fast": self._fast, "requests": self._requests}[phase]()
        except KeyboardInterrupt:
            self.document["interrupted"] = True
        return bool(self.document["interrupted"])

    # --- phases ------------------------------------------------------------------------------

    def _ceiling(self) -> None:
        ceiling = measure_ceiling(
            process_count=self._options.process_count, streams=min(self._options.streams, 500)
        )
        self.document["generator_ceiling_tokens_per_s"] = ceiling.tokens_per_s
        self.document["generator"] = {"ceiling_cpu_us_per_token": ceiling.cpu_us_per_token}
        self._say(
            f"generator ceiling: {ceiling.tokens_per_s:,.0f} tokens/s, "
            f"{ceiling.cpu_us_per_token:g} us of CPU per token"
        )

    def _streams(self) -> None:
        options = self._options
        ramp_s = min(_RAMP_S_MAX, options.duration_s / 4)
        count = max(2, round(options.rate_per_s * (options.duration_s + ramp_s)))
        measured, steps = self._stream_load("streams", options.rate_per_s, count, ramp_s=ramp_s)
        samples = measured.load.samples
        added = added_itl(samples, steps, origin_s=measured.load.origin_s)
        itl_ms, events = summary(added.itl_s), len(samples.events)
        opened = measured.rss_most_bytes - measured.rss_before_bytes
        self.document |= {
            "tokens_per_s": round(steady_tokens_per_s(samples), 1),
            "limited_by": self._limit(measured, samples, options.rate_per_s),
            "tokens_expected": count * options.streams,
            "tokens_delivered": events,
            "tokens_lost": int(samples.tokens_lost.sum()),
            "tokens_doubled": int(samples.tokens_doubled.sum()),
            "added_itl_p99_ms": itl_ms["p99"],
            "added_itl_ms": itl_ms,
            "added_itl_clock": measured.load.generator.arrival_clock,
            "delivery_ms": summary(added.delivery_s),
            "streams_unmatched": added.unmatched,
            "scheduler_cpu_us_per_token": _us(measured.scheduler_cpu_s, events),
            "scheduler_cores": round(measured.scheduler_cpu_s / measured.wall_s, 3),
            "node_cpu_us_per_token": _us(measured.node_cpu_s, events),
            "scheduler_rss_mib_per_stream": round(opened / options.streams / 2**20, 4),
        }
        self._note(measured, "streams")

    def _fast(self) -> None:
        options = self._options
        count = max(2, round(options.fast_rate_per_s * options.fast_duration_s))
        ramp_s = min(_RAMP_S_MAX, options.fast_duration_s / 4)
        measured, _ = self._stream_load("fast", options.fast_rate_per_s, count, ramp_s=ramp_s)
        samples = measured.load.samples
        events = len(samples.events)
        self.document |= {
            "ceiling_tokens_per_s": round(steady_tokens_per_s(samples), 1),
            "fast_offered_tokens_per_s": options.streams * options.fast_rate_per_s,
            "fast_limited_by": self._limit(measured, samples, options.fast_rate_per_s),
            "fast_tokens_lost": int(samples.tokens_lost.sum()),
            "fast_tokens_doubled": int(samples.tokens_doubled.sum()),
            "scheduler_cpu_us_per_token_fast": _us(measured.scheduler_cpu_s, events),
            "scheduler_cores_fast": round(measured.scheduler_cpu_s / measured.wall_s, 3),
            "node_cpu_us_per_token_fast": _us(measured.node_cpu_s, events),
        }
        self._note(measured, "fast")

    def _limit(self, measured: Measured, samples: Samples, rate_per_s: float) -> str:
        return limited_by(
            measured.busy_cores(),
            core_count=len({*self._cores.scheduler, *self._cores.others}),
            reached=steady_tokens_per_s(samples),
            offered=self._options.streams * rate_per_s,
        )

    def _requests(self) -> None:
        self._with_cluster(self._request_loads, {"synthetic.time_scale": "0"})

    def _request_loads(self, cluster: RunningCluster) -> None:
        options = self._options
        self._closed(cluster, _SHORT, requests=_WARM_REQUESTS)
        for shape, name in ((_SHORT, "1tok"), (_LONG, "2k")):
            self._say(f"1-token answers, prompts of {shape.input_tokens} tokens")
            measured = self._closed(cluster, shape, duration_s=options.requests_duration_s)
            samples = measured.load.samples
            well = int((samples.outcome == int(Outcome.OK)).sum())
            self.document |= {
                f"requests_per_s_{name}": round(well / max(measured.load.duration_s, 1e-9), 1),
                f"scheduler_cpu_us_per_request_{name}": _us(measured.scheduler_cpu_s, well),
                f"node_cpu_us_per_request_{name}": _us(measured.node_cpu_s, well),
            }
            self._note(measured, f"requests_{name}")
        if options.memory_requests:
            self._memory(cluster)

    def _memory(self, cluster: RunningCluster) -> None:
        """RSS after a tenth of the requests and after all of them. Those of the loads before are
        none of them: there may have been more than a tenth, or all."""
        found: list[int] = []
        done = 0
        for wanted in (self._options.memory_requests // 10, self._options.memory_requests):
            if wanted > done:
                self._say(f"memory: up to {wanted:,} requests")
                done += self._closed(cluster, _SHORT, requests=wanted - done).load.samples.count
            found.append(tree_usage(cluster.scheduler_pid).rss_bytes)
        self.document |= {
            "rss_mib_after_tenth": round(found[0] / 2**20, 1),
            "rss_mib_after_all": round(found[1] / 2**20, 1),
            "rss_growth_fraction": round(found[1] / found[0] - 1, 4),
            "rss_requests": done,
        }

    # --- loads -------------------------------------------------------------------------------

    def _stream_load(
        self, phase: str, rate_per_s: float, token_count: int, *, ramp_s: float
    ) -> tuple[Measured, dict[str, list[int]]]:
        options = self._options
        prompts = min(options.streams, _PROMPT_COUNT_MAX)
        planned = [
            PlannedRequest(
                index=index,
                due_s=ramp_s * index / options.streams,
                shared=(),
                own=(Piece(index % prompts, _PROMPT_TOKENS),),
                output_tokens=token_count,
                persona=index % prompts,
            )
            for index in range(options.streams)
        ]
        maker = BodyMaker(_body(stream=True), calibration=_ONE_TO_ONE, seed=options.seed)
        self._say(f"{phase}: working out {prompts} answers of {token_count} tokens")
        expected = {
            request.persona: self._oracle.answer(maker.texts(request)[1], token_count=token_count)
            for request in planned[:prompts]
        }
        room = options.streams * (_PROMPT_TOKENS + token_count + 2 * _BLOCK_TOKENS)
        settings = {
            "synthetic.step_s": repr(1 / rate_per_s),
            "synthetic.log_steps": "true",
            "engine.kv_cache_bytes": str(max(16 << 20, room * ROW_BYTES)),
            "engine.max_model_len": str(max(4096, _PROMPT_TOKENS + token_count + 64)),
        }
        expected_s = token_count / rate_per_s

        def work(cluster: RunningCluster) -> tuple[Measured, dict[str, list[int]]]:
            self._say(
                f"{phase}: {options.streams} streams x {token_count} tokens at {rate_per_s:g}/s, "
                f"about {expected_s:.0f} s"
            )
            spec = self._spec(
                cluster,
                stream=True,
                planned=planned,
                expected=expected,
                timeout_s=60 + 20 * expected_s,
                grace_s=60 + 20 * expected_s,
            )
            measured = self._measure(cluster, spec)
            return measured, cluster.step_times_ns()

        return self._with_cluster(work, settings)

    def _closed(
        self,
        cluster: RunningCluster,
        shape: Shape,
        *,
        duration_s: float | None = None,
        requests: int | None = None,
    ) -> Measured:
        spec = self._spec(
            cluster,
            stream=False,
            closed=ClosedLoop(clients=self._options.clients, shape=shape),
            duration_s=duration_s,
            request_count=requests,
        )
        return self._measure(cluster, spec)

    def _spec(self, cluster: RunningCluster, *, stream: bool, **fields: Any) -> GeneratorSpec:
        return GeneratorSpec(
            target=Target(host="127.0.0.1", port=cluster.http_port),
            body=_body(stream=stream),
            calibration=_ONE_TO_ONE,
            seed=self._options.seed,
            connections_max=max(self._options.streams, self._options.clients) + 64,
            **fields,
        )

    def _measure(self, cluster: RunningCluster, spec: GeneratorSpec) -> Measured:
        pid, nodes = cluster.scheduler_pid, cluster.node_pids
        most = [0]
        before: list[Any] = []
        metrics = f"{cluster.record.http}/metrics"

        def on_begin() -> None:
            before.append((tree_usage(pid), _cpu_of_each(nodes), time.monotonic()))

        def on_progress(progress: Progress) -> None:
            most[0] = max(most[0], tree_usage(pid).rss_bytes)
            _read_metrics(metrics)

        with _rarely(on_progress, interval_s=1.0) as watch:
            load = run_load(
                spec,
                process_count=self._options.process_count,
                on_progress=watch,
                on_begin=on_begin,
                interrupt=cluster.interrupt,
            )
        after, nodes_after_s, ended_s = tree_usage(pid), _cpu_of_each(nodes), time.monotonic()
        [(usage, nodes_before_s, began_s)] = before
        if load.interrupted:
            raise PddError("the measurement was interrupted")
        node_cpu_s = [
            after_s - before_s
            for after_s, before_s in zip(nodes_after_s, nodes_before_s, strict=True)
        ]
        return Measured(
            load=load,
            scheduler_cpu_s=after.cpu_s - usage.cpu_s,
            node_cpu_s=sum(node_cpu_s),
            rss_before_bytes=usage.rss_bytes,
            rss_most_bytes=max(most[0], after.rss_bytes),
            wall_s=ended_s - began_s,
            busiest_node_cpu_s=max(node_cpu_s),
        )

    def _with_cluster(self, work: Callable[[RunningCluster], T], more: dict[str, str]) -> T:
        options = self._options
        settings = {
            "synthetic.kv_bytes_per_token": str(ROW_BYTES),
            "synthetic.model_seed": "0",
            "engine.block_size": str(_BLOCK_TOKENS),
            "engine.max_num_seqs": str(max(options.streams, 256)),
            "engine.max_num_batched_tokens": "8192",
            "scheduler.queue_limit_requests": str(max(options.streams, 1024)),
            **more,
            **options.settings,
        }
        return with_synthetic_cluster(
            work,
            prefill_count=options.prefill_count,
            decode_count=options.decode_count,
            cores=self._cores,
            settings=settings,
            report=lambda text: None,
            environment=self._environment,
        )

    def _note(self, measured: Measured, phase: str) -> None:
        """What went wrong, and what the generator says of itself."""
        load, document = measured.load, self.document
        samples = load.samples
        document["failed"] += int((samples.outcome == int(Outcome.FAILED)).sum())
        document["rejected"] += int((samples.outcome == int(Outcome.REJECTED)).sum())
        for name in sorted({one for one in samples.errors if one}):
            document["errors"][f"{phase}: {name}"] = {
                "count": samples.errors.count(name),
                "example": samples.details.get(name, ""),
            }
        document["generator"][phase] = asdict(load.generator)
        said = warnings(load.generator, None, events_per_s=0.0)
        document["warnings"] += [f"{phase}: {text}" for text in said]


_FIGURES = (
    *("tokens_per_s", "tokens_lost", "tokens_doubled", "added_itl_p99_ms"),
    *("scheduler_cpu_us_per_token", "scheduler_cpu_us_per_request_1tok", "requests_per_s_1tok"),
    *("ceiling_tokens_per_s", "generator_ceiling_tokens_per_s"),
)


def _body(*, stream: bool) -> BodyOptions:
    return BodyOptions(endpoint=Endpoint.COMPLETIONS, model=_MODEL, stream=stream)


def _us(cpu_s: float, count: int) -> float | None:
    return round(cpu_s / count * 1e6, 2) if count else None


def _cpu_of_each(pids: list[int]) -> list[float]:
    return [tree_usage(pid).cpu_s for pid in pids]


def _read_metrics(url: str) -> None:
    """As a monitoring system does. A server too busy to answer is seen in its streams."""
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:  # noqa: S310  # our own cluster
            answer.read()
    except OSError:
        return


@contextmanager
def _rarely(
    call: Callable[[Progress], None], *, interval_s: float
) -> Iterator[Callable[[Progress], None]]:
    """``call`` at most so often."""
    last_s = [0.0]

    def limited(progress: Progress) -> None:
        now_s = time.monotonic()
        if now_s - last_s[0] >= interval_s:
            last_s[0] = now_s
            call(progress)

    yield limited

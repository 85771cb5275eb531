"""``pdd bench roles``: roles that follow a shifting mix, against fixed ones, on synthetic engines.

For every seed one cluster serves the same load once for each variant: ``auto`` begins with half of
the nodes in each pool and leaves them to the role controller; ``P:D`` has so many prefill and
decode nodes, set by hand, and keeps them. The order of the variants rotates with the seed, so that
none is always first. All step times are modelled; blocks, transfers, HTTP, scheduler and switches
are real.

The controller's times are as much shorter than its defaults as the phases are shorter than a shift
of real traffic (``SETTINGS``).

Document: ``{"schema_version": 1, "load", "settings", "runs": [{"seed", "variant", "sent", "good",
"good_fraction", "goodput_per_s", "phases", "timeline", "pools", "switches", "percentiles", ...}],
"summary": {variant: {...}}, "interrupted"}``.
"""

import os
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pdd.bench.cluster import RunningCluster
from pdd.bench.gateway_cluster import with_synthetic_cluster
from pdd.bench.generator import GeneratorSpec
from pdd.bench.goodput import Objectives
from pdd.bench.picture import check_picture
from pdd.bench.prompts import Calibration
from pdd.bench.roles_figures import figures, summary_of
from pdd.bench.roles_load import EngineShape, Phase, phases_of, shifting_load
from pdd.bench.roles_picture import draw_roles
from pdd.bench.roles_watch import RoleWatch
from pdd.bench.target import BodyOptions, Endpoint, Target
from pdd.bench.workers import run_load
from pdd.core.errors import PddError
from pdd.core.identity import Role
from pdd.daemon.cluster_admin import ClusterAdmin, cluster_admin
from pdd.timing.roofline import Roofline
from pdd.timing.sheets import DEVICES, MODELS

AUTO = "auto"
TIME_SCALE = 8.0
"""Slower than modelled, so that this machine's own time beside a step counts little."""
ENGINE = EngineShape(
    cost=Roofline(model=MODELS["llama-3-8b"], device=DEVICES["h100"], scale=TIME_SCALE),
    chunk_tokens=512,
    sequence_count_max=12,
)
OBJECTIVES = Objectives(ttft_s=2.0, tpot_s=0.15)
SETTINGS = {
    "synthetic.time_model": "llama-3-8b",
    "synthetic.time_device": "h100",
    "synthetic.time_device_count": "1",
    "synthetic.time_scale": repr(TIME_SCALE),
    "engine.max_num_batched_tokens": str(ENGINE.chunk_tokens),
    "engine.max_num_seqs": str(ENGINE.sequence_count_max),
    "engine.max_model_len": "4096",
    "engine.kv_cache_bytes": str(32 << 20),
    "scheduler.queue_limit_requests": "4096",
    "roles.mode": "auto",
    "roles.ttft_objective_s": repr(OBJECTIVES.ttft_s),
    "roles.tpot_objective_s": repr(OBJECTIVES.tpot_s),
    "roles.window_s": "2",
    "roles.backlog_horizon_s": "5",
    "roles.sustain_s": "0.75",
    "roles.cooldown_s": "2",
    "roles.step_fraction": "0.5",
    "roles.guard_window_s": "2.5",
    "roles.guard_min_requests": "10",
    "roles.guard_rest_s": "15",
    "roles.switch_deadline_s": "30",
}
_ONE_TO_ONE = Calibration(tokens_per_word=1.0, overhead_tokens=0.0, measured=True)
_TIMEOUT_S = 120.0
_GRACE_S = 10.0
"""What has not ended so long after the load is late by any measure; it is cut off and counted."""
_SET_LIMIT_S = 60.0
_SETTLE_S = 6.0
_WARM_S = 4.0
_POLL_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class RolesOptions:
    """``fixed``: (prefill nodes, decode nodes) of each variant beside ``auto``. ``load_nodes``:
    what each phase asks of its heavy duty."""

    node_count: int = 4
    fixed: tuple[tuple[int, int], ...] = ((2, 2),)
    heavies: tuple[Role, ...] = (Role.PREFILL, Role.DECODE, Role.PREFILL)
    phase_s: float = 20.0
    load_nodes: float = 2.3
    first_seed: int = 1
    seed_count: int = 1
    picture: Path | None = None
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def even(self) -> tuple[int, int]:
        """How ``auto`` begins."""
        return self.node_count // 2, self.node_count - self.node_count // 2

    @property
    def variants(self) -> tuple[str, ...]:
        """By name."""
        return AUTO, *(f"{prefill}:{decode}" for prefill, decode in self.fixed)


class RolesBench:
    """``document`` has what is known so far, at any time."""

    def __init__(
        self,
        options: RolesOptions,
        *,
        say: Callable[[str], None],
        environment: Mapping[str, str],
    ) -> None:
        self._options = options
        self._say = say
        self._environment = environment
        self._phases = phases_of(
            options.heavies,
            duration_s=options.phase_s,
            load_nodes=options.load_nodes,
            engine=ENGINE,
        )
        self._warm_up = phases_of(
            (Role.PREFILL, Role.DECODE), duration_s=_WARM_S, load_nodes=1.0, engine=ENGINE
        )
        """Before the first variant: a cluster that has just started is slower, and knows nothing
        of its own speed."""
        self._settings = {**SETTINGS, **options.settings}
        self.document: dict[str, Any] = {
            "schema_version": 1,
            "load": {
                "node_count": options.node_count,
                "load_nodes": options.load_nodes,
                "objectives": {"ttft_s": OBJECTIVES.ttft_s, "tpot_s": OBJECTIVES.tpot_s},
                "phases": [_described(phase) for phase in self._phases],
            },
            "settings": self._settings,
            "machine": {
                "cpus": os.cpu_count(),
                "load_before": round(os.getloadavg()[0], 2),
            },
            "runs": [],
            "summary": {},
            "interrupted": False,
        }

    def run(self) -> bool:
        """Everything; whether Ctrl-C ended it early.

        Raises:
            PddError: a cluster did not start, or died; the picture cannot be drawn.
        """
        options = self._options
        if options.picture is not None:
            check_picture(options.picture)
        try:
            for seed in range(options.first_seed, options.first_seed + options.seed_count):
                self._of_seed(seed)
        except KeyboardInterrupt:
            self.document["interrupted"] = True
        runs = self.document["runs"]
        self.document["summary"] = summary_of(runs)
        if options.picture is not None and runs:
            draw_roles(options.picture, self.document)
            self._say(f"picture: {options.picture}")
        return bool(self.document["interrupted"])

    def _of_seed(self, seed: int) -> None:
        options = self._options
        variants = options.variants
        first = (seed - options.first_seed) % len(variants)
        order = [*variants[first:], *variants[:first]]

        def work(cluster: RunningCluster) -> None:
            with cluster_admin(cluster.record.grpc) as admin:
                warm_up = self._spec(cluster, self._warm_up, seed, texts="warm-up")
                run_load(warm_up, process_count=1)
                for variant in order:
                    if cluster.interrupt.is_set():
                        raise KeyboardInterrupt
                    self._measure(cluster, admin, variant, seed)

        prefill, decode = options.even
        self._say(f"seed {seed}: a cluster of {prefill + decode} nodes")
        with_synthetic_cluster(
            work,
            prefill_count=prefill,
            decode_count=decode,
            settings=self._settings,
            report=lambda _: None,
            environment=self._environment,
        )

    def _measure(
        self, cluster: RunningCluster, admin: ClusterAdmin, variant: str, seed: int
    ) -> None:
        options = self._options
        is_auto = variant == AUTO
        split = options.even if is_auto else _split(variant)
        set_split(admin, *split)
        time.sleep(_SETTLE_S)  # the smoothed load of the variant before is forgotten
        if is_auto:
            for node in admin.roles().nodes:
                admin.set_role(node.node, AUTO, message="")
        spec = self._spec(cluster, self._phases, seed, texts=variant)
        self._say(
            f"seed {seed}, {variant}: {len(spec.planned)} requests in "
            f"{len(self._phases) * options.phase_s:g} s"
        )
        with RoleWatch(admin) as watch:
            load = run_load(spec, process_count=1, interrupt=cluster.interrupt)
        if load.interrupted:
            raise KeyboardInterrupt
        run = {
            "seed": seed,
            "variant": variant,
            **figures(load.samples, OBJECTIVES, self._phases),
            "pools": watch.pools(origin_s=load.origin_s),
            "switches": watch.switches(origin_s=load.origin_s),
            "generator": asdict(load.generator),
        }
        self.document["runs"].append(run)
        self._say(
            f"seed {seed}, {variant}: {run['good']} of {run['sent']} good "
            f"({run['goodput_per_s']:.2f}/s), {run['failed']} failed, "
            f"{run['unfinished']} unfinished, "
            f"{sum(one['stage'] == 'done' for one in run['switches'])} switches"
        )

    def _spec(
        self, cluster: RunningCluster, phases: Sequence[Phase], seed: int, *, texts: str
    ) -> GeneratorSpec:
        """Every variant has the same requests in other words: the one before must not have left
        its prompts in the prefix caches."""
        return GeneratorSpec(
            target=Target(host="127.0.0.1", port=cluster.http_port),
            body=BodyOptions(endpoint=Endpoint.COMPLETIONS, model=cluster.record.model),
            calibration=_ONE_TO_ONE,
            seed=text_seed(seed, texts),
            planned=shifting_load(phases, seed=seed),
            timeout_s=_TIMEOUT_S,
            grace_s=_GRACE_S,
        )


def text_seed(seed: int, texts: str) -> int:
    """Of the words of a variant's prompts."""
    return zlib.crc32(f"{seed} {texts}".encode())


def set_split(admin: ClusterAdmin, prefill_count: int, decode_count: int) -> None:
    """By hand, and wait until it is so. Decode nodes first: one must always be there.

    Raises:
        PddError: it is not so in time.
    """
    names = sorted((node.node for node in admin.roles().nodes), key=_decode_first)
    assert len(names) == prefill_count + decode_count, names
    for index, name in enumerate(names):
        admin.set_role(
            name, Role.DECODE if index < decode_count else Role.PREFILL, message="pdd bench roles"
        )
    deadline_s = time.monotonic() + _SET_LIMIT_S
    while True:
        nodes = admin.roles().nodes
        counts = [node.role for node in nodes if not node.next_role]
        if (counts.count("prefill"), counts.count("decode")) == (prefill_count, decode_count):
            return
        if time.monotonic() > deadline_s:
            raise PddError(f"the roles were not set within {_SET_LIMIT_S:g} s: {counts}")
        time.sleep(_POLL_S)


def _decode_first(name: str) -> tuple[bool, str]:
    return not name.startswith("decode"), name


def _split(variant: str) -> tuple[int, int]:
    prefill, _, decode = variant.partition(":")
    return int(prefill), int(decode)


def _described(phase: Phase) -> dict[str, Any]:
    return {
        "heavy": phase.heavy.value,
        "begin_s": phase.begin_s,
        "duration_s": phase.duration_s,
        "rate_per_s": round(phase.rate_per_s, 3),
        "input_tokens": phase.shape.input_tokens,
        "output_tokens": phase.shape.output_tokens,
    }

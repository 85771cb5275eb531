"""Which daemons ``pdd up`` starts, and the configuration of each. Pure."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pdd.config.load import Loaded, load_config
from pdd.config.schema import fields_of, split_name
from pdd.config.sources import Flag, Setting, fault_line, read_environment, read_flags
from pdd.config.toml_text import to_toml
from pdd.core.errors import ConfigError
from pdd.core.identity import Role
from pdd.daemon.supervisor_plan import DaemonPlan

_OWNED = {
    "node.name": "pdd up names the nodes",
    "node.role": "pdd up gives the roles; see --prefill and --decode",
    "node.state_dir": "use --state-dir",
    "node.schedulers": "pdd up connects the nodes",
    "raft.replicas": "use --schedulers",
    "raft.schedulers": "use --schedulers",
    "http.listen": "use --http-port",
    "grpc.listen": "use --grpc-port",
    "engine.kind": "use --engine",
    **dict.fromkeys(
        [f"{s}.{key}" for s in ("tls", "public_tls") for key in fields_of(s)],
        "pdd up stays on loopback and needs no certificates; run daemons with 'pdd serve'",
    ),
}
"""Keys that ``pdd up`` sets itself, and what to do instead of setting them."""

_SYNTHETIC_PRESETS: dict[str, object] = {
    "engine.kv_cache_bytes": 16 << 20,
    "engine.max_model_len": 16_384,
    "engine.max_num_batched_tokens": 2048,
    "engine.max_num_seqs": 256,
}
"""Below every other source, as the model's path is: the section's defaults fit a small model on a
CPU, and would hold back an engine that computes nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerPorts:
    """Of one scheduler, on loopback."""

    http: int
    grpc: int
    raft: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UpOptions:
    """What the operator asked for, with ports picked and the model found."""

    state_dir: Path
    prefill_count: int
    decode_count: int
    threads_per_node: int
    schedulers: tuple[SchedulerPorts, ...]
    model_path: Path
    model_name: str
    engine: str = "vllm"
    flags: tuple[Flag, ...] = ()


def plan_cluster(
    options: UpOptions,
    *,
    cores: Sequence[int],
    gpus: Sequence[str],
    environment: Mapping[str, str],
) -> tuple[DaemonPlan, ...]:
    """Plan the schedulers and all nodes.

    Args:
        cores: cores that may be used; dealt out ``threads_per_node`` at a time, starting over
            when there are fewer than needed.
        gpus: GPUs that may be used, dealt out likewise, one per node. Empty on a CPU machine.
        environment: for ``PDD_SECTION__KEY`` overrides, which apply to every daemon.
    Raises:
        ConfigError: an override is wrong, or sets what ``pdd up`` sets itself.
    """
    _refuse_owned_keys(options.flags, environment)
    nodes = [(f"prefill-{i}", Role.PREFILL) for i in range(options.prefill_count)]
    nodes += [(f"decode-{i}", Role.DECODE) for i in range(options.decode_count)]
    plans: list[DaemonPlan] = []
    faults: dict[str, None] = {}  # the same fault in every daemon is one fault
    schedulers = [(f"scheduler-{i}", Role.SCHEDULER) for i in range(len(options.schedulers))]
    for index, (name, role) in enumerate([*schedulers, *nodes], start=-len(schedulers)):
        presets = _presets(options, name=name, role=role)
        if role is not Role.SCHEDULER:
            first = index * options.threads_per_node
            dealt = [
                cores[(first + i) % len(cores)]
                for i in range(min(options.threads_per_node, len(cores)))
            ]
            presets["node.cpu_cores"] = dealt
            if gpus:
                presets["node.gpus"] = [gpus[index % len(gpus)]]
        try:
            loaded = load_config(
                None,
                environment=environment,
                flags=options.flags,
                presets=[_setting(key, value) for key, value in presets.items()],
            )
        except ConfigError as error:
            faults |= dict.fromkeys(str(error).splitlines())
            continue
        plans.append(_daemon_plan(options.state_dir, loaded))
    if faults:
        raise ConfigError("\n".join(faults))
    return tuple(plans)


def _presets(options: UpOptions, *, name: str, role: Role) -> dict[str, object]:
    named = {f"scheduler-{i}": ports for i, ports in enumerate(options.schedulers)}
    presets: dict[str, object] = {
        "node.name": name,
        "node.role": role.value,
        "node.state_dir": str(options.state_dir / name),
        "engine.kind": options.engine,
        "engine.model": str(options.model_path),
        "engine.served_model_name": options.model_name,
    }
    if options.engine == "synthetic":
        presets |= _SYNTHETIC_PRESETS
    if role is Role.SCHEDULER:
        if len(named) > 1:
            presets |= {
                "raft.replicas": {one: f"127.0.0.1:{ports.raft}" for one, ports in named.items()},
                "raft.schedulers": {one: f"127.0.0.1:{ports.grpc}" for one, ports in named.items()},
            }
        return presets | {
            "http.listen": f"127.0.0.1:{named[name].http}",
            "grpc.listen": f"127.0.0.1:{named[name].grpc}",
            # One machine gains nothing by a hand-over; whoever starts it here wants to see one.
            "scheduler.path.mode": "disaggregated",
        }
    return presets | {
        "node.schedulers": [f"127.0.0.1:{ports.grpc}" for ports in options.schedulers],
        "grpc.listen": "127.0.0.1:0",
    }


def _refuse_owned_keys(flags: Sequence[Flag], environment: Mapping[str, str]) -> None:
    settings = read_environment(environment).settings + read_flags(flags).settings
    faults = [
        fault_line(s.origin, f"{s.name}: {_OWNED[s.name]}") for s in settings if s.name in _OWNED
    ]
    if faults:
        raise ConfigError("\n".join(faults))


def _setting(name: str, value: object) -> Setting:
    section, key = split_name(name)
    return Setting(section=section, key=key, value=value, origin="pdd up")


def _daemon_plan(state_dir: Path, loaded: Loaded) -> DaemonPlan:
    node = loaded.config.node
    values = loaded.config.model_dump(mode="json", by_alias=True)
    tables: dict[str, dict[str, object]] = {}
    for name in loaded.origins:
        section, key = split_name(name)
        tables.setdefault(section, {})[key] = values[section][key]
    config_path = state_dir / f"{node.name}.toml"
    arguments = ("--role", node.role.value, "--config", str(config_path))
    header = f"# Written by pdd up for {node.name}; the next pdd up overwrites it.\n\n"
    return DaemonPlan(
        name=node.name,
        role=node.role,
        state_dir=node.state_dir,
        config_path=config_path,
        config_text=header + to_toml(tables),
        log_path=state_dir / "log" / f"{node.name}.log",
        argv=(sys.executable, "-m", "pdd.cli.main", "serve", *arguments),
    )

"""What ``pdd up`` does before and around the supervisor."""

import errno
import glob
import os
import signal
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import click

from pdd.cli.output import print_json, say
from pdd.config.sources import Flag
from pdd.core.errors import PddError
from pdd.core.identity import Role
from pdd.daemon.supervisor_down import clean_up
from pdd.daemon.supervisor_events import stop_signals
from pdd.daemon.supervisor_layout import SchedulerPorts, UpOptions, plan_cluster
from pdd.daemon.supervisor_members import start_ticks
from pdd.daemon.supervisor_plan import DaemonPlan
from pdd.daemon.supervisor_state import ClusterRecord, StateDir, new_cluster_id, read_record


@dataclass(frozen=True, slots=True, kw_only=True)
class UpRequest:
    """The command line of ``pdd up``, checked for form."""

    state_dir: Path
    engine: str
    model: str | None
    prefill_count: int
    decode_count: int
    http_port: int
    grpc_port: int
    scheduler_count: int
    threads_per_node: int
    start_timeout_s: float
    flags: tuple[Flag, ...]
    is_detached: bool
    as_json: bool


def run_up(request: UpRequest, *, environment: Mapping[str, str]) -> int:
    """Prepare, start, and watch or return. Returns the exit code.

    Cheap refusals come first: an engine takes half a minute to load, and nobody should wait for
    that to hear that a port is taken.

    Raises:
        PddError: nothing runs and nothing is left behind.
    """
    with _signals_interrupt():
        state_dir = StateDir.lock(request.state_dir)
        try:
            if leftovers := clean_up(state_dir):
                say(f"stopped {leftovers} processes that a killed 'pdd up' had left")
            ports = _ports(request)
            _plan(request, ports, environment, Path("unresolved"), "unresolved")
            _announce(state_dir)
            model_path, model_name = _find_model(request)
            plans = _plan(request, ports, environment, model_path, model_name)
            if request.scheduler_count > 1:
                _begin_logs(plans)
            if request.is_detached:
                from pdd.cli.up_detached import start_in_background

                record = start_in_background(
                    state_dir,
                    plans,
                    model=model_name,
                    start_timeout_s=request.start_timeout_s,
                    report=_report,
                )
                _print_endpoint(record, as_json=request.as_json)
                return 0
            return _run_in_foreground(request, state_dir, plans, model=model_name)
        except BaseException:  # Ctrl-C too: a record without a cluster would stay behind
            _remove_own_record(state_dir)
            raise
        finally:
            state_dir.close()


def _run_in_foreground(
    request: UpRequest, state_dir: StateDir, plans: tuple[DaemonPlan, ...], *, model: str
) -> int:
    import asyncio

    from pdd.daemon.supervisor import Supervisor

    def on_ready(record: ClusterRecord) -> None:
        with suppress(OSError):  # as in _report: the cluster outlives the reader of its messages
            _print_endpoint(record, as_json=request.as_json)
        _report("ready; Ctrl-C stops the cluster")

    async def run() -> int:
        supervisor = Supervisor(
            state_dir=state_dir,
            plans=plans,
            model=model,
            report=_report,
            on_ready=on_ready,
            start_timeout_s=request.start_timeout_s,
        )
        return await supervisor.run()

    return asyncio.run(run())


def _find_model(request: UpRequest) -> tuple[Path, str]:
    """Folder and name of the model: found, converted, downloaded, or made on the spot."""
    if request.engine == "synthetic":
        from pdd.engine.synthetic.model import resolve_synthetic_model

        return resolve_synthetic_model(request.model, state_dir=request.state_dir)
    from pdd.model.resolve import resolve_model

    model = resolve_model(request.model)
    return model.path, model.name


def _plan(
    request: UpRequest,
    ports: tuple[SchedulerPorts, ...],
    environment: Mapping[str, str],
    model_path: Path,
    model_name: str,
) -> tuple[DaemonPlan, ...]:
    """Also called with no model yet: to hear about wrong overrides before a download."""
    options = UpOptions(
        state_dir=request.state_dir,
        engine=request.engine,
        prefill_count=request.prefill_count,
        decode_count=request.decode_count,
        threads_per_node=request.threads_per_node,
        schedulers=ports,
        model_path=model_path,
        model_name=model_name,
        flags=request.flags,
    )
    cores = sorted(os.sched_getaffinity(0))
    return plan_cluster(options, cores=cores, gpus=_find_gpus(environment), environment=environment)


def _ports(request: UpRequest) -> tuple[SchedulerPorts, ...]:
    """Free ones for each scheduler. Raises PddError: a wanted one is taken."""
    return tuple(
        SchedulerPorts(
            http=_check_port(_nth(request.http_port, index), option="--http-port"),
            grpc=_check_port(_nth(request.grpc_port, index), option="--grpc-port"),
            raft=_check_port(0, option="--grpc-port"),
        )
        for index in range(request.scheduler_count)
    )


def _nth(port: int, index: int) -> int:
    return port + index if port else 0


def _begin_logs(plans: tuple[DaemonPlan, ...]) -> None:
    """Of the schedulers of a new cluster; those of an earlier 'pdd up' are kept.

    Raises:
        PddError: some have one and some have none.
    """
    from pdd.config.load import load_config
    from pdd.daemon.replica_plan import begin_log_of, log_folder
    from pdd.daemon.supervisor_plan import write_plans

    schedulers = [plan for plan in plans if plan.role is Role.SCHEDULER]
    write_plans(schedulers)
    configs = [
        load_config(plan.config_path, environment={}, flags=()).config for plan in schedulers
    ]
    begun = [config.node.name for config in configs if log_folder(config).exists()]
    if not begun:
        for config in configs:
            begin_log_of(config)
    elif len(begun) < len(configs):
        raise PddError(
            f"of {len(configs)} schedulers only {', '.join(begun)} "
            f"{'has' if len(begun) == 1 else 'have'} a log in the state folder: use --schedulers "
            "as before, or another --state-dir; a lost one is replaced with 'pdd raft replace'"
        )


def _find_gpus(environment: Mapping[str, str]) -> list[str]:
    """GPUs that this process may use, without loading anything that talks to them."""
    if "CUDA_VISIBLE_DEVICES" in environment:
        listed = [gpu.strip() for gpu in environment["CUDA_VISIBLE_DEVICES"].split(",")]
        return [gpu for gpu in listed if gpu not in ("", "-1")]
    return sorted(path.removeprefix("/dev/nvidia") for path in glob.glob("/dev/nvidia[0-9]*"))


def _check_port(port: int, *, option: str) -> int:
    """Bind and release a loopback port. Returns it, or a free one for 0.

    Raises:
        PddError: it is taken.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # Connections of a previous run that linger do not count as "in use"; servers agree.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
            probe.listen(1)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise PddError(
                    f"{option} {port}: port {port} of 127.0.0.1 is in use; choose another, or 0 "
                    "for any free one"
                ) from error
            raise PddError(f"{option} {port}: {error.strerror}; choose another") from error
        return int(probe.getsockname()[1])


def _announce(state_dir: StateDir) -> None:
    """Let ``pdd down`` find us while the model is being prepared."""
    pid = os.getpid()
    record = ClusterRecord(
        cluster_id=new_cluster_id(),
        supervisor_pid=pid,
        supervisor_start_ticks=start_ticks(pid) or 0,
        temporary_dir="",
        state="starting",
    )
    try:
        state_dir.write_record(record)
    except OSError as error:
        raise PddError(
            f"cannot write {error.filename or state_dir.path}: {error.strerror}; make room, or use "
            "another --state-dir"
        ) from error


def _remove_own_record(state_dir: StateDir) -> None:
    """Not that of a background supervisor, which ``pdd down`` may still need."""
    record = read_record(state_dir.path)
    if record is not None and record.supervisor_pid == os.getpid():
        state_dir.remove_record()


def _report(text: str) -> None:
    with suppress(OSError):  # the terminal is gone; starting and stopping go on without it
        say(text)


@contextmanager
def _signals_interrupt() -> Iterator[None]:
    """Until the supervisor has its own handlers: all stop signals unwind like Ctrl-C."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in stop_signals()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _print_endpoint(record: ClusterRecord, *, as_json: bool) -> None:
    if as_json:
        print_json(record.public())
    else:
        for line in endpoint_lines(record):
            click.echo(line)


def endpoint_lines(record: ClusterRecord) -> list[str]:
    """The cluster's endpoint, then those of its further schedulers."""
    return [f"{record.http}/v1  (model {record.model}, gRPC {record.grpc})"] + [
        f"{node.http}/v1  ({node.name}, gRPC {node.address})"
        for node in record.nodes
        if node.http and node.http != record.http
    ]

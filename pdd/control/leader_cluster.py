"""What is asked of any scheduler and known to the leader: passed on, once."""

from collections.abc import Callable, Mapping
from typing import Any

import grpc
import grpc.aio

from pdd.control.versions import CHANNEL_OPTIONS
from pdd.rpc.v1 import cluster_pb2_grpc
from pdd.tls.security import PLAIN, Security

_MARK = "pdd-asked-by-scheduler"
_TIMEOUT_S = 1.0
"""Short of a command's own: what the leader does not answer is answered or refused here."""
_LOST = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


class LeaderCluster:
    """The leader's ``Cluster`` service, as another scheduler reaches it."""

    def __init__(
        self,
        address: Callable[[], str],
        *,
        addresses: Mapping[str, str] | None = None,
        security: Security = PLAIN,
    ) -> None:
        """``address``: of the leader; empty where this scheduler is to answer itself.
        ``addresses``: of all schedulers, by name."""
        self._address = address
        self._addresses = addresses or {}
        self._security = security

    async def ask(
        self, method: str, request: Any, context: Any, *, scheduler: str = ""
    ) -> Any | None:
        """The answer of ``scheduler``, or else the leader's, its refusals too; None: it is this
        scheduler's to answer. A connection per question: they are rare."""
        address = self._addresses[scheduler] if scheduler else self._address()
        if not address or _MARK in dict(context.invocation_metadata()):
            return None
        async with self._security.channel(address, options=CHANNEL_OPTIONS) as channel:
            call = getattr(cluster_pb2_grpc.ClusterStub(channel), method)
            try:
                return await call(request, timeout=_TIMEOUT_S, metadata=((_MARK, "1"),))
            except grpc.aio.AioRpcError as error:
                if error.code() in _LOST:
                    return None
                await context.abort(error.code(), error.details())
                raise  # not reached: abort raised

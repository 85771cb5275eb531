"""What is asked of any scheduler and known to the leader, or to some: passed on, once."""

import asyncio
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
        name: str = "",
        addresses: Mapping[str, str] | None = None,
        security: Security = PLAIN,
    ) -> None:
        """``address``: of the leader; empty where this scheduler is to answer itself. ``name``:
        this scheduler's. ``addresses``: of all schedulers, by name."""
        self.name = name
        self._address = address
        self._addresses = addresses or {}
        self._security = security

    @property
    def leads_elsewhere(self) -> bool:
        """Another scheduler is to answer what only the leader knows."""
        return bool(self._address())

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

    async def ask_others(
        self, method: str, request: Any, context: Any
    ) -> tuple[dict[str, Any], list[str]]:
        """All at the same time: what the others know, by name; and who did not answer. One that
        knows nothing is in neither. Nobody is asked on behalf of another scheduler."""
        if _MARK in dict(context.invocation_metadata()):
            return {}, []
        others = [name for name in self._addresses if name != self.name]
        async with asyncio.TaskGroup() as tasks:
            asked = [tasks.create_task(self._ask_one(name, method, request)) for name in others]
        told = [task.result() for task in asked]
        answers = {
            name: answer
            for name, (answer, _) in zip(others, told, strict=True)
            if answer is not None
        }
        silent = [name for name, (_, is_silent) in zip(others, told, strict=True) if is_silent]
        return answers, silent

    async def _ask_one(self, name: str, method: str, request: Any) -> tuple[Any | None, bool]:
        """What it knows, and whether it did not answer."""
        address = self._addresses[name]
        async with self._security.channel(address, options=CHANNEL_OPTIONS) as channel:
            call = getattr(cluster_pb2_grpc.ClusterStub(channel), method)
            try:
                answer = await call(request, timeout=_TIMEOUT_S, metadata=((_MARK, "1"),))
            except grpc.aio.AioRpcError as error:
                return None, error.code() is not grpc.StatusCode.NOT_FOUND
            return answer, False

"""The Settings service: what operators change while a cluster runs."""

import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any, Protocol

import grpc
import structlog

from pdd.core.errors import RemoteError
from pdd.rpc.v1 import settings_pb2, settings_pb2_grpc
from pdd.tls.claims import PeerRefused, check_role
from pdd.tls.identity import CertificateRole
from pdd.tls.security import PLAIN, Security

log = structlog.get_logger(__name__)

_OPERATORS = (CertificateRole.CLIENT, CertificateRole.SCHEDULER)


class SettingRefused(Exception):
    """It cannot be set so. The message names key or tenant, value and limit."""


class SettingsOperator(Protocol):
    """What the daemon behind it answers. All calls come on the event loop."""

    async def set_override(self, key: str, value: str | None) -> bool:
        """None: take it back. Whether that changed anything; agreed on and in the own state before
        it returns. Raises SettingRefused; RemoteError: not agreed on in time."""
        ...

    def overrides(self) -> list[settings_pb2.Override]:
        """By key."""
        ...

    async def set_quota(
        self, tenant: str, *, requests_max: int | None, tokens_per_minute_max: int | None
    ) -> bool:
        """None: as it is; both None: no limits. Returns and raises likewise."""
        ...

    def quotas(self) -> list[settings_pb2.Quota]:
        """By tenant."""
        ...


class SettingsServicer(settings_pb2_grpc.SettingsServicer):
    """grpc.aio servicer; see settings.proto."""

    def __init__(
        self,
        operator: SettingsOperator,
        *,
        stale_reason: Callable[[], str],
        security: Security = PLAIN,
    ) -> None:
        """``stale_reason``: as in ``ClusterHandler``."""
        self._operator = operator
        self._stale_reason = stale_reason
        self._security = security

    async def SetOverride(
        self, request: settings_pb2.SetOverrideRequest, context: Any
    ) -> settings_pb2.SetOverrideResponse:
        """See settings.proto."""
        value = request.value if request.HasField("value") else None
        async with self._admitted(context):
            is_changed = await self._operator.set_override(request.key, value)
        return settings_pb2.SetOverrideResponse(is_changed=is_changed)

    async def ListOverrides(
        self, request: settings_pb2.ListOverridesRequest, context: Any
    ) -> settings_pb2.ListOverridesResponse:
        """See settings.proto."""
        async with self._admitted(context):
            overrides = self._operator.overrides()
        return settings_pb2.ListOverridesResponse(
            overrides=overrides, stale_reason=self._stale_reason()
        )

    async def SetQuota(
        self, request: settings_pb2.SetQuotaRequest, context: Any
    ) -> settings_pb2.SetQuotaResponse:
        """See settings.proto."""
        named = request.HasField("tokens_per_minute_max")
        async with self._admitted(context):
            is_changed = await self._operator.set_quota(
                request.tenant,
                requests_max=request.requests_max if request.HasField("requests_max") else None,
                tokens_per_minute_max=request.tokens_per_minute_max if named else None,
            )
        return settings_pb2.SetQuotaResponse(is_changed=is_changed)

    async def ListQuotas(
        self, request: settings_pb2.ListQuotasRequest, context: Any
    ) -> settings_pb2.ListQuotasResponse:
        """See settings.proto."""
        async with self._admitted(context):
            quotas = self._operator.quotas()
        return settings_pb2.ListQuotasResponse(quotas=quotas, stale_reason=self._stale_reason())

    @contextlib.asynccontextmanager
    async def _admitted(self, context: Any) -> AsyncIterator[None]:
        """For operators; ends the call with a status where what is done inside is refused."""
        try:
            check_role(self._security.caller(context), _OPERATORS)
            yield
        except PeerRefused as error:
            log.warning("caller_refused", peer=context.peer(), reason=str(error))
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, str(error))
        except SettingRefused as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except RemoteError as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))

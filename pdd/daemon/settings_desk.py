"""What an operator changes while the cluster runs: overrides of the configuration, and quotas."""

from pdd.cell.codec import TEXT_MAX_CHARS
from pdd.cell.operations import OverrideRemoved, OverrideSet, QuotaRemoved, QuotaSet, Status
from pdd.cell.state import OVERRIDES_MAX, QUOTAS_MAX
from pdd.config.runtime import overridden
from pdd.config.schema import split_name
from pdd.config.sections import Config
from pdd.config.toml_text import value_text
from pdd.control.settings_server import SettingRefused
from pdd.core.errors import ConfigError, InvalidRequest
from pdd.daemon.agreed_settings import usable
from pdd.daemon.agreement import Agreement, NotSayable
from pdd.gateway.tenants import check_tenant
from pdd.rpc.v1 import settings_pb2

_KEY_MAX_CHARS = 128


class SettingsDesk:
    """Implements ``SettingsOperator``: checks what is asked and says it to the agreement. Any
    scheduler may: what is set is the same, whoever leads."""

    def __init__(self, *, config: Config, agreement: Agreement) -> None:
        """``config``: this scheduler's own, without overrides."""
        self._config = config
        self._agreement = agreement

    async def set_override(self, key: str, value: str | None) -> bool:
        """See ``SettingsOperator``."""
        state = self._agreement.state
        _check_length("key", key, _KEY_MAX_CHARS)
        if value is None:
            return await self._say(OverrideRemoved(key=key)) is Status.APPLIED
        _check_length("value", value, TEXT_MAX_CHARS)
        try:
            overridden(self._config, {key: value})
            others, _ = usable(self._config, state)
            overridden(others, {key: value})
        except ConfigError as error:
            raise SettingRefused(str(error)) from error
        status = await self._say(OverrideSet(key=key, value=value))
        if status is Status.FULL:
            raise SettingRefused(f"{OVERRIDES_MAX} keys are overridden, the most; unset some first")
        return status is Status.APPLIED

    def overrides(self) -> list[settings_pb2.Override]:
        """See ``SettingsOperator``."""
        state = self._agreement.state
        _, faults = usable(self._config, state)
        return [
            settings_pb2.Override(
                key=key,
                value=state.overrides[key].value,
                configured_value=self._configured(key),
                fault=faults.get(key, ""),
            )
            for key in state.overrides.names()
        ]

    async def set_quota(
        self, tenant: str, *, requests_max: int | None, tokens_per_minute_max: int | None
    ) -> bool:
        """See ``SettingsOperator``."""
        try:
            check_tenant(tenant, field="tenant")
        except InvalidRequest as error:
            raise SettingRefused(str(error)) from error
        if requests_max is None and tokens_per_minute_max is None:
            return await self._say(QuotaRemoved(tenant=tenant)) is Status.APPLIED
        _check_limit("requests_max", requests_max)
        _check_limit("tokens_per_minute_max", tokens_per_minute_max)
        present = self._agreement.state.quotas.get(tenant)
        if present is not None and requests_max is None:
            requests_max = present.running_requests_max
        if present is not None and tokens_per_minute_max is None:
            tokens_per_minute_max = present.tokens_per_minute_max
        said = QuotaSet(
            tenant=tenant,
            running_requests_max=requests_max,
            tokens_per_minute_max=tokens_per_minute_max,
        )
        status = await self._say(said)
        if status is Status.FULL:
            raise SettingRefused(f"{QUOTAS_MAX} tenants have quotas, the most; unset some first")
        return status is Status.APPLIED

    def quotas(self) -> list[settings_pb2.Quota]:
        """See ``SettingsOperator``."""
        quotas = self._agreement.state.quotas
        return [
            settings_pb2.Quota(
                tenant=tenant,
                requests_max=quotas[tenant].running_requests_max,
                tokens_per_minute_max=quotas[tenant].tokens_per_minute_max,
            )
            for tenant in quotas.names()
        ]

    async def _say(
        self, operation: OverrideSet | OverrideRemoved | QuotaSet | QuotaRemoved
    ) -> Status:
        try:
            return await self._agreement.say(operation)
        except NotSayable as error:
            raise SettingRefused(str(error)) from error

    def _configured(self, name: str) -> str:
        section, key = split_name(name)
        values = self._config.model_dump(mode="json", by_alias=True).get(section, {})
        return value_text(values[key]) if key in values else ""


def _check_limit(what: str, limit: int | None) -> None:
    if limit is not None and limit < 0:
        raise SettingRefused(f"{what} is {limit}; it must be at least 0")


def _check_length(what: str, text: str, max_chars: int) -> None:
    """What is refused is repeated, and of a status 8 KB arrive: no more than fits is looked at."""
    if len(text) > max_chars:
        raise SettingRefused(f"{what} has {len(text)} characters; it must have at most {max_chars}")

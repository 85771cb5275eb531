"""Overrides and quotas: checked, agreed on, told to the core, and told to who asks."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import pytest

from pdd.cell.operations import Operation, OverrideSet, Status
from pdd.cell.state import CellState
from pdd.config.sections import Config, NodeSection
from pdd.control.settings_server import SettingRefused, SettingsServicer
from pdd.core.identity import Role
from pdd.daemon.agreed_settings import AgreedSettings
from pdd.daemon.agreement import AgreementOfOne, AgreementUnavailable
from pdd.daemon.settings_desk import SettingsDesk
from pdd.rpc.v1 import settings_pb2, settings_pb2_grpc
from pdd.scheduler.events import QuotasChanged, SettingsChanged
from pdd.scheduler.quotas import Quota
from pdd.scheduler.settings import PathMode

CONFIG = Config(node=NodeSection(name="scheduler-0", role=Role.SCHEDULER))
MODE = "scheduler.path.mode"


def desk() -> tuple[SettingsDesk, AgreementOfOne]:
    agreement = AgreementOfOne()
    return SettingsDesk(config=CONFIG, agreement=agreement), agreement


async def set_quota(
    settings: SettingsDesk, tenant: str, *, requests: int | None = None, tokens: int | None = None
) -> bool:
    return await settings.set_quota(tenant, requests_max=requests, tokens_per_minute_max=tokens)


async def test_what_is_set_is_agreed_on_and_listed_beside_the_files_value() -> None:
    settings, agreement = desk()
    assert await settings.set_override(MODE, "local")
    assert not await settings.set_override(MODE, "local"), "it is so already"
    assert agreement.state.overrides[MODE].value == "local"
    (listed,) = settings.overrides()
    assert (listed.key, listed.value, listed.configured_value) == (MODE, "local", '"auto"')
    assert await settings.set_override(MODE, None)
    assert not await settings.set_override(MODE, None)
    assert settings.overrides() == []


async def test_what_does_not_fit_is_not_said() -> None:
    settings, agreement = desk()
    with pytest.raises(SettingRefused, match="got 'fast'"):
        await settings.set_override(MODE, "fast")
    with pytest.raises(SettingRefused, match="at a start only"):
        await settings.set_override("http.listen", "127.0.0.1:1")
    with pytest.raises(SettingRefused, match='tenant: "a b" must have'):
        await set_quota(settings, "a b", requests=1)
    assert (len(agreement.state.overrides), len(agreement.state.quotas)) == (0, 0)


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        (MODE, "\U0001f600" * 513, "value has 513 characters; it must have at most 512"),
        (MODE + "x" * 200, "local", "key has 219 characters; it must have at most 128"),
        (MODE + "x" * 200, None, "key has 219 characters; it must have at most 128"),
    ],
)
async def test_what_is_too_long_to_be_repeated_is_refused_by_its_length(
    key: str, value: str | None, why: str
) -> None:
    settings, _ = desk()
    with pytest.raises(SettingRefused, match=f"^{why}$"):
        await settings.set_override(key, value)


async def test_quotas_are_agreed_on_and_listed() -> None:
    settings, _ = desk()
    assert await set_quota(settings, "acme", requests=3)
    assert await set_quota(settings, "zeta", requests=0)
    assert not await set_quota(settings, "acme", requests=3)
    assert [(one.tenant, one.requests_max) for one in settings.quotas()] == [
        ("acme", 3),
        ("zeta", 0),
    ]
    assert await set_quota(settings, "acme")
    assert [one.tenant for one in settings.quotas()] == ["zeta"]


async def test_a_limit_that_is_not_named_stays_and_naming_none_takes_both_away() -> None:
    settings, agreement = desk()
    assert await set_quota(settings, "acme", requests=3)
    assert await set_quota(settings, "acme", tokens=600)
    assert not await set_quota(settings, "acme", tokens=600)
    (quota,) = settings.quotas()
    assert (quota.requests_max, quota.tokens_per_minute_max) == (3, 600)
    assert AgreedSettings(CONFIG).events(agreement.state) == [
        QuotasChanged(quotas={"acme": Quota(requests_max=3, tokens_per_minute_max=600)})
    ]
    assert await set_quota(settings, "zeta", tokens=1)
    assert not settings.quotas()[1].HasField("requests_max")
    assert await set_quota(settings, "acme")
    assert [one.tenant for one in settings.quotas()] == ["zeta"]


@pytest.mark.parametrize(
    "limits", [{"requests": -1}, {"tokens": -1}, {"requests": 1, "tokens": -5}]
)
async def test_a_limit_below_zero_is_refused_by_name_and_value(limits: dict[str, int]) -> None:
    settings, _ = desk()
    with pytest.raises(SettingRefused, match=r"max is -[15]; it must be at least 0"):
        await set_quota(settings, "acme", **limits)


async def test_the_core_is_told_of_each_change_once() -> None:
    settings, agreement = desk()
    agreed = AgreedSettings(CONFIG)
    assert agreed.events(agreement.state) == []
    await settings.set_override(MODE, "local")
    (changed,) = agreed.events(agreement.state)
    assert isinstance(changed, SettingsChanged)
    assert changed.settings.path.mode is PathMode.LOCAL
    assert agreed.events(agreement.state) == []
    await set_quota(settings, "acme", requests=3)
    assert agreed.events(agreement.state) == [QuotasChanged(quotas={"acme": Quota(requests_max=3)})]
    await settings.set_override(MODE, None)
    (back,) = agreed.events(agreement.state)
    assert isinstance(back, SettingsChanged)
    assert back.settings.path.mode is PathMode.AUTO


async def test_an_override_of_another_release_is_shown_and_left_out() -> None:
    settings, agreement = desk()
    agreed = AgreedSettings(CONFIG)
    await agreement.say(OverrideSet(key="scheduler.path.warp", value="9"))
    await settings.set_override(MODE, "local")
    (changed,) = agreed.events(agreement.state)
    assert isinstance(changed, SettingsChanged)
    assert changed.settings.path.mode is PathMode.LOCAL
    faults = {one.key: one.fault for one in settings.overrides()}
    assert faults[MODE] == ""
    assert "unknown key" in faults["scheduler.path.warp"]


class NoMajority(AgreementOfOne):
    @property
    def state(self) -> CellState:
        return CellState()

    async def say(self, operation: Operation) -> Status:
        raise AgreementUnavailable("no majority")


@asynccontextmanager
async def served(settings: SettingsDesk) -> AsyncIterator[settings_pb2_grpc.SettingsStub]:
    server = grpc.aio.server()
    settings_pb2_grpc.add_SettingsServicer_to_server(
        SettingsServicer(settings, stale_reason=lambda: ""), server
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield settings_pb2_grpc.SettingsStub(channel)
    finally:
        await server.stop(grace=None)


async def test_over_grpc_faults_and_a_lost_majority_are_told_apart() -> None:
    settings, _ = desk()
    async with served(settings) as stub:
        request = settings_pb2.SetOverrideRequest(key=MODE, value="local")
        assert (await stub.SetOverride(request)).is_changed
        assert [
            one.key
            for one in (await stub.ListOverrides(settings_pb2.ListOverridesRequest())).overrides
        ] == [MODE]
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.SetOverride(settings_pb2.SetOverrideRequest(key=MODE, value=""))
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert (await stub.SetOverride(settings_pb2.SetOverrideRequest(key=MODE))).is_changed
        assert (
            await stub.SetQuota(settings_pb2.SetQuotaRequest(tenant="acme", requests_max=0))
        ).is_changed
        (quota,) = (await stub.ListQuotas(settings_pb2.ListQuotasRequest())).quotas
        assert (quota.tenant, quota.requests_max) == ("acme", 0)
    async with served(SettingsDesk(config=CONFIG, agreement=NoMajority())) as stub:
        with pytest.raises(grpc.aio.AioRpcError) as lost:
            await stub.SetOverride(request)
        assert lost.value.code() is grpc.StatusCode.UNAVAILABLE

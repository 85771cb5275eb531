"""What an operator changes while the scheduler runs: settings, and tenants' quotas."""

from dataclasses import replace

import pytest

from pdd.core.errors import AdmissionRejected
from pdd.core.identity import RequestId
from pdd.core.requests import Path
from pdd.scheduler.effects import Announce, Effect, Fail
from pdd.scheduler.events import (
    QuotasChanged,
    RequestArrived,
    RequestCancelled,
    SettingsChanged,
)
from pdd.scheduler.group_events import LeadershipChanged
from pdd.scheduler.quotas import Quota
from pdd.scheduler.settings import PathMode, PathSettings, SchedulerSettings
from tests.builders import Cluster, make_request


def arrive(cluster: Cluster, request_id: str, *, tenant: str = "acme") -> list[Effect]:
    request = replace(make_request(request_id), tenant=tenant)
    return cluster.step(RequestArrived(request=request))


def path_of(effects: list[Effect]) -> Path:
    return next(effect.plan.path for effect in effects if isinstance(effect, Announce))


def error_of(effects: list[Effect]) -> AdmissionRejected:
    (effect,) = effects
    assert isinstance(effect, Fail)
    assert isinstance(effect.error, AdmissionRejected)
    return effect.error


def test_the_next_decision_goes_by_changed_settings_and_what_runs_stays() -> None:
    cluster = Cluster("prefill-0", "decode-0")
    assert path_of(arrive(cluster, "r1")) is Path.DISAGGREGATED
    local = SchedulerSettings(path=PathSettings(mode=PathMode.LOCAL))
    assert cluster.step(SettingsChanged(settings=local)) == []
    assert path_of(arrive(cluster, "r2")) is Path.LOCAL
    plan = cluster.core.requests[RequestId("r1")].plan
    assert plan is not None
    assert plan.path is Path.DISAGGREGATED


def test_a_tenant_above_its_quota_is_refused_by_name_value_and_limit_and_others_are_not() -> None:
    cluster = Cluster("prefill-0", "decode-0")
    cluster.step(QuotasChanged(quotas={"acme": Quota(requests_max=2)}))
    for number in range(2):
        assert path_of(arrive(cluster, f"r{number}"))
    error = error_of(arrive(cluster, "r2"))
    assert str(error).startswith("tenant 'acme' has 2 requests, its quota is 2 at a time")
    assert error.retry_after_s > 0
    assert path_of(arrive(cluster, "r3", tenant="other"))
    assert cluster.core.counts.rejected_quota == 1
    cluster.step(RequestCancelled(request_id=RequestId("r0")))
    assert path_of(arrive(cluster, "r4"))


def test_a_quota_below_what_a_tenant_has_ends_nothing_and_without_it_there_is_no_limit() -> None:
    cluster = Cluster("prefill-0", "decode-0")
    arrive(cluster, "r1")
    assert cluster.step(QuotasChanged(quotas={"acme": Quota(requests_max=0)})) == []
    assert RequestId("r1") in cluster.core.requests
    refused = str(error_of(arrive(cluster, "r2")))
    assert "has 1 request, its quota is 0 at a time: nothing of it is taken" in refused
    cluster.step(QuotasChanged(quotas={}))
    assert path_of(arrive(cluster, "r3"))


@pytest.mark.parametrize("leads", [True, False])
def test_only_who_leads_says_no_as_it_alone_knows_all_that_a_tenant_has(leads: bool) -> None:
    cluster = Cluster("prefill-0", "decode-0")
    cluster.step(LeadershipChanged(leads=leads))
    cluster.step(QuotasChanged(quotas={"acme": Quota(requests_max=0)}))
    effects = arrive(cluster, "r1")
    assert bool(effects) is leads

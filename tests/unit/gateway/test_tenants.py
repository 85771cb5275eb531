"""Whom a request belongs to: what is taken, what is refused, and what is kept apart."""

import pytest

from pdd.core.requests import RequestUsage
from pdd.gateway import metrics as metrics_module
from pdd.gateway.metrics import OTHER_TENANTS, GatewayMetrics
from tests.unit.gateway.builders import front, post, script, usage

TEXT = {"prompt": "hi"}
HEADER = "x-pdd-tenant"


@pytest.mark.parametrize("name", ["a", "Acme-2", "team:eu.west_1", "me@example.com", "t" * 64])
async def test_the_header_names_the_tenant(name: str) -> None:
    async with front(script("a")) as served:
        status, _, _ = await post(served, "/v1/completions", TEXT, headers={HEADER: name})
        assert status == 200
        (request,) = served.inference.requests
        assert request.tenant == name


async def test_without_it_a_request_belongs_to_the_default_tenant_as_when_that_is_named() -> None:
    async with front(script("a")) as served:
        await post(served, "/v1/completions", TEXT)
        await post(served, "/v1/completions", TEXT, headers={HEADER: "default"})
        messages = {"messages": [{"role": "user", "content": "hi"}]}
        await post(served, "/v1/chat/completions", messages, headers={HEADER: "acme"})
        names = [request.tenant for request in served.inference.requests]
        assert names == ["default", "default", "acme"]


@pytest.mark.parametrize("name", ["", "t" * 65, "a b", "-a", "a/b", "caf\u00e9", "(other)"])
async def test_what_is_no_name_is_refused_and_nothing_runs(name: str) -> None:
    async with front(script("a")) as served:
        status, answer, _ = await post(served, "/v1/completions", TEXT, headers={HEADER: name})
        assert (status, answer["error"]["code"]) == (400, "invalid_tenant")
        assert answer["error"]["param"] == HEADER
        assert served.inference.requests == []


async def test_two_names_are_refused_for_a_proxy_may_have_added_the_second() -> None:
    async with front(script("a")) as served:
        two = [(HEADER, "acme"), (HEADER, "umbrella")]
        status, answer, _ = await post(served, "/v1/completions", TEXT, headers=two)
        assert (status, answer["error"]["code"]) == (400, "invalid_tenant")
        assert "2 times" in answer["error"]["message"]


async def test_an_idempotency_key_is_its_tenant_s_own() -> None:
    async with front(script("a")) as served:
        for tenant in ("acme", "umbrella", "acme"):
            headers = {HEADER: tenant, "idempotency-key": "k1"}
            status, _, _ = await post(served, "/v1/completions", TEXT, headers=headers)
            assert status == 200
        assert [request.tenant for request in served.inference.requests] == ["acme", "umbrella"]


def end_one(metrics: GatewayMetrics, tenant: str, told: RequestUsage) -> None:
    meter = metrics.begin("http", now_s=0.0)
    meter.tenant = tenant
    meter.end("finished", now_s=1.0, usage=told)


def test_requests_and_tokens_are_counted_by_tenant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_module, "TENANT_LABEL_COUNT_MAX", 3)
    metrics = GatewayMetrics()
    for tenant in ("acme", "umbrella", "third", "fourth", "acme", "default"):
        end_one(metrics, tenant, usage(prompt_tokens=5, completion_tokens=2))

    def told(tenant: str) -> tuple[float | None, float | None]:
        value = metrics.registry.get_sample_value
        labels = {"tenant": tenant, "outcome": "finished"}
        return (
            value("pdd_tenant_requests_total", labels),
            value("pdd_tenant_tokens_total", {"tenant": tenant, "kind": "prompt"}),
        )

    assert told("acme") == (2.0, 10.0)
    assert told("umbrella") == told("default") == (1.0, 5.0)
    assert told("third") == told("fourth") == (None, None)
    assert told(OTHER_TENANTS) == (2.0, 10.0)

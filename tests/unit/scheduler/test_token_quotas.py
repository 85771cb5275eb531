"""Tokens that a tenant may use in a minute: taken when it is let in, settled when it ends."""

from dataclasses import replace

import pytest

from pdd.core.errors import AdmissionRejected
from pdd.core.frames import FinishReason
from pdd.core.identity import NodeName, RequestId
from pdd.scheduler.effects import Effect, Fail
from pdd.scheduler.events import (
    DecodeReady,
    FailureKind,
    FirstTokenSampled,
    JobFailed,
    QuotasChanged,
    RequestArrived,
    RequestCancelled,
    SequenceFinished,
    SequenceGrew,
    Tick,
)
from pdd.scheduler.group_events import LeadershipChanged, RequestTold
from pdd.scheduler.quotas import Quota, TokenBucket
from tests.builders import Cluster, make_finish, make_request

PREFILL, DECODE = NodeName("prefill-0"), NodeName("decode-0")
PROMPT, MAX_TOKENS = 40, 16
"""Before any output was seen, as long a one as was asked for is expected."""


def cluster_of(tokens_per_minute: int) -> Cluster:
    cluster = Cluster("prefill-0", "decode-0")
    limit(cluster, tokens_per_minute)
    return cluster


def limit(cluster: Cluster, tokens_per_minute: int | None) -> None:
    quota = Quota(tokens_per_minute_max=tokens_per_minute)
    cluster.step(QuotasChanged(quotas={"acme": quota}))


def arrive(cluster: Cluster, name: str, *, after_s: float = 0.0, **changes: object) -> list[Effect]:
    request = make_request(name, prompt_token_count=PROMPT, max_tokens=MAX_TOKENS, tenant="acme")
    request = replace(request, **changes)  # type: ignore[arg-type]
    return cluster.step(RequestArrived(request=request), after_s=after_s)


def refusal(effects: list[Effect]) -> AdmissionRejected | None:
    errors = [effect.error for effect in effects if isinstance(effect, Fail)]
    assert all(isinstance(error, AdmissionRejected) for error in errors)
    return errors[0] if errors else None  # type: ignore[return-value]


def decode(cluster: Cluster, name: str) -> None:
    request_id = RequestId(name)
    cluster.step(
        FirstTokenSampled(
            request_id=request_id,
            generation=0,
            node=PREFILL,
            token_id=5,
            finish=make_finish(FinishReason.HANDOVER),
        )
    )
    cluster.step(DecodeReady(request_id=request_id, generation=0))


def finish(cluster: Cluster, name: str, *, output_tokens: int) -> None:
    decode(cluster, name)
    cluster.step(
        SequenceFinished(
            request_id=RequestId(name),
            generation=0,
            node=DECODE,
            finish=make_finish(),
            output_token_count=output_tokens,
        )
    )


def left(cluster: Cluster) -> float:
    bucket = cluster.core._state.quotas.bucket("acme")
    assert bucket is not None
    return bucket.left(cluster.now_s)


def test_above_its_tokens_a_tenant_is_told_who_it_is_what_it_has_the_limit_and_when() -> None:
    cluster = cluster_of(100)
    assert refusal(arrive(cluster, "r1")) is None
    error = refusal(arrive(cluster, "r2"))
    assert error is not None
    assert str(error) == (
        "tenant 'acme' would use about 56 tokens with this request, its quota is 100 a minute: "
        "44 are left, try again in 7.2 s"
    )
    assert error.retry_after_s == pytest.approx(12 * 60 / 100)
    assert cluster.core.counts.rejected_token_quota == 1
    assert refusal(arrive(cluster, "other", tenant="other")) is None


def test_who_comes_back_when_it_was_told_to_is_let_in_and_not_a_moment_before() -> None:
    cluster = cluster_of(100)
    arrive(cluster, "r1")
    error = refusal(arrive(cluster, "r2"))
    assert error is not None
    assert refusal(arrive(cluster, "r3", after_s=error.retry_after_s - 0.1)) is not None
    assert refusal(arrive(cluster, "r4", after_s=0.1)) is None


@pytest.mark.parametrize(
    ("output_tokens", "used"), [(1, PROMPT + 1), (MAX_TOKENS, PROMPT + MAX_TOKENS)]
)
def test_what_was_taken_at_first_is_settled_by_what_was_said(output_tokens: int, used: int) -> None:
    cluster = cluster_of(100)
    arrive(cluster, "r1")
    assert left(cluster) == 100 - PROMPT - MAX_TOKENS
    finish(cluster, "r1", output_tokens=output_tokens)
    assert left(cluster) == pytest.approx(100 - used)


def test_output_that_nobody_foresaw_is_taken_as_it_grows_and_leaves_a_debt() -> None:
    cluster = cluster_of(100)
    for number in range(40):  # outputs of one token are what is expected from now on
        arrive(cluster, f"short {number}", tenant="other")
        finish(cluster, f"short {number}", output_tokens=1)
    arrive(cluster, "r1", sampling=replace(make_request().sampling, max_tokens=512))
    request = cluster.core.requests[RequestId("r1")]
    decode(cluster, "r1")
    taken, grown = 100 - left(cluster), request.grows_at_tokens
    cluster.step(
        SequenceGrew(request_id=RequestId("r1"), generation=0, output_token_count=grown + 60)
    )
    assert left(cluster) == pytest.approx(100 - PROMPT - grown - 60)
    assert PROMPT + grown + 60 > taken
    finished = SequenceFinished(
        request_id=RequestId("r1"),
        generation=0,
        node=DECODE,
        finish=make_finish(),
        output_token_count=500,
    )
    cluster.step(finished)
    assert left(cluster) == pytest.approx(100 - PROMPT - 500)
    error = refusal(arrive(cluster, "r2"))
    assert error is not None
    assert error.retry_after_s > 60 * 440 / 100, "the debt is filled first"


@pytest.mark.parametrize(
    ("said", "used"), [(3, PROMPT + 3), (None, PROMPT + MAX_TOKENS), (0, PROMPT)]
)
def test_a_request_whose_client_leaves_costs_what_it_has_had(said: int | None, used: int) -> None:
    cluster = cluster_of(100)
    arrive(cluster, "r1")
    decode(cluster, "r1")
    cluster.step(RequestCancelled(request_id=RequestId("r1"), output_token_count=said))
    assert left(cluster) == pytest.approx(100 - used)


def test_what_never_had_a_place_costs_nothing_and_a_prompt_without_output_its_prompt() -> None:
    cluster = cluster_of(5000)
    long = tuple(range(1, 1201))
    arrive(cluster, "fills", prompt_token_ids=long)
    arrive(cluster, "waits", prompt_token_ids=long)
    assert cluster.core.queued_request_count == 1
    assert left(cluster) == 5000 - 2 * (1200 + MAX_TOKENS)
    cluster.step(RequestCancelled(request_id=RequestId("waits")))
    assert left(cluster) == 5000 - (1200 + MAX_TOKENS)
    cluster.step(RequestCancelled(request_id=RequestId("fills")))
    assert left(cluster) == 5000 - 1200


def test_a_deadline_that_passes_while_it_speaks_is_no_way_around_the_quota() -> None:
    cluster = cluster_of(100)
    arrive(cluster, "r1", deadline_s=5.0)
    decode(cluster, "r1")
    before = left(cluster)
    cluster.step(Tick(), after_s=6.0)
    assert RequestId("r1") not in cluster.core.requests
    assert left(cluster) == pytest.approx(min(before + 10, 100))


def test_an_engine_that_fails_before_any_output_costs_the_tenant_the_prompt_once() -> None:
    cluster = Cluster("prefill-0", "decode-0", attempt_count_max=1)
    limit(cluster, 100)
    arrive(cluster, "r1")
    failed = JobFailed(
        request_id=RequestId("r1"),
        generation=0,
        node=PREFILL,
        message="boom",
        kind=FailureKind.INVALID,
    )
    cluster.step(failed)
    assert RequestId("r1") not in cluster.core.requests
    assert left(cluster) == pytest.approx(100 - PROMPT)


def test_a_prompt_longer_than_a_minutes_tokens_is_let_in_when_none_of_them_is_used() -> None:
    cluster = cluster_of(50)
    assert refusal(arrive(cluster, "r1")) is None
    assert left(cluster) == 50 - PROMPT - MAX_TOKENS
    error = refusal(arrive(cluster, "r2"))
    assert error is not None
    assert refusal(arrive(cluster, "r3", after_s=error.retry_after_s)) is None


def test_a_quota_of_no_tokens_takes_nothing_and_says_that_waiting_is_in_vain() -> None:
    cluster = cluster_of(0)
    error = refusal(arrive(cluster, "r1"))
    assert error is not None
    assert "its quota is 0 a minute: nothing of it is taken until raised" in str(error)
    limit(cluster, None)
    assert refusal(arrive(cluster, "r2")) is None


def test_a_raised_quota_counts_at_once_and_what_was_used_stays_used() -> None:
    cluster = cluster_of(60)
    arrive(cluster, "r1")
    assert refusal(arrive(cluster, "r2")) is not None
    limit(cluster, 200)
    assert left(cluster) == 200 - PROMPT - MAX_TOKENS
    assert refusal(arrive(cluster, "r3")) is None


def test_a_lowered_quota_makes_nobody_wait_longer_than_the_minute_that_it_had_used() -> None:
    cluster = cluster_of(6_000_000)
    arrive(cluster, "r1")
    limit(cluster, 60)
    assert refusal(arrive(cluster, "r2")) is None, "of the former minute next to nothing was used"
    bucket = TokenBucket(6_000_000, now_s=0.0)
    bucket.take(6_000_000, 0.0)
    bucket.change(60, 0.0)
    assert bucket.wait_s(1, 0.0) == pytest.approx(1.0)
    assert bucket.wait_s(60, 0.0) == pytest.approx(60.0)
    bucket.take(60, 0.0)
    bucket.change(30, 0.0)
    assert bucket.left(0.0) == pytest.approx(-30), "a debt of a minute stays one of a minute"


def test_a_quota_that_was_none_at_all_begins_with_a_full_minute() -> None:
    bucket = TokenBucket(60, now_s=0.0)
    bucket.take(90, 0.0)
    bucket.change(0, 0.0)
    bucket.change(60, 0.0)
    assert bucket.wait_s(60, 0.0) == 0.0


def test_what_runs_when_a_quota_comes_is_not_counted() -> None:
    cluster = Cluster("prefill-0", "decode-0")
    arrive(cluster, "r1")
    limit(cluster, 100)
    finish(cluster, "r1", output_tokens=10)
    assert left(cluster) == 100


def test_only_who_leads_refuses_and_it_counts_what_others_hold() -> None:
    follower = Cluster("prefill-0", "decode-0")
    follower.step(LeadershipChanged(leads=False))
    limit(follower, 60)
    for number in range(3):
        assert refusal(arrive(follower, f"r{number}")) is None
    assert left(follower) == 60 - 3 * (PROMPT + MAX_TOKENS), "known when it comes to lead"
    leader = cluster_of(100)
    request = make_request("r1", prompt_token_count=PROMPT, max_tokens=MAX_TOKENS, tenant="acme")
    assert refusal(leader.step(RequestTold(request=request, holder="s2"))) is None
    other = replace(request, request_id=RequestId("r2"))
    assert refusal(leader.step(RequestTold(request=other, holder="s2"))) is not None


@pytest.mark.parametrize(
    ("taken", "after_s", "wanted", "wait_s"),
    [
        (0, 0.0, 60, 0.0),
        (60, 0.0, 1, 1.0),
        (60, 30.0, 30, 0.0),
        (60, 30.0, 45, 15.0),
        (60, 600.0, 61, 0.0),  # full, and no more than full
        (90, 0.0, 60, 90.0),
        (-90, 0.0, 60, 0.0),  # nothing above a minute's worth is kept
    ],
)
def test_a_bucket_fills_evenly_to_a_minutes_worth(
    taken: int, after_s: float, wanted: int, wait_s: float
) -> None:
    bucket = TokenBucket(60, now_s=5.0)
    bucket.take(taken, 5.0)
    assert bucket.wait_s(wanted, 5.0 + after_s) == pytest.approx(wait_s)


def test_time_in_which_a_bucket_was_full_pays_for_nothing_that_is_taken_later() -> None:
    bucket = TokenBucket(60, now_s=0.0)
    bucket.take(90, 60.0)
    assert bucket.left(60.0) == pytest.approx(-30)


def test_time_that_seems_to_go_back_takes_nothing_away_and_gives_nothing_twice() -> None:
    bucket = TokenBucket(60, now_s=5.0)
    bucket.take(60, 5.0)
    assert bucket.left(15.0) == pytest.approx(10)
    assert bucket.left(5.0) == pytest.approx(10)
    assert bucket.left(15.0) == pytest.approx(10)

"""The log of decisions: what is kept, for how long, and how much."""

from typing import Any

from pdd.core.identity import RequestId
from pdd.core.requests import Path
from pdd.scheduler.decisions import Decision, DecisionLog, Outcome
from pdd.scheduler.effects import Effect
from pdd.scheduler.events import RequestArrived, RequestCancelled, Tick
from pdd.scheduler.policy.place import Considered
from tests.builders import Cluster, make_joined, make_request


def decision(request_id: str, *, at_s: float = 0.0, **fields: Any) -> Decision:
    values: dict[str, Any] = {
        "request_id": RequestId(request_id),
        "generation": 0,
        "decided_s": at_s,
        "outcome": Outcome.PLACED,
        "path": Path.LOCAL,
        "reason": "",
        "considered": Considered(),
    }
    return Decision(**{**values, **fields})


def make_log(*, count_max: int = 10, candidate_count_max: int = 100) -> DecisionLog:
    return DecisionLog(
        memory_s=3600.0, count_max=count_max, candidate_count_max=candidate_count_max
    )


def test_it_remembers_for_an_hour() -> None:
    log = make_log()
    log.keep(decision("r1"))
    assert len(log.of(RequestId("r1"), now_s=3600.0)) == 1
    assert log.of(RequestId("r1"), now_s=3600.1) == ()
    assert len(log) == 0


def test_beyond_its_bound_the_oldest_request_goes() -> None:
    log = make_log(count_max=2)
    for name in ("a", "b", "c"):
        log.keep(decision(name))
    assert log.of(RequestId("a"), now_s=0.0) == ()
    assert len(log) == 2


def test_a_decision_tells_whose_request_it_was() -> None:
    cluster = Cluster("decode-0", "prefill-0")
    cluster.step(RequestArrived(request=make_request("r1", tenant="acme")))
    (first,) = cluster.core.why(RequestId("r1"), now_s=cluster.now_s)
    assert first.tenant == "acme"


def test_no_memory_is_no_memory() -> None:
    log = make_log(count_max=0)
    log.keep(decision("a"))
    assert len(log) == 0


def test_waiting_for_one_attempt_is_one_record_that_counts() -> None:
    log = make_log()
    for second in range(5):
        log.keep(decision("a", at_s=float(second), outcome=Outcome.WAITS, reason=f"{second}"))
    log.keep(decision("a", at_s=5.0))
    waits, placed = log.of(RequestId("a"), now_s=5.0)
    assert (waits.repeated_count, waits.reason) == (4, "4")
    assert placed.outcome is Outcome.PLACED


def test_the_records_of_one_request_are_bounded_and_the_first_stays() -> None:
    log = make_log()
    for generation in range(40):
        log.keep(decision("a", generation=generation))
    kept = log.of(RequestId("a"), now_s=0.0)
    assert len(kept) == 16
    assert (kept[0].generation, kept[-1].generation) == (0, 39)


def arrive(cluster: Cluster, request_id: str, **fields: Any) -> list[Effect]:
    return cluster.step(RequestArrived(request=make_request(request_id, **fields)))


def why(cluster: Cluster, request_id: str) -> list[Decision]:
    return list(cluster.core.why(RequestId(request_id), now_s=cluster.now_s))


def test_a_wait_and_its_end_are_told() -> None:
    cluster = Cluster(make_joined("decode-0", max_num_seqs=1))
    arrive(cluster, "a")
    arrive(cluster, "b")
    cluster.step(Tick(), after_s=2.0)
    cluster.step(RequestCancelled(request_id=RequestId("a")), after_s=1.0)
    waits, placed = why(cluster, "b")
    assert (waits.outcome, waits.path) == (Outcome.WAITS, None)
    assert waits.repeated_count == 1
    assert "every decode node is full (decode-0: it runs 1 sequences, its most)" in waits.reason
    _, choice = waits.choices()
    assert choice is not None
    assert choice.candidates[0].dropped_by == "fits"
    assert (placed.outcome, placed.waited_s) == (Outcome.PLACED, 3.0)


def test_a_refusal_is_told() -> None:
    cluster = Cluster("decode-0")
    arrive(cluster, "a", prompt_token_count=1600)
    (refused,) = why(cluster, "a")
    assert refused.outcome is Outcome.REFUSED
    assert "1616 tokens" in refused.reason


def test_inputs_are_those_of_the_moment_and_not_of_now() -> None:
    cluster = Cluster("decode-0")
    arrive(cluster, "a")
    arrive(cluster, "b")
    (first,) = why(cluster, "a")
    _, choice = first.choices()
    assert choice is not None
    assert choice.candidates[0].inputs["unpromised_blocks"] == 100
    assert choice.candidates[0].inputs["sequences"] == 0


def test_of_many_candidates_the_best_are_told_and_the_others_counted() -> None:
    cluster = Cluster(*(f"decode-{index}" for index in range(30)))
    arrive(cluster, "a")
    (placed,) = why(cluster, "a")
    _, choice = placed.choices()
    assert choice is not None
    assert len(choice.candidates) == 16
    assert choice.candidates[0].is_chosen
    assert choice.other_count == {"": 14}

"""The log of decisions: what is kept, for how long, and how much."""

import sys
from enum import Enum
from types import MappingProxyType, NoneType
from typing import Any

import pytest

from pdd.core.identity import NodeName, RequestId
from pdd.core.requests import Path
from pdd.scheduler.decision_record import Decision, DecisionRecord, Outcome, pack, size_bytes
from pdd.scheduler.decisions import DecisionLog
from pdd.scheduler.effects import Effect
from pdd.scheduler.events import RequestArrived, RequestCancelled, Tick
from pdd.scheduler.policy.parts import PREFERRED
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


def make_log(*, count_max: int = 10, size_bytes_max: int = 100_000) -> DecisionLog:
    return DecisionLog(memory_s=3600.0, count_max=count_max, size_bytes_max=size_bytes_max)


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


def why(cluster: Cluster, request_id: str) -> list[DecisionRecord]:
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


def test_of_many_dropped_ones_some_are_told_with_their_reasons_and_the_others_counted() -> None:
    full = [make_joined(f"decode-{index}", max_num_seqs=1) for index in range(20)]
    cluster = Cluster(*full, "decode-20", "decode-21")
    for index in range(20):
        lease = f"x{index}"
        cluster.core.nodes[NodeName(f"decode-{index}")].lease(
            RequestId(lease), blocks=1, queued_tokens=0
        )
    cluster.core.step(RequestArrived(request=make_request("a")), now_s=cluster.now_s)
    (placed,) = why(cluster, "a")
    _, choice = placed.choices()
    assert choice is not None
    assert {one.node for one in choice.candidates[:2]} == {"decode-20", "decode-21"}
    assert {one.dropped_why for one in choice.candidates[2:]} == {"it runs 1 sequences, its most"}
    assert len(choice.candidates) == 16
    assert choice.other_count == {"fits": 6}


def test_the_memory_of_all_records_is_bounded() -> None:
    log = make_log(count_max=10_000, size_bytes_max=100_000)
    for number in range(1000):
        log.keep(decision(f"r{number}", reason="x" * 100))
        log.keep(decision(f"r{number}", generation=1))
        assert log.size_bytes <= 100_000
    assert 50 < len(log) < 1000
    assert len(log.of(RequestId("r999"), now_s=0.0)) == 2
    for number in range(1000):
        log.keep(decision(f"r{number}", at_s=9999.0 + 3601.0 * number))
    assert len(log) == 1, "the others are older than an hour"
    assert len(log.of(RequestId("r999"), now_s=9999.0 + 3601.0 * 999)) == 1
    assert log.size_bytes == 320 + size_bytes(pack(decision("r999")))


def test_packed_and_unpacked_a_decision_tells_what_it_rested_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[tuple[Decision, DecisionRecord]] = []
    keep = DecisionLog.keep

    def watched(log: DecisionLog, one: Decision) -> None:
        keep(log, one)
        made.append((one, log.of(one.request_id, now_s=one.decided_s)[-1]))

    monkeypatch.setattr(DecisionLog, "keep", watched)
    cluster = Cluster("prefill-0", "decode-0", make_joined("decode-1", max_num_seqs=1))
    arrive(cluster, "a", tenant="acme")
    cluster.now_s += 1e6
    arrive(cluster, "b")
    assert len(made) == 2
    for one, told in made:
        for name in ("request_id", "generation", "outcome", "path", "reason", "tenant"):
            assert getattr(told, name) == getattr(one, name)
        assert told.decided_s == pytest.approx(one.decided_s, abs=1e-3)
        assert one.considered.path_inputs is not None
        path_inputs = one.considered.path_inputs._asdict()
        assert told.path_inputs == pytest.approx(
            {name: float(value) for name, value in path_inputs.items()}
        )
        for choice, record in zip(
            (one.considered.prefill, one.considered.decode), told.choices(), strict=True
        ):
            assert choice is not None
            assert record is not None
            assert len(record.candidates) == len(choice.candidates)
            for shown in record.candidates:
                at = choice.candidates.names.index(shown.node)
                candidate = choice.candidates.at(at)
                assert shown.is_chosen == (at == choice.chosen_at)
                assert shown.dropped_by == choice.dropped.get(at, "")
                if shown.dropped_by:
                    assert shown.dropped_why == choice.why_dropped(at)
                    assert shown.scores == {}
                else:
                    scores = dict(
                        zip(choice.profile.scorer_names, choice.scores[:, at], strict=True)
                    )
                    assert shown.scores == pytest.approx(scores)
                    assert shown.total == pytest.approx(choice.totals[at])
                assert shown.inputs == pytest.approx(
                    {
                        "cached_tokens": candidate.cached_tokens,
                        "remainder_tokens": candidate.remainder_tokens,
                        "completion_s": candidate.completion_s,
                        "blocks": candidate.blocks,
                        "claim_blocks": candidate.claim,
                        "unpromised_blocks": candidate.unpromised_blocks,
                        "sequences": candidate.sequence_count,
                        "load": candidate.load,
                        "transfer_s": candidate.transfer_s,
                        "inbound_s": candidate.inbound_s,
                        "is_preferred": candidate.numbers[PREFERRED],
                    }
                )


def own_size_bytes(value: Any) -> int:
    """Of a value and what it alone refers to: names, enums and small numbers are others' too."""
    if isinstance(value, Enum | int | NoneType | MappingProxyType):
        return 0
    if not isinstance(value, tuple):
        return sys.getsizeof(value)
    if all(isinstance(one, str) for one in value):
        return 0
    return sys.getsizeof(value) + sum(map(own_size_bytes, value))


@pytest.mark.parametrize("node_count", [1, 6, 12])
def test_what_a_record_takes_is_told_to_within_a_fifth(node_count: int) -> None:
    full = [make_joined(f"decode-x{index}", max_num_seqs=1) for index in range(node_count // 4)]
    cluster = Cluster("prefill-0", *(f"decode-{index}" for index in range(node_count)), *full)
    for one in full:
        node = cluster.core.nodes[one.identity.name]
        node.lease(RequestId(f"x-{node.name}"), blocks=1, queued_tokens=0)
    log = cluster.core._state.decisions
    cluster.core.step(RequestArrived(request=make_request("a")), now_s=cluster.now_s)
    (packed,) = log._kept[RequestId("a")]
    assert size_bytes(packed) == pytest.approx(own_size_bytes(packed), rel=0.2)

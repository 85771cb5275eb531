"""Long prompts that would wait at their prefill node wait at the scheduler, without room elsewhere.

A prefill node is believed to compute 1,000 tokens a second, so that the 2 s that fill it
are 2,000 tokens.
"""

from typing import Any

from pdd.core.frames import FinishReason
from pdd.core.identity import NodeName, RequestId, Role
from pdd.scheduler.effects import Effect, Submit
from pdd.scheduler.events import FirstTokenSampled, RequestArrived, RequestCancelled, Tick
from pdd.scheduler.requests import Phase
from pdd.scheduler.roles.demand import measure
from pdd.scheduler.settings import EstimateSettings
from tests.builders import Cluster, make_finish, make_joined, make_request

SHORT, LONG = 60, 900


def make_cluster(**changes: Any) -> Cluster:
    decode = make_joined("decode-0", block_count=10_001, max_num_seqs=8)
    prefill = make_joined("prefill-0", block_count=10_001)
    estimates = EstimateSettings(prefill_tokens_per_s=1000.0)
    return Cluster(prefill, decode, estimates=estimates, node_silence_s=1e6, **changes)


def ask(cluster: Cluster, name: str, tokens: int, **fields: Any) -> list[str]:
    """Who is placed by that."""
    request = make_request(name, prompt_token_count=tokens, max_tokens=4, **fields)
    return placed(cluster.step(RequestArrived(request=request)))


def placed(effects: list[Effect]) -> list[str]:
    names = [effect.request.request_id for effect in effects if isinstance(effect, Submit)]
    return list(dict.fromkeys(names))


def sampled_by(name: str) -> FirstTokenSampled:
    """Its prompt is computed."""
    return FirstTokenSampled(
        request_id=RequestId(name),
        generation=0,
        node=NodeName("prefill-0"),
        token_id=7,
        finish=make_finish(FinishReason.HANDOVER),
    )


def waiting(cluster: Cluster) -> list[str]:
    return [name for name, one in cluster.core.requests.items() if one.phase is Phase.QUEUED]


def test_three_long_prompts_are_sent_ahead_and_the_others_hold_nothing_while_they_wait() -> None:
    cluster = make_cluster()
    for index in range(20):
        ask(cluster, f"long {index}", LONG)
    assert waiting(cluster) == [f"long {index}" for index in range(3, 20)]
    decode = cluster.core.nodes[NodeName("decode-0")]
    assert decode.sequence_count == 3


def test_a_short_prompt_passes_them() -> None:
    cluster = make_cluster()
    for index in range(20):
        ask(cluster, f"long {index}", LONG)
    assert ask(cluster, "short", SHORT) == ["short"]


def test_so_it_does_when_more_wait_than_are_looked_at() -> None:
    cluster = make_cluster()
    for index in range(200):
        ask(cluster, f"long {index}", LONG)
    assert len(waiting(cluster)) == 197
    assert ask(cluster, "short", SHORT) == ["short"]


def test_short_prompts_of_which_there_is_too_much_wait_for_each_other() -> None:
    cluster = make_cluster()
    names = [f"short {index}" for index in range(200)]
    decode = cluster.core.nodes[NodeName("decode-0")]
    for name in names:
        ask(cluster, name, SHORT)
    assert decode.sequence_count == 8, "for room"


def test_the_next_one_goes_when_a_prompt_before_it_is_computed() -> None:
    cluster = make_cluster()
    for index in range(5):
        ask(cluster, f"long {index}", LONG)
    sampled = sampled_by("long 0")
    assert placed(cluster.step(sampled, after_s=0.9)) == ["long 3"]
    assert waiting(cluster) == ["long 4"]


def test_the_next_one_goes_when_one_before_it_is_cancelled() -> None:
    cluster = make_cluster()
    for index in range(5):
        ask(cluster, f"long {index}", LONG)
    gone = RequestCancelled(request_id=RequestId("long 1"))
    assert placed(cluster.step(gone, after_s=0.1)) == ["long 3"]
    assert placed(cluster.step(RequestCancelled(request_id=RequestId("long 4")))) == []
    assert waiting(cluster) == []


def test_who_waits_goes_in_its_turn_however_many_shorter_ones_have_come_since() -> None:
    cluster = make_cluster()
    for index in range(3):
        ask(cluster, f"long {index}", LONG)
    assert ask(cluster, "longer", 2 * LONG) == []
    for index in range(3, 50):
        assert ask(cluster, f"long {index}", LONG) == []
    assert placed(cluster.step(sampled_by("long 0"), after_s=0.9)) == ["longer", "long 3"]


def test_none_holds_more_because_it_has_waited_long() -> None:
    """Else those that wait behind more than is ever computed would take all room in the end."""
    cluster = make_cluster()
    for index in range(20):
        ask(cluster, f"long {index}", LONG)
    for _ in range(100):
        assert placed(cluster.step(Tick(), after_s=1.0)) == []
    assert ask(cluster, "short", SHORT) == ["short"]


def test_it_is_work_for_the_prefill_nodes_and_no_room_is_kept_for_it() -> None:
    cluster = make_cluster()
    for index in range(20):
        ask(cluster, f"long {index}", LONG)
    state = cluster.core._state
    measured = measure(state, now_s=cluster.now_s)
    waits_s = 20 * LONG / 1000.0
    assert measured.nodes[Role.PREFILL] == 1 + waits_s / state.settings.roles.backlog_horizon_s
    cluster.step(Tick(), after_s=state.settings.queue.patience_s + 1.0)
    assert state.kept_for is None


def test_a_decision_says_what_it_waits_for() -> None:
    cluster = make_cluster()
    for index in range(4):
        ask(cluster, f"long {index}", LONG)
    (decision,) = cluster.core.why(RequestId("long 3"), now_s=cluster.now_s)
    assert decision.reason == "2.7 s of prompts no longer than this one are ahead on prefill-0"


def full_of_longs_and_shorts() -> tuple[Cluster, list[str]]:
    """All eight sequences are taken. Also the names of the five short ones."""
    cluster = make_cluster()
    for index in range(3):
        ask(cluster, f"long {index}", LONG)
    shorts = [f"short {index}" for index in range(5)]
    for name in shorts:
        ask(cluster, name, SHORT)
    return cluster, shorts


def test_room_that_was_kept_for_one_is_given_to_others_once_it_is_too_early_for_it() -> None:
    cluster, shorts = full_of_longs_and_shorts()
    assert ask(cluster, "long 3", LONG) == [], "all eight sequences are taken"
    state = cluster.core._state
    cluster.step(Tick(), after_s=state.settings.queue.patience_s + 1.0)
    assert state.kept_for is not None
    cluster.step(RequestCancelled(request_id=RequestId(shorts.pop())))
    assert waiting(cluster) == ["long 3"], "it is too early: three are ahead of it"
    assert state.kept_for is None
    assert ask(cluster, "another", SHORT) == ["another"]


def test_who_is_early_now_and_then_has_waited_for_room_all_the_same() -> None:
    """Else a prompt whose turn comes and goes with the prompts ahead of it never has room kept."""
    cluster, shorts = full_of_longs_and_shorts()
    ask(cluster, "long 3", LONG)
    state = cluster.core._state
    wait_s = 0.4 * state.settings.queue.patience_s
    for index in range(5, 7):
        cluster.step(Tick(), after_s=wait_s)
        assert state.kept_for is None, "not yet"
        cluster.step(RequestCancelled(request_id=RequestId(shorts.pop())))
        assert state.requests[RequestId("long 3")].early_s is not None
        cluster.step(Tick(), after_s=wait_s)
        assert state.kept_for is None, "while it is early there is room"
        shorts.append(f"short {index}")
        assert ask(cluster, shorts[-1], SHORT) == shorts[-1:]
        cluster.step(Tick(), after_s=1.0)
        assert state.requests[RequestId("long 3")].early_s is None, "all are taken again"
    cluster.step(Tick(), after_s=wait_s)
    assert state.kept_for is not None
    assert state.kept_for[:2] == ("long 3", "decode-0")


def test_who_needs_no_less_than_one_that_finds_no_room_is_not_early_any_more() -> None:
    """Else its prompt counts twice as work for the prefill nodes."""
    cluster = make_cluster()
    for index in range(5):
        ask(cluster, f"long {index}", LONG)
    requests = cluster.core.requests
    late = [requests[RequestId(name)] for name in ("long 3", "long 4")]
    assert [one.early_s is None for one in late] == [False, False]
    for index in range(5):
        ask(cluster, f"short {index}", SHORT)
    cluster.step(Tick(), after_s=1.0)
    assert [(one.early_s, one.blocked_s) for one in late] == [(None, cluster.now_s)] * 2

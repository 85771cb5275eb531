"""Which path and which nodes, and the reason that an operator reads."""

from typing import Any

import pytest

from pdd.core.identity import NodeName, NodeState, RequestId
from pdd.core.requests import Path
from pdd.core.sampling import Grammar
from pdd.scheduler.estimates import Estimates
from pdd.scheduler.policy.candidate import Question
from pdd.scheduler.policy.place import NoRoom, Placement, Policy
from pdd.scheduler.pools import Nodes
from pdd.scheduler.prefixes import NoDirectory
from pdd.scheduler.settings import PathMode, PathSettings, SchedulerSettings
from tests.builders import Cluster, make_joined, make_request

RESUMES = "resumed after a node was lost"


def nodes(*joined: Any) -> Nodes:
    return Cluster(*joined).core.nodes


def ask(
    members: Nodes,
    *,
    resumes: str = "",
    mode: PathMode = PathMode.DISAGGREGATED,
    **fields: Any,
) -> Placement | NoRoom:
    settings = SchedulerSettings(path=PathSettings(mode=mode))
    policy = Policy(settings, estimates=Estimates(settings.estimates), directory=NoDirectory())
    request = make_request(**fields)
    question = Question(
        request=request,
        granted_output_tokens=request.sampling.max_tokens,
        now_s=0.0,
        resumes=resumes,
    )
    return policy.place(question, members)


def decide(members: Nodes, **fields: Any) -> Placement:
    verdict = ask(members, **fields)
    assert isinstance(verdict, Placement), verdict
    return verdict


@pytest.mark.parametrize(
    ("sampling", "parameter"),
    [
        ({"presence_penalty": 0.1}, "presence_penalty"),
        ({"presence_penalty": -0.1}, "presence_penalty"),
        ({"frequency_penalty": 1.0}, "frequency_penalty"),
        ({"bad_words": ("no",)}, "bad_words"),
        ({"grammar": Grammar(kind="json_object")}, "response_format"),
    ],
)
def test_what_reads_earlier_output_stays_on_one_engine(
    sampling: dict[str, Any], parameter: str
) -> None:
    placement = decide(nodes("prefill-0", "decode-0"), **sampling)
    assert placement.path is Path.LOCAL
    assert placement.prefill is None
    assert placement.reason.startswith(parameter)


@pytest.mark.parametrize(
    "sampling",
    [
        {"repetition_penalty": 1.2},  # reads the prompt too, so t1 counts wherever it stands
        {"min_tokens": 4},
        {"stop": ("x",)},
        {"logit_bias": ((1, 2.0),)},
        {"logprobs": 2},
        {"temperature": 0.0},
    ],
)
def test_everything_else_may_change_engines(sampling: dict[str, Any]) -> None:
    assert decide(nodes("prefill-0", "decode-0"), **sampling).path is Path.DISAGGREGATED


def test_one_token_needs_no_decode_node_even_if_there_is_none() -> None:
    placement = decide(nodes("prefill-0"), max_tokens=1)
    assert placement.decode is None
    assert placement.prefill is not None


def test_one_token_that_looks_back_goes_local() -> None:
    placement = decide(nodes("prefill-0", "decode-0"), max_tokens=1, presence_penalty=1.0)
    assert (placement.path, placement.prefill) == (Path.LOCAL, None)


@pytest.mark.parametrize("max_tokens", [1, 16])
def test_a_full_prefill_node_sends_the_prompt_to_the_decode_node(max_tokens: int) -> None:
    members = nodes(make_joined("prefill-0", block_count=3), "decode-0")
    placement = decide(members, max_tokens=max_tokens)
    assert placement.path is Path.LOCAL
    assert placement.reason == "no prefill node has room for the prompt"


def test_no_prefill_node_is_told_as_such() -> None:
    assert decide(nodes("decode-0")).reason == "no prefill node is ready"


@pytest.mark.parametrize("state", [NodeState.LOST, NodeState.CORDONED])
def test_a_node_that_takes_no_work_gets_none(state: NodeState) -> None:
    members = nodes("prefill-0", "decode-0")
    members[NodeName("prefill-0")].state = state
    assert decide(members).reason == "no prefill node is ready"
    members[NodeName("decode-0")].state = state
    verdict = ask(members)
    assert isinstance(verdict, NoRoom)
    assert not verdict.ever


def test_the_prefill_node_with_fewest_prompt_tokens_ahead_is_chosen() -> None:
    members = nodes("prefill-0", "prefill-1", "decode-0")
    members[NodeName("prefill-0")].lease(RequestId("x"), blocks=1, queued_tokens=500)
    members[NodeName("prefill-1")].lease(RequestId("y"), blocks=9, queued_tokens=100)
    placement = decide(members)
    assert placement.prefill is not None
    assert placement.prefill.name == "prefill-1"


def test_the_decode_node_with_most_unpromised_blocks_is_chosen() -> None:
    members = nodes("decode-0", "decode-1", "decode-2")
    members[NodeName("decode-0")].lease(RequestId("x"), blocks=5, queued_tokens=0)
    placement = decide(members)
    assert placement.decode is not None
    assert placement.decode.name in ("decode-1", "decode-2")


def test_the_order_of_joining_decides_nothing() -> None:
    names = ["decode-1", "prefill-1", "decode-0", "prefill-0"]
    chosen = set()
    for order in (names, names[::-1]):
        placement = decide(nodes(*order))
        assert placement.prefill is not None
        assert placement.decode is not None
        chosen.add((placement.prefill.name, placement.decode.name))
    assert len(chosen) == 1


def test_leases_cover_the_longest_output() -> None:
    members = nodes(make_joined("decode-0", block_count=4))
    assert decide(members, prompt_token_count=32, max_tokens=16).decode is not None
    verdict = ask(members, prompt_token_count=32, max_tokens=17)
    assert isinstance(verdict, NoRoom)
    assert not verdict.ever
    assert "49 tokens" in verdict.reason
    assert "48" in verdict.reason


def test_a_resumed_request_never_travels_again() -> None:
    placement = decide(nodes("prefill-0", "decode-0"), resumes=RESUMES)
    assert (placement.path, placement.reason) == (Path.LOCAL, RESUMES)


def test_without_prefill_nodes_by_configuration_decode_nodes_compute_prompts() -> None:
    placement = decide(nodes("prefill-0", "decode-0"), mode=PathMode.LOCAL)
    assert placement.path is Path.LOCAL
    assert placement.reason == "scheduler.path.mode is local"


@pytest.mark.parametrize(("ahead_tokens", "is_placed"), [(100_000, True), (0, False)])
def test_blocks_on_their_way_matter_only_as_far_as_the_link_falls_behind_the_prompts(
    ahead_tokens: int, is_placed: bool
) -> None:
    """Long prompts whose blocks leave as they are computed do not keep short ones away."""
    big = {"block_count": 100_001, "max_model_len": 200_000, "max_num_seqs": 64}
    members = nodes(
        make_joined("prefill-0", **big),
        make_joined("decode-0", block_bytes=4096, **big),
    )
    prefill, decode = members[NodeName("prefill-0")], members[NodeName("decode-0")]
    for node in (prefill, decode):
        node.lease(RequestId("long"), blocks=6250, queued_tokens=ahead_tokens)
    decode.expect(RequestId("long"), size_bytes=10_000_000_000)  # 10 s of a link of 1 GB/s
    # 100,000 tokens at 5,000 a second are 20 s of work.
    verdict = ask(members)
    assert isinstance(verdict, Placement) == is_placed
    if isinstance(verdict, NoRoom):
        assert "its link is 10.0 s behind what is computed for it" in verdict.reason

"""What a request would cost on each node, in columns: as the nodes themselves say it."""

from math import ceil, inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdd.core.identity import Forking, NodeName, RequestId, Role
from pdd.scheduler.estimates import Estimates
from pdd.scheduler.policy import parts
from pdd.scheduler.policy.place import NoRoom, Policy
from pdd.scheduler.pools import Nodes, Pools
from pdd.scheduler.prefixes import NoDirectory
from pdd.scheduler.settings import SchedulerSettings
from tests.builders import Cluster, make_joined, make_request
from tests.unit.scheduler.policy.parts import make_node, make_question


@given(
    prompt=st.integers(1, 2000),
    granted=st.integers(1, 50),
    max_tokens=st.integers(50, 500),
    choice_count=st.integers(1, 20),
    block_size=st.sampled_from([1, 16, 24]),
    forking=st.sampled_from(list(Forking)),
    held=st.integers(0, 200),
    queued=st.integers(0, 10_000),
    now_s=st.floats(0.0, 10.0),
    role=st.sampled_from([Role.PREFILL, Role.DECODE]),
)
def test_columns_say_what_the_nodes_say(
    prompt: int,
    granted: int,
    max_tokens: int,
    choice_count: int,
    block_size: int,
    forking: Forking,
    held: int,
    queued: int,
    now_s: float,
    role: Role,
) -> None:
    node = make_node(f"{role}-0", forking=forking, block_size=block_size, max_num_seqs=16)
    node.lease(RequestId("x"), blocks=5, queued_tokens=queued, now_s=2.0)
    question = make_question(
        request=make_request(prompt_token_count=prompt, max_tokens=max_tokens),
        granted_output_tokens=granted,
        choice_count=choice_count,
        now_s=now_s,
    )
    table = Pools([node]).table
    table[parts.PREFILL_PER_S, 0], table[parts.HELD, 0] = 400.0, held
    asked = question.asked(role, full_s=0.5 if role is Role.PREFILL else inf)
    before = table[parts.LOAD, 0]
    parts.fill_in(table, 0, 1, np.empty(0), asked)
    is_prefill = role is Role.PREFILL
    output, longest = (1, 1) if is_prefill else (granted, max_tokens)
    column = table[:, 0]
    assert column[parts.BLOCKS] == question.blocks_on(node, output_token_count=output)
    assert column[parts.CLAIM] == question.blocks_on(node, output_token_count=longest)
    assert parts.holds_longest(table, 0, asked, asked) != node.can_hold(
        prompt_token_count=prompt, output_token_count=longest, choice_count=choice_count
    )
    assert column[parts.CACHED] == (min(held * block_size, prompt - 1) if held else 0)
    assert column[parts.REMAINDER] == prompt - column[parts.CACHED]
    backlog_s = node.backlog_tokens(tokens_per_s=400.0, now_s=now_s) / 400.0
    assert column[parts.COMPLETION_S] == pytest.approx(column[parts.REMAINDER] / 400.0 + backlog_s)
    assert column[parts.LOAD] == pytest.approx(
        max(before, backlog_s / 0.5) if is_prefill else before
    )


@pytest.mark.parametrize(("computed_s", "inbound_s"), [(0.0, 2.0), (0.5, 1.5), (3.0, 0.0)])
def test_a_transfer_takes_whole_blocks_over_the_link_and_waits_for_what_is_behind(
    computed_s: float, inbound_s: float
) -> None:
    node = make_node("decode-0", block_bytes=1000)
    node.lease(RequestId("x"), blocks=1, queued_tokens=0)
    node.expect(RequestId("x"), size_bytes=8000)
    question = make_question(request=make_request(prompt_token_count=33))
    table, asked = Pools([node]).table, question.asked(Role.DECODE, full_s=inf)
    table[parts.PREFILL_PER_S, 0], asked[parts.COMPUTED_S] = 400.0, computed_s
    parts.fill_in(table, 0, 1, np.array([4000.0]), asked)
    assert table[parts.TRANSFER_S, 0] == ceil(33 / 16) * 1000 / 4000
    assert table[parts.INBOUND_S, 0] == inbound_s


def full_but(members: Nodes, **asked: object) -> str:
    """Why no decode node has room."""
    settings = SchedulerSettings()
    policy = Policy(settings, estimates=Estimates(settings.estimates), directory=NoDirectory())
    verdict = policy.place(make_question(**asked), members)
    assert isinstance(verdict, NoRoom), verdict
    return verdict.reason


def test_nodes_that_have_just_failed_it_are_avoided() -> None:
    members = Cluster("decode-0", "decode-1").core.nodes
    avoid = [node.identity for node in members.values()]
    reason = full_but(members, avoid=avoid)
    assert reason == "the decode nodes that could take it have just failed it"


def test_of_room_that_is_kept_for_another_it_may_take_what_it_is_left() -> None:
    members = Cluster("decode-0", make_joined("prefill-0", block_count=2)).core.nodes
    told = full_but(members, held={NodeName("decode-0"): 2, NodeName("gone"): 0})
    assert "decode-0: its room is kept for a request that waits longer" in told

"""Shared prefixes and callers' keys: where they go, when they spill, when they come back."""

from typing import Any

import pytest

from pdd.core.identity import NodeName, RequestId
from pdd.scheduler.effects import Effect, Submit
from pdd.scheduler.events import BlocksEvicted, CacheCleared, RequestArrived, RequestCancelled
from pdd.scheduler.settings import PathMode, PathSettings
from tests.builders import Cluster, make_identity, make_joined, make_request

BLOCKS = 20  # 320 tokens


def chain(name: str, block_count: int = BLOCKS, *, own: str = "") -> bytes:
    """Keys of a prompt of which the first 16 blocks are shared by all of that name."""
    return b"".join(
        f"{name if index < 16 else own or name}-{index}".encode().ljust(16, b".")[:16]
        for index in range(block_count)
    )


class Callers:
    """Three nodes of a role; decode nodes compute their own prompts."""

    def __init__(self, *, role: str = "decode", **joined: Any) -> None:
        self.role = role
        mode = PathMode.LOCAL if role == "decode" else PathMode.DISAGGREGATED
        nodes = [make_joined(f"{role}-{index}", **joined) for index in range(3)]
        if role == "prefill":
            nodes.append(make_joined("decode-0", block_count=10_001, max_num_seqs=500))
        # However short, nothing stays on the decode node.
        self.cluster = Cluster(*nodes, path=PathSettings(mode=mode, local_stall_s=1e-9))
        self.count = 0

    def ask(self, keys: bytes = b"", *, caller: str = "", tokens: int = 16 * BLOCKS) -> str:
        """The node of this role that a request goes to; it stays there."""
        self.count += 1
        effects = self.cluster.step(
            RequestArrived(
                request=make_request(f"r{self.count}", prompt_token_count=tokens),
                keys=keys,
                caller_key=caller,
            )
        )
        return self._node(effects)

    def ask_once(self, keys: bytes = b"", *, caller: str = "") -> str:
        """Likewise, and it is over at once."""
        node = self.ask(keys, caller=caller)
        self.end(self.count)
        return node

    def end(self, number: int) -> None:
        self.cluster.step(RequestCancelled(request_id=RequestId(f"r{number}")))

    def _node(self, effects: list[Effect]) -> str:
        (node,) = [
            e.node for e in effects if isinstance(e, Submit) and e.node.startswith(self.role)
        ]
        return node


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_a_shared_prefix_goes_to_one_node_and_others_elsewhere(role: str) -> None:
    callers = Callers(role=role)
    first = callers.ask_once(chain("persona", own="a"))
    for own in "bcdef":
        assert callers.ask_once(chain("persona", own=own)) == first
    others = {callers.ask_once(chain(f"other-{index}")) for index in range(12)}
    assert len(others) == 3, "what shares nothing is spread"


def test_one_callers_key_goes_to_one_node_whatever_it_asks() -> None:
    callers = Callers()
    first = callers.ask_once(chain("a"), caller="chat-7")
    assert {callers.ask_once(chain(name), caller="chat-7") for name in "bcdefgh"} == {first}


def test_tenants_do_not_share_a_callers_key() -> None:
    from pdd.scheduler.prefixes import caller_name

    assert caller_name(tenant="a", key="k") != caller_name(tenant="b", key="k")
    assert caller_name(tenant="a:1", key="k") != caller_name(tenant="a", key="1:k")


def test_a_key_spills_above_85_percent_and_comes_back() -> None:
    callers = Callers(block_count=421, max_num_seqs=64)  # 21 of 420 blocks a request: 5 %
    home = callers.ask(chain("hot", own="0"))
    went = [callers.ask(chain("hot", own=str(index))) for index in range(1, 20)]
    assert went[:17] == [home] * 17  # the last of them found it at 17 x 5 = 85 %
    assert home not in went[17:]  # and these at 90 %
    callers.end(1)
    callers.end(2)
    assert callers.ask(chain("hot", own="back")) == home


def test_only_the_hot_key_spills() -> None:
    callers = Callers(block_count=1001)
    home = callers.ask_once(chain("cold"), caller="c")
    hot = next(
        name
        for name in map(str, range(100))
        if callers.ask_once(chain(f"hot-{name}"), caller=f"hot-{name}") == home
    )
    while callers.ask(chain(f"hot-{hot}"), caller=f"hot-{hot}") == home:
        assert callers.count < 1000, "it never spills"
    other = callers.ask_once(chain("warm"), caller="warm")
    assert other != home
    assert callers.ask_once(chain("warm"), caller="warm") == other


def test_what_is_evicted_has_lost_its_preference_at_once() -> None:
    callers = Callers()
    keys = chain("persona")
    home = callers.ask(keys)  # it stays, so that the node is the busier one
    assert callers.ask_once(keys) == home
    callers.cluster.step(BlocksEvicted(identity=make_identity(home), keys=keys))
    assert callers.ask_once(keys) != home


def test_an_empty_cache_gives_no_preference() -> None:
    callers = Callers()
    keys = chain("persona")
    home = callers.ask(keys)
    callers.cluster.step(CacheCleared(identity=make_identity(home)))
    assert callers.ask_once(keys) != home


def test_a_restarted_node_has_lost_its_preferences() -> None:
    callers = Callers()
    keys = chain("persona")
    home = callers.ask_once(keys)
    callers.cluster.step(make_joined(home, boot_epoch=2))
    while callers.ask(b"", caller="") != home:  # until it is the busiest
        pass
    assert callers.ask_once(keys) != home


def test_a_prefix_that_is_shared_by_chance_ties_nobody_to_a_node() -> None:
    callers = Callers()
    short = [chain("template", 4, own=str(index)) for index in range(30)]
    went = [callers.ask(keys, tokens=70) for keys in short]
    assert len(set(went)) == 3


class Directory:
    """Says what it is told."""

    def __init__(self) -> None:
        self.held: dict[str, int] = {}

    def is_known(self, node: NodeName) -> bool:
        return True

    def matches(self, keys: bytes) -> dict[NodeName, int]:
        return {
            NodeName(node): min(count, len(keys) // 16)
            for node, count in self.held.items()
            if count
        }


def test_the_directory_decides_what_a_node_holds() -> None:
    directory = Directory()
    cluster = Cluster("decode-0", "decode-1", "decode-2", directory=directory)
    directory.held = {"decode-1": 18}
    request = make_request("r1", prompt_token_count=320)
    effects = cluster.step(RequestArrived(request=request, keys=chain("a")))
    (submit,) = [e for e in effects if isinstance(e, Submit)]
    assert submit.node == "decode-1"
    (decision,) = cluster.core.why(request.request_id, now_s=cluster.now_s)
    _, choice = decision.choices()
    assert choice is not None
    assert choice.candidates[0].inputs["cached_tokens"] == 18 * 16


def test_a_home_that_the_directory_knows_to_be_empty_is_none() -> None:
    directory = Directory()
    cluster = Cluster("decode-0", "decode-1", directory=directory)

    def node_of(request_id: str) -> str:
        request = make_request(request_id, prompt_token_count=320)
        effects = cluster.step(RequestArrived(request=request, keys=chain("a")))
        (submit,) = [e for e in effects if isinstance(e, Submit)]
        return submit.node

    home = node_of("r1")
    assert node_of("r2") == home, "its blocks may be on their way to the directory"
    cluster.now_s += 60.0
    assert node_of("r3") != home

"""Who hears of whom when nodes come and go."""

from pdd.core.identity import NodeName
from pdd.scheduler.effects import DismissPeer, Effect, IntroducePeers, Submit
from pdd.scheduler.events import NodeLost, RequestArrived
from tests.builders import Cluster, make_identity, make_joined, make_request


def introduced(effects: list[Effect]) -> dict[str, tuple[list[str], bool]]:
    """Of whom each node hears, and whether these are all."""
    return {
        effect.node: ([peer.name for peer in effect.peers], effect.complete)
        for effect in effects
        if isinstance(effect, IntroducePeers)
    }


def dismissed(effects: list[Effect]) -> list[tuple[str, str, int]]:
    return [
        (effect.node, effect.peer.name, effect.peer.boot_epoch)
        for effect in effects
        if isinstance(effect, DismissPeer)
    ]


def lost(name: str) -> NodeLost:
    return NodeLost(identity=make_identity(name), reason="connection lost")


def test_prefill_and_decode_nodes_hear_of_each_other_and_of_nobody_else() -> None:
    cluster = Cluster("prefill-0", "decode-0", "decode-1")
    assert introduced(cluster.step(make_joined("prefill-1"))) == {
        "prefill-1": (["decode-0", "decode-1"], True),
        "decode-0": (["prefill-1"], False),
        "decode-1": (["prefill-1"], False),
    }


def test_the_first_node_hears_that_it_has_no_peers() -> None:
    assert introduced(Cluster().step(make_joined("decode-0"))) == {"decode-0": ([], True)}


def test_a_nodes_loss_is_told_to_those_that_are_left() -> None:
    cluster = Cluster("prefill-0", "prefill-1", "decode-0", "decode-1")
    cluster.step(lost("decode-1"))
    assert dismissed(cluster.step(lost("prefill-0"))) == [("decode-0", "prefill-0", 1)]


def test_a_lost_node_is_introduced_to_nobody() -> None:
    cluster = Cluster("prefill-0", "prefill-1")
    cluster.step(lost("prefill-0"))
    assert introduced(cluster.step(make_joined("decode-0"))) == {
        "decode-0": (["prefill-1"], True),
        "prefill-1": (["decode-0"], False),
    }


def test_a_new_life_replaces_the_former_at_its_peers() -> None:
    cluster = Cluster("prefill-0", "decode-0")
    effects = cluster.step(make_joined("prefill-0", boot_epoch=2))
    assert dismissed(effects) == [("decode-0", "prefill-0", 1)]
    (told,) = [
        effect
        for effect in effects
        if isinstance(effect, IntroducePeers) and effect.node == "decode-0"
    ]
    assert [peer.boot_epoch for peer in told.peers] == [2]


def test_a_node_hears_of_its_peers_before_its_first_job() -> None:
    cluster = Cluster("prefill-0", "decode-0")
    cluster.step(RequestArrived(request=make_request()))
    cluster.step(lost("decode-0"))
    effects = cluster.step(make_joined("decode-1"))
    kinds = [
        type(effect)
        for effect in effects
        if isinstance(effect, IntroducePeers | Submit) and effect.node == NodeName("decode-1")
    ]
    assert kinds == [IntroducePeers, Submit]

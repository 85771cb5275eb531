"""A node's peers over their life: joined, refused, looked at, gone."""

import itertools

from pdd.core.identity import NodeIdentity, NodeName
from pdd.transfer.pairing import PeerNode, RankConnection
from pdd.transfer.peer_book import (
    ConnectRanks,
    DisconnectRanks,
    JoinSettings,
    PeerBook,
    RefusePeer,
)
from pdd.transfer.values import Connection

FINGERPRINT = {"model": "tiny", "tensor_parallel_size": "2"}
MIB = 1 << 20


def make_peer(name="prefill-0", *, boot_epoch=1, ranks=2, **changes):
    return PeerNode(
        identity=NodeIdentity(name=NodeName(name), uuid=f"uuid-{name}", boot_epoch=boot_epoch),
        control_address=f"{name}:1",
        ucx_addresses=tuple(b"%d" % rank for rank in range(ranks)),
        fingerprint=FINGERPRINT | changes,
    )


class Book:
    """A book at a time that only the test moves, and an engine that connects at once."""

    def __init__(self, **settings):
        self.book = PeerBook(
            fingerprint=FINGERPRINT, rank_count=2, settings=JoinSettings(**settings)
        )
        self.now_s = 100.0
        self.open = {}

    def joined(self, *peers, teller="s0", complete=False):
        return self.obey(self.book.joined(teller, peers, complete=complete, now_s=self.now_s))

    def left(self, peer, teller="s0"):
        return self.obey(self.book.left(teller, peer.identity))

    def look(self, *, after_s=1.0, lanes=("tcp/lo",), received_mib=0, gb_per_s=0.0):
        self.now_s += after_s
        connections = [
            RankConnection(
                own_rank=own_rank,
                connection=Connection(
                    peer=peer,
                    lanes=lanes,
                    received_bytes=received_mib * MIB,
                    bytes_per_s=gb_per_s * 1e9,
                ),
            )
            for own_rank, peer in self.open
        ]
        return self.obey(self.book.looked(connections, now_s=self.now_s))

    def obey(self, actions):
        for action in actions:
            for link in getattr(action, "links", ()):
                key = (link.own_rank, link.peer.peer_id)
                if isinstance(action, ConnectRanks):
                    self.open[key] = link
                else:
                    self.open.pop(key, None)
        return actions

    @property
    def reason(self):
        return self.book.degraded_reason


def outline(actions):
    return [(type(action).__name__, action.peer.name, action.peer.boot_epoch) for action in actions]


def test_a_new_peer_is_connected_rank_by_rank_at_once():
    book = Book()
    [action] = book.joined(make_peer())
    assert [(link.own_rank, link.peer.rank) for link in action.links] == [(0, 0), (1, 1)]
    assert action.links[1].peer.ucx_address == b"1"
    assert book.joined(make_peer()) == [], "told again, nothing is done again"


def test_a_misfit_is_refused_by_name_and_never_connected():
    book = Book()
    [action] = book.joined(make_peer(model="huge"))
    assert isinstance(action, RefusePeer)
    assert action.reason == "model is tiny here and huge at prefill-0"
    assert book.book.refusal("uuid-prefill-0") == action.reason
    assert book.reason == f"exchanges nothing with prefill-0: {action.reason}"
    assert [report.refused_reason for report in book.book.reports()] == [action.reason]
    assert book.left(make_peer()) == []
    assert book.reason == ""
    assert book.book.refusal("uuid-prefill-0") == ""


def test_another_number_of_ranks_is_refused():
    [action] = Book().joined(make_peer(ranks=3))
    assert action.reason == "the number of ranks is 2 here and 3 at prefill-0"


def test_a_newer_life_takes_the_place_of_the_former():
    book = Book()
    book.joined(make_peer())
    assert outline(book.joined(make_peer(boot_epoch=2))) == [
        ("DisconnectRanks", "prefill-0", 1),
        ("ConnectRanks", "prefill-0", 2),
    ]
    assert book.joined(make_peer(boot_epoch=1)) == [], "a scheduler that is behind"
    assert book.left(make_peer(boot_epoch=1)) == [], "late news"
    assert outline(book.left(make_peer(boot_epoch=2))) == [("DisconnectRanks", "prefill-0", 2)]


def test_a_mended_node_is_connected_in_its_next_life():
    book = Book()
    book.joined(make_peer(model="huge"))
    assert outline(book.joined(make_peer(boot_epoch=2))) == [("ConnectRanks", "prefill-0", 2)]
    assert book.reason == ""


def test_a_complete_list_drops_those_who_are_not_in_it():
    book = Book()
    book.joined(make_peer("prefill-0"), make_peer("prefill-1"))
    assert outline(book.joined(make_peer("prefill-1"), complete=True)) == [
        ("DisconnectRanks", "prefill-0", 1)
    ]


def test_a_peer_stays_while_any_scheduler_knows_it():
    book = Book()
    book.joined(make_peer(), teller="s0")
    book.joined(make_peer(), teller="s1")
    assert book.joined(teller="s0", complete=True) == []
    assert book.left(make_peer(), teller="s0") == []
    assert outline(book.left(make_peer(), teller="s1")) == [("DisconnectRanks", "prefill-0", 1)]


def test_a_lost_connection_is_made_again_ever_more_seldom():
    book = Book()
    book.joined(make_peer())
    book.look()
    attempts = []
    for _ in range(300):
        for key in list(book.open):
            del book.open[key]
        if book.look():
            attempts.append(book.now_s)
    gaps = [later - earlier for earlier, later in itertools.pairwise(attempts)]
    assert gaps[:3] == [4.0, 8.0, 16.0]
    assert max(gaps) == 60.0
    assert "no connection to prefill-0" in book.reason
    book.look(after_s=60.0)
    assert book.open, "the last attempt"
    book.look()
    assert book.reason == ""


def test_one_missing_rank_is_connected_alone():
    book = Book()
    [action] = book.joined(make_peer())
    del book.open[1, action.links[1].peer.peer_id]
    again = [one for _ in range(3) for one in book.look()]
    assert [[link.own_rank for link in one.links] for one in again] == [[1]]


def test_a_short_gap_is_no_reason_to_be_degraded():
    book = Book()
    book.joined(make_peer())
    book.open.clear()
    book.look()
    book.look()
    assert book.reason == ""


def test_tcp_where_rdma_is_expected_degrades_from_the_second_look_on():
    book = Book(rdma_expected=True)
    book.joined(make_peer())
    book.look()
    assert book.reason == "", "UCX may still be changing lanes"
    book.look()
    assert book.reason.startswith("prefill-0 is reached over tcp/lo, not over RDMA")
    assert book.reason.count("prefill-0 is reached") == 1, "not once per rank"
    book.look(lanes=("rc_mlx5/mlx5_0:1", "tcp/eth0"))
    assert book.reason == ""


def test_memory_that_nodes_of_one_host_share_is_no_tcp():
    book = Book(rdma_expected=True)
    book.joined(make_peer())
    for _ in range(3):
        book.look(lanes=("tcp/lo", "shared_memory"))
    assert book.reason == ""
    assert [report.transport for report in book.book.reports()] == ["shared_memory"]


def test_below_the_floor_is_degraded_until_the_latest_window_is_above_it():
    book = Book(floor_bytes_per_s=1e9)
    book.joined(make_peer())
    book.look()
    book.look(received_mib=10, gb_per_s=0.5)
    assert book.reason == "", "10 MiB say nothing"
    book.look(received_mib=64, gb_per_s=0.5)
    assert "prefill-0 sends 0.50 GB/s, below the floor of 1.00 GB/s" in book.reason
    # The mean over 128 MiB, half at 0.5 and half at 2 GB/s.
    book.look(received_mib=128, gb_per_s=0.8)
    assert book.reason == ""
    [report] = book.book.reports()
    assert round(report.bytes_per_s) == 2 * 2_000_000_000
    assert report.received_bytes == 2 * 128 * MIB


def test_a_connection_that_is_no_longer_used_is_not_judged_by_its_speed_of_long_ago():
    book = Book(floor_bytes_per_s=1e9)
    book.joined(make_peer())
    book.look()
    book.look(received_mib=64, gb_per_s=0.5)
    assert "below the floor" in book.reason
    for _ in range(59):
        book.look(received_mib=64, gb_per_s=0.5)
    assert "below the floor" in book.reason
    book.look(received_mib=64, gb_per_s=0.5, after_s=2.0)
    assert book.reason == ""
    [report] = book.book.reports()
    assert round(report.bytes_per_s) == 2 * 500_000_000, "what was measured last is still shown"
    book.look(received_mib=65, gb_per_s=0.5)
    assert "below the floor" in book.reason


def test_a_standing_reason_comes_first_and_many_are_counted():
    book = Book(standing_reason="no RDMA device", rdma_expected=True)
    assert book.reason == "no RDMA device"
    book.joined(*(make_peer(f"prefill-{index}") for index in range(5)))
    book.look()
    book.look()
    assert book.reason.startswith("no RDMA device; prefill-0 is reached")
    assert book.reason.endswith("; and 3 more")


def test_a_peer_that_left_takes_its_reasons_along():
    book = Book(rdma_expected=True)
    book.joined(make_peer())
    book.look()
    book.look()
    assert book.reason
    [action] = book.left(make_peer())
    assert isinstance(action, DisconnectRanks)
    assert book.reason == ""
    assert book.book.reports() == []


def test_another_peers_news_does_not_end_an_old_reason():
    book = Book()
    peer = make_peer()
    book.joined(peer)
    book.look()
    book.open.clear()
    book.look()
    book.look(after_s=15.0)
    book.open.clear()
    assert "no connection to prefill-0" in book.book.degraded_reason
    book.joined(make_peer("prefill-1"))
    assert "no connection to prefill-0" in book.book.degraded_reason
    book.left(make_peer("prefill-1"))
    assert "no connection to prefill-0" in book.book.degraded_reason


def test_the_word_of_a_lost_scheduler_keeps_no_peer_that_another_says_has_left():
    book = Book()
    peer = make_peer()
    book.joined(peer, teller="s0")
    book.joined(peer, teller="s1")
    book.book.teller_lost("s0")
    assert book.book.reports()  # a loss alone takes nothing along
    assert any(isinstance(action, DisconnectRanks) for action in book.left(peer, teller="s1"))
    assert not book.book.reports()


def test_a_scheduler_that_is_back_counts_again():
    book = Book()
    peer = make_peer()
    book.joined(peer, teller="s0")
    book.joined(peer, teller="s1")
    book.book.teller_lost("s0")
    book.joined(peer, teller="s0")
    assert book.left(peer, teller="s1") == []
    assert book.book.reports()

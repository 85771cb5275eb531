"""Who may run a key: one scheduler at a time, whatever order they ask in."""

from pdd.cell.claims import HeardClaim, HeardClaims, KeyClaims


def claims(*, rows: dict[bytes, str] | None = None, most: int = 10) -> KeyClaims:
    said = {} if rows is None else rows
    return KeyClaims(sources=(said.get,), claims_max=most)


def told(one: KeyClaims, holder: str, *, runs: str = "") -> str:
    """``runs``: the schedulers that run a request of that key."""
    return one.told(b"k", holder, stands=runs.__contains__)


def test_the_first_that_asks_has_it_and_the_others_are_sent_there() -> None:
    one = claims()
    assert [one.claim(b"k", who) for who in ("b", "a", "b", "c")] == ["b"] * 4
    assert one.claim(b"other", "c") == "c"


def test_a_new_leader_knows_from_the_table() -> None:
    assert claims(rows={b"k": "a"}).claim(b"k", "b") == "a"


def test_a_new_leader_is_told_by_who_has_a_key_and_what_was_claimed_since_stands() -> None:
    one = claims()
    assert told(one, "a") == "a"
    assert one.claim(b"k", "b") == "a"
    assert one.claim(b"k", "b", without="a") == "b"
    assert told(one, "a", runs="b") == "b"
    assert one.claim(b"k", "c") == "b"


def test_what_was_claimed_and_does_not_run_is_for_whoever_tells_that_it_does() -> None:
    one = claims()
    assert one.claim(b"k", "b") == "b"
    assert told(one, "a") == "a"
    assert (one.claimed(b"k"), one.claim(b"k", "b")) == ("a", "a")


def test_what_a_lost_scheduler_had_is_for_the_next_that_asks() -> None:
    one = claims(rows={b"k": "a"})
    assert (one.holder(b"k"), one.holder(b"k", without="a")) == ("a", None)
    assert [one.claim(b"k", who, without="a") for who in ("b", "c")] == ["b", "b"]


def test_what_was_taken_over_from_a_lost_scheduler_is_not_for_the_next_that_asks() -> None:
    rows: dict[bytes, str] = {}
    one = claims(rows=rows)
    assert one.claim(b"k", "a") == "a"
    rows[b"k"] = "b"  # a node has given the request to b
    assert one.claim(b"k", "c", without="a") == "b"
    assert one.claim(b"k", "c", without="ab") == "c"


def test_what_was_taken_over_from_one_that_is_back_is_not_for_the_next_that_asks() -> None:
    rows: dict[bytes, str] = {}
    one = claims(rows=rows)
    assert one.claim(b"k", "a") == "a"
    rows[b"k"] = "b"
    assert one.claim(b"k", "c", without="a") == "b"
    assert one.claim(b"k", "c", without="b") == "c"


def test_a_scheduler_that_has_nothing_there_any_more_lets_go_of_it_once() -> None:
    one = claims(rows={b"k": "a"})
    assert one.claim(b"k", "b", without="a") == "b"
    assert one.claim(b"k", "c", without="a") == "b"
    assert one.claim(b"k", "a") == "b"


def test_beyond_the_bound_the_oldest_claim_is_forgotten() -> None:
    one = claims(most=2)
    for key in (b"1", b"2", b"3"):
        one.claim(key, "a")
    assert len(one) == 2
    assert one.claim(b"3", "b") == "a"
    assert one.claim(b"1", "b") == "b"


def test_what_a_leader_has_claimed_for_itself_comes_before_older_rows() -> None:
    rows, heard = {b"k": "c"}, {b"k": "a"}
    one = KeyClaims(sources=(heard.get, rows.get))
    assert one.claim(b"k", "b") == "a"
    assert one.claim(b"k", "b", without="a") == "c"
    assert one.claim(b"k", "b", without="ac") == "b"


def test_of_two_claims_that_were_heard_the_later_one_counts_whichever_came_first() -> None:
    for order in ((0, 1), (1, 0)):
        heard = HeardClaims()
        said = [HeardClaim(b"k", "a", 9.0), HeardClaim(b"k", "b", 2.0)]
        for index in order:
            heard.note(said[index], 100.0)
        assert heard.holder_of(b"k") == "b"
        assert heard.all(101.0) == [HeardClaim(b"k", "b", 3.0)]


def test_who_has_nothing_under_a_key_is_forgotten_and_nobody_else_is() -> None:
    heard = HeardClaims()
    heard.note(HeardClaim(b"k", "a", 0.0), 1.0)
    heard.let_go(b"k", "b")
    heard.let_go(b"other", "a")
    assert heard.holder_of(b"k") == "a"
    heard.let_go(b"k", "a")
    assert heard.holder_of(b"k") is None


def test_beyond_the_bound_what_was_noted_first_is_forgotten() -> None:
    heard = HeardClaims(claims_max=2)
    for now_s, key in enumerate((b"1", b"2", b"1", b"3")):
        heard.note(HeardClaim(key, "a", 0.0), now_s)
    assert [heard.holder_of(key) for key in (b"1", b"2", b"3")] == ["a", None, "a"]

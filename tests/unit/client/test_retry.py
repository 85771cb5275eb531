"""Whom a client asks next, and when it gives up."""

from pdd.client.retry import Retry


def test_as_long_as_nobody_has_the_request_each_address_is_tried_once() -> None:
    retry = Retry(["a", "b", "c"], patience_s=30.0)
    asked = [retry.address]
    while retry.failed(now_s=0.0) is not None:
        asked.append(retry.address)
    assert asked == ["a", "b", "c"]
    assert not retry.is_taken


def test_a_request_that_was_taken_is_looked_for_everywhere_with_growing_pauses() -> None:
    retry = Retry(["a", "b"], patience_s=30.0)
    retry.taken(now_s=0.0)
    asked, pauses, now_s = [retry.address], [], 0.0
    for _ in range(9):
        pause_s = retry.failed(now_s=now_s)
        assert pause_s is not None
        now_s += pause_s
        pauses.append(pause_s)
        asked.append(retry.address)
    assert asked == ["a", "b"] * 5
    assert pauses == [0.0, 0.1, 0.0, 0.2, 0.0, 0.4, 0.0, 0.8, 0.0]


def test_patience_counts_from_the_last_news() -> None:
    retry = Retry(["a"], patience_s=10.0)
    retry.taken(now_s=0.0)
    assert retry.failed(now_s=9.0) is not None
    retry.taken(now_s=9.5)
    assert retry.failed(now_s=19.0) == 0.1
    assert retry.failed(now_s=19.4) is None


def test_pauses_have_a_limit() -> None:
    retry = Retry(["a"], patience_s=1000.0)
    retry.taken(now_s=0.0)
    assert {retry.failed(now_s=1.0) for _ in range(100)} == {0.1, 0.2, 0.4, 0.8, 1.0}

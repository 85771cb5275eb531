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


def test_patience_counts_from_the_loss_and_not_from_the_last_news() -> None:
    retry = Retry(["a"], patience_s=10.0)
    retry.taken(now_s=0.0)
    assert retry.failed(now_s=100.0) == 0.1, "a long prompt is silent: nobody looked for it"
    assert retry.failed(now_s=109.7) == 0.2
    assert retry.failed(now_s=109.8) is None


def test_a_server_that_takes_a_request_and_loses_it_again_is_no_news() -> None:
    retry = Retry(["a", "b"], patience_s=10.0)
    now_s, pauses = 0.0, []
    while len(pauses) < 100:
        retry.taken(now_s=now_s)
        if (pause_s := retry.failed(now_s=now_s)) is None:
            break
        pauses.append(pause_s)
        now_s += pause_s
    assert 9.0 < now_s < 10.0
    assert max(pauses) == 1.0


def test_news_begin_patience_and_pauses_anew() -> None:
    retry = Retry(["a"], patience_s=10.0)
    retry.taken(now_s=0.0)
    assert [retry.failed(now_s=now_s) for now_s in (0.0, 8.0)] == [0.1, 0.2]
    retry.taken(now_s=9.0)
    retry.heard()
    assert [retry.failed(now_s=now_s) for now_s in (9.0, 18.0, 18.9)] == [0.1, 0.2, None]


def test_pauses_have_a_limit() -> None:
    retry = Retry(["a"], patience_s=1000.0)
    retry.taken(now_s=0.0)
    assert {retry.failed(now_s=1.0) for _ in range(100)} == {0.1, 0.2, 0.4, 0.8, 1.0}

"""Rates and levels: how quickly the truth replaces a start value."""

import pytest

from pdd.core.identity import NodeName
from pdd.scheduler.estimates import Estimates, Level, Rate
from pdd.scheduler.settings import EstimateSettings

P, D, E = NodeName("prefill-0"), NodeName("decode-0"), NodeName("decode-1")


@pytest.mark.parametrize("start", [10.0, 100.0, 1000.0])
def test_a_rate_is_near_the_truth_after_a_handful_of_observations(start: float) -> None:
    rate = Rate(start_per_s=start, half_life_s=15.0)
    assert rate.per_s == start
    for index in range(8):
        rate.observe(50.0, 0.5, now_s=float(index))  # 100 per second
    assert rate.per_s == pytest.approx(100.0, rel=0.02)


def test_a_rate_follows_a_change_by_its_half_life() -> None:
    rate = Rate(start_per_s=100.0, half_life_s=10.0)
    for second in range(100):
        rate.observe(100.0, 1.0, now_s=float(second))
    for second in range(100, 140):
        rate.observe(10.0, 1.0, now_s=float(second))
    assert 10.0 < rate.per_s < 20.0  # 4 half-lives: a sixteenth of the old


def test_two_results_of_one_moment_are_both_counted() -> None:
    rate = Rate(start_per_s=1.0, half_life_s=10.0)
    for second in range(30):
        rate.observe(50.0, 1.0, now_s=float(second))
        rate.observe(50.0, 0.0, now_s=float(second))
    assert rate.per_s == pytest.approx(100.0, rel=0.01)


def test_an_idle_hour_forgets_nothing() -> None:
    rate = Rate(start_per_s=1.0, half_life_s=10.0)
    for second in range(30):
        rate.observe(100.0, 1.0, now_s=float(second))
    rate.observe(100.0, 1.0, now_s=3600.0)
    assert rate.per_s == pytest.approx(100.0, rel=0.01)


def test_a_level_knows_its_spread() -> None:
    level = Level(mean=256.0)
    for index in range(200):
        level.observe(40.0 if index % 2 else 60.0)
    assert level.mean == pytest.approx(50.0, abs=3.0)
    assert level.upper == pytest.approx(70.0, abs=5.0)


def test_outputs_are_kept_apart_by_what_was_asked_for() -> None:
    estimates = Estimates(EstimateSettings())
    for _ in range(50):
        estimates.output(4000).observe(100)
    assert estimates.likely_output_tokens_max(4000) == pytest.approx(100, abs=20)
    assert estimates.likely_output_tokens_max(16) == 16
    assert estimates.expected_output_tokens(1) == 1


def test_what_little_is_known_of_is_believed_to_be_like_the_others() -> None:
    estimates = Estimates(EstimateSettings(prefill_tokens_per_s=10.0))
    for second in range(20):
        estimates.observe_prefill(P, 1000, 1.0, now_s=float(second))
    assert estimates.prefill(D).per_s == pytest.approx(1000, rel=0.01)


def test_a_link_that_was_not_the_slower_part_is_only_known_to_be_no_slower() -> None:
    estimates = Estimates(EstimateSettings(link_bytes_per_s=1e9))
    for second in range(20):  # 1 MB within a second of prefill, nobody waited
        estimates.observe_transfer(
            P, D, size_bytes=1_000_000, transfer_s=1.0, waited_s=0.001, now_s=float(second)
        )
    assert estimates.link(P, D).per_s == 1e9
    for second in range(20, 40):  # 1 MB, and everybody waited for it
        estimates.observe_transfer(
            P, D, size_bytes=1_000_000, transfer_s=1.0, waited_s=0.9, now_s=float(second)
        )
    assert estimates.link(P, D).per_s == pytest.approx(1e6, rel=0.1)


def test_a_link_is_tried_until_it_is_known_and_once_a_minute_after_silence() -> None:
    estimates = Estimates(EstimateSettings())
    for _ in range(8):
        assert estimates.wants_probe(P, D, now_s=0.0)
        estimates.observe_transfer(P, D, size_bytes=1, transfer_s=0.1, waited_s=0.1, now_s=0.0)
    assert not estimates.wants_probe(P, D, now_s=59.0)
    assert estimates.wants_probe(P, D, now_s=61.0)
    estimates.probes(P, D, now_s=61.0)
    assert not estimates.wants_probe(P, D, now_s=62.0), "one try is on its way"
    assert estimates.wants_probe(P, E, now_s=62.0)


def test_tries_that_tell_nothing_are_bounded() -> None:
    estimates = Estimates(EstimateSettings())
    sent = 0
    while estimates.wants_probe(P, D, now_s=0.0):
        estimates.probes(P, D, now_s=0.0)
        sent += 1
        assert sent < 100, "every request of a burst is sent the expensive way"
    assert sent == EstimateSettings().sample_count_min
    assert not estimates.wants_probe(P, D, now_s=5.0)
    assert estimates.wants_probe(P, D, now_s=5.1), "a link that fails is tried now and again"
    estimates.probes(P, D, now_s=5.1)
    assert not estimates.wants_probe(P, D, now_s=6.0)


def test_a_node_that_is_forgotten_leaves_nothing() -> None:
    estimates = Estimates(EstimateSettings())
    estimates.observe_prefill(D, 10, 1.0, now_s=0.0)
    estimates.observe_transfer(P, D, size_bytes=1, transfer_s=0.1, waited_s=0.1, now_s=0.0)
    estimates.probes(P, D, now_s=0.0)
    estimates.forget(D)
    assert not estimates._links
    assert not estimates._handovers
    assert not estimates._tries
    assert estimates.prefill(D).sample_count == 0


def test_many_small_transfers_do_not_make_a_link_look_slow() -> None:
    """Each takes its latency, several at once: together they carried far more than each seems."""
    estimates = Estimates(EstimateSettings())
    for _ in range(200):
        estimates.observe_transfer(P, D, size_bytes=2048, transfer_s=0.04, waited_s=0.04, now_s=0.0)
    assert estimates.link(P, D).per_s == EstimateSettings().link_bytes_per_s
    assert estimates.handover(P, D).mean == pytest.approx(0.04, rel=0.1)


def test_a_link_over_which_every_pull_failed_is_slow_and_divides_nothing_by_zero() -> None:
    estimates = Estimates(EstimateSettings())
    for _ in range(50):
        estimates.observe_pull(D, P, size_bytes=0, pull_s=0.5, is_complete=False, now_s=1.0)
        assert estimates.link(D, P).per_s > 0.0
    assert estimates.pull_s(D, P, size_bytes=1 << 20, now_s=1.0) > 60.0
    assert estimates.pull_s(D, P, size_bytes=1 << 20, now_s=100.0) < 1.0, "it is tried again"

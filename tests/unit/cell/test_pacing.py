"""Hard entries never wait for soft ones, and soft ones never for ever."""

from pdd.cell.pacing import HARD_WAITING_MAX, Pacing, PacingSettings

SETTINGS = PacingSettings(
    batch_s=0.02,
    soft_wait_max_s=0.25,
    hard_entry_bytes_max=100,
    hard_waiting_bytes_max=10 * HARD_WAITING_MAX,
    soft_entry_bytes_max=100,
    soft_waiting_bytes_max=250,
)


def make() -> Pacing[str]:
    return Pacing(SETTINGS)


def test_everything_hard_that_waits_goes_in_one_entry_at_once() -> None:
    pacing = make()
    assert pacing.put_hard("a", "asker-a", size_bytes=10)
    assert pacing.put_hard("b", "asker-b", size_bytes=10)
    batch = pacing.next_hard()
    assert batch is not None
    assert (batch.operations, batch.tokens) == (("a", "b"), ("asker-a", "asker-b"))
    pacing.put_hard("c", "asker-c", size_bytes=10)
    assert pacing.next_hard() is None, "one at a time"
    pacing.hard_answered()
    again = pacing.next_hard()
    assert again is not None
    assert again.operations == ("c",)


def test_a_soft_batch_goes_when_it_is_old_enough() -> None:
    pacing = make()
    pacing.put_soft("x", size_bytes=10, now_s=5.0)
    pacing.put_soft("y", size_bytes=10, now_s=5.01)
    assert pacing.next_soft(now_s=5.019) is None
    assert pacing.soft_due_s() == 5.02
    batch = pacing.next_soft(now_s=5.02)
    assert batch is not None
    assert (batch.operations, batch.size_bytes) == (("x", "y"), 20)


def test_a_full_soft_batch_goes_at_once_and_leaves_the_rest() -> None:
    pacing = make()
    for name in "xyz":
        pacing.put_soft(name, size_bytes=45, now_s=5.0)
    batch = pacing.next_soft(now_s=5.0)
    assert batch is not None
    assert batch.operations == ("x", "y")
    assert pacing.next_soft(now_s=9.0) is None, "one at a time"
    pacing.soft_answered()
    assert pacing.next_soft(now_s=5.0) is None, "what is left is young and small"


def test_an_operation_larger_than_an_entry_still_travels_alone() -> None:
    pacing = make()
    pacing.put_soft("huge", size_bytes=200, now_s=5.0)
    pacing.put_soft("x", size_bytes=10, now_s=5.0)
    batch = pacing.next_soft(now_s=5.0)
    assert batch is not None
    assert batch.operations == ("huge",)


def test_soft_entries_step_back_for_hard_ones_that_wait_or_are_on_their_way() -> None:
    pacing = make()
    pacing.put_soft("x", size_bytes=10, now_s=5.0)
    pacing.put_hard("a", "asker", size_bytes=10)
    assert pacing.next_soft(now_s=5.1) is None
    pacing.next_hard()
    assert pacing.next_soft(now_s=5.1) is None
    pacing.hard_answered()
    assert pacing.next_soft(now_s=5.1) is not None


def test_a_stream_of_hard_entries_does_not_starve_soft_ones() -> None:
    pacing = make()
    pacing.put_soft("x", size_bytes=10, now_s=5.0)
    pacing.put_hard("a", "asker", size_bytes=10)
    pacing.next_hard()
    assert pacing.soft_due_s() == 5.25
    assert pacing.next_soft(now_s=5.25) is not None


def test_beyond_their_bound_soft_operations_are_dropped_and_counted() -> None:
    pacing = make()
    accepted = [pacing.put_soft("x", size_bytes=100, now_s=5.0) for _ in range(4)]
    assert accepted == [True, True, False, False]
    assert pacing.dropped_count == 2
    pacing.next_soft(now_s=5.0)
    assert pacing.put_soft("x", size_bytes=100, now_s=5.0)


def test_beyond_their_bound_hard_operations_are_refused() -> None:
    pacing = make()
    assert all(
        pacing.put_hard(number, "asker", size_bytes=10) for number in range(HARD_WAITING_MAX)
    )
    assert not pacing.put_hard("one more", "asker", size_bytes=10)


def test_at_the_end_whoever_waits_is_known() -> None:
    pacing = make()
    pacing.put_hard("a", "asker-a", size_bytes=10)
    assert pacing.take_waiting() == ["asker-a"]
    assert pacing.next_hard() is None


def test_a_hard_entry_takes_what_raft_takes_and_the_rest_goes_next_in_order() -> None:
    pacing = make()
    for name in "abc":
        assert pacing.put_hard(name, f"asker-{name}", size_bytes=45)
    first = pacing.next_hard()
    assert first is not None
    assert (first.operations, first.tokens) == (("a", "b"), ("asker-a", "asker-b"))
    pacing.hard_answered()
    rest = pacing.next_hard()
    assert rest is not None
    assert (rest.operations, rest.tokens) == (("c",), ("asker-c",))


def test_a_hard_operation_larger_than_an_entry_still_travels_alone() -> None:
    pacing = make()
    pacing.put_hard("huge", "asker", size_bytes=200)
    pacing.put_hard("b", "asker", size_bytes=10)
    batch = pacing.next_hard()
    assert batch is not None
    assert batch.operations == ("huge",)


def test_large_hard_operations_are_refused_when_their_bytes_find_no_room() -> None:
    pacing = Pacing[str](PacingSettings(hard_entry_bytes_max=100, hard_waiting_bytes_max=120))
    assert pacing.put_hard("a", "asker", size_bytes=100)
    assert not pacing.put_hard("b", "asker", size_bytes=21)
    assert pacing.next_hard() is not None
    assert pacing.put_hard("b", "asker", size_bytes=21), "there is room again"

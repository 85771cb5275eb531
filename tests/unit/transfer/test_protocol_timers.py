"""Deadlines: in their order, and not kept for what is long over."""

from pdd.transfer.protocol_timers import SWEPT_FROM, Timers


def test_timers_fire_in_the_order_of_their_times_and_then_of_their_scheduling():
    timers = Timers(lambda whom: True)
    for at_s, what in ((2.0, "b"), (1.0, "a"), (2.0, "c"), (3.0, "late")):
        timers.schedule(at_s, what, "k")
    assert timers.next_s() == 1.0
    assert [what for what, _ in timers.due(2.0)] == ["a", "b", "c"]
    assert timers.next_s() == 3.0


def test_what_is_over_is_swept_out_and_what_matters_stays():
    known = {"long"}
    timers = Timers(lambda whom: whom in known)
    timers.schedule(1000.0, "deadline", "long")
    for number in range(10 * SWEPT_FROM):  # transfers of a moment, with deadlines of minutes
        known.add(number)
        timers.schedule(300.0 + number, "lease", number)
        known.remove(number)
        assert len(timers) <= SWEPT_FROM
    assert list(timers.due(2000.0 + 10 * SWEPT_FROM))[-1] == ("lease", 10 * SWEPT_FROM - 1)
    timers.schedule(1000.0, "deadline", "long")
    assert ("deadline", "long") in list(timers.due(1000.0))


def test_as_many_as_matter_are_kept():
    timers = Timers(lambda whom: True)
    for number in range(5 * SWEPT_FROM):
        timers.schedule(float(number), "lease", number)
    assert [whom for _, whom in timers.due(1e9)] == list(range(5 * SWEPT_FROM))

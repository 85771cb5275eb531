"""Offers wait for the device; everything keeps its order."""

import threading
import time

import pytest

from pdd.connector.device_order import AfterEvents, AtOnce

WAIT_S = 10.0


class Event:
    def __init__(self):
        self.reached = threading.Event()

    def synchronize(self):
        assert self.reached.wait(WAIT_S)


class Device:
    """Each look at the current point is a new event, which the test lets happen."""

    def __init__(self):
        self.events = []
        self.done = []
        self.news = threading.Condition()

    def record(self):
        self.events.append(Event())
        return self.events[-1]

    def action(self, name):
        def run():
            with self.news:
                self.done.append(name)
                self.news.notify_all()

        return run

    def wait_for(self, count):
        with self.news:
            assert self.news.wait_for(lambda: len(self.done) >= count, WAIT_S), self.done


@pytest.fixture
def device():
    return Device()


@pytest.fixture
def order(device):
    made = AfterEvents(device.record)
    yield made
    for event in device.events:
        event.reached.set()
    made.close()


def test_on_a_cpu_everything_runs_at_once(device):
    order = AtOnce()
    order.computed(device.action("blocks"))
    order.then(device.action("abort"))
    order.close()
    assert device.done == ["blocks", "abort"]


def test_an_offer_waits_until_the_device_has_come_to_it(device, order):
    order.computed(device.action("step 1"))
    order.computed(device.action("step 2"))
    device.events[1].reached.set()  # the later event alone lets nothing through
    assert device.done == []
    device.events[0].reached.set()
    device.wait_for(2)
    assert device.done == ["step 1", "step 2"]


def test_an_abort_comes_after_the_offers_before_it_and_waits_for_nothing_else(device, order):
    order.computed(device.action("blocks"))
    order.then(device.action("abort"))
    assert len(device.events) == 1
    device.events[0].reached.set()
    device.wait_for(2)
    assert device.done == ["blocks", "abort"]


def test_a_failed_device_is_told_to_the_next_giver(device, order):
    failed = threading.Event()

    def fail():
        failed.set()
        raise OSError("an illegal memory access was encountered")

    order.then(fail)
    assert failed.wait(WAIT_S)
    order._thread.join(WAIT_S)
    with pytest.raises(RuntimeError, match="waiting for the device") as caught:
        order.computed(device.action("blocks"))
    assert "illegal memory access" in str(caught.value.__cause__)


def test_close_forgets_what_the_device_has_not_come_to(device):
    order = AfterEvents(device.record)
    order.computed(device.action("blocks"))
    closing = threading.Thread(target=order.close)
    closing.start()
    deadline_s = time.monotonic() + WAIT_S
    while not order._closed:
        assert time.monotonic() < deadline_s
    device.events[0].reached.set()
    closing.join(WAIT_S)
    order.close()
    assert device.done == []
    assert not order._thread.is_alive()

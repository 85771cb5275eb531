"""When bytes came, by the kernel's stamps, whatever the reader was doing."""

import asyncio
import socket
import struct
import time

import pytest

from pdd.bench.arrival_clock import ArrivalClock
from pdd.bench.http_client import ConnectionPool, Exchange
from pdd.bench.stamped_transport import StampedTransport
from pdd.bench.target import Target
from tests.unit.bench.scripted_server import DONE, scripted_server, stream, tokens

SO_TIMESTAMPNS = 35
EPOCH_NS = 1_800_000_000_000_000_000


class Clocks:
    """A monotonic clock at 100 s and a clock of day; each look may take a while."""

    def __init__(self):
        self.now_s = 100.0
        self.day_ns = EPOCH_NS
        self.looks_s = []

    def monotonic_s(self):
        return self.now_s

    def realtime_ns(self):
        now_ns = self.day_ns + round((self.now_s - 100.0) * 1e9)
        self.now_s += self.looks_s.pop(0) if self.looks_s else 0.0
        return now_ns


def arrivals_of(clocks):
    arrivals = ArrivalClock(clocks.monotonic_s, realtime_ns=clocks.realtime_ns)
    arrivals.compare()
    return arrivals


def stamp(at_ns):
    return [(socket.SOL_SOCKET, SO_TIMESTAMPNS, struct.pack("@ll", *divmod(at_ns, 1_000_000_000)))]


def test_a_stamp_of_the_time_of_day_is_told_on_the_monotonic_clock():
    clocks = Clocks()
    arrivals = arrivals_of(clocks)
    clocks.now_s = 103.0

    assert arrivals.arrival_s(stamp(EPOCH_NS + 2_500_000_000)) == pytest.approx(102.5, abs=1e-9)
    assert arrivals.unstamped_count == 0


def test_nothing_comes_later_than_it_is_read():
    clocks = Clocks()
    arrivals = arrivals_of(clocks)

    assert arrivals.arrival_s(stamp(EPOCH_NS + 1)) == 100.0


@pytest.mark.parametrize(
    "ancillary", [(), [(socket.SOL_SOCKET, SO_TIMESTAMPNS + 1, b"something else")]]
)
def test_without_a_stamp_it_came_when_it_was_read_and_that_is_counted(ancillary):
    clocks = Clocks()
    arrivals = arrivals_of(clocks)
    clocks.now_s = 101.0

    assert arrivals.arrival_s(ancillary) == 101.0
    assert (arrivals.read_count, arrivals.unstamped_count) == (1, 1)


def test_a_pause_between_two_looks_is_no_difference_of_the_clocks():
    clocks = Clocks()
    clocks.looks_s = [0.5, 0.2, 0.0, 0.3, 0.1]
    arrivals = arrivals_of(clocks)
    at_s = clocks.now_s

    stamped_ns = EPOCH_NS + round((at_s - 100.0) * 1e9)
    assert arrivals.arrival_s(stamp(stamped_ns)) == pytest.approx(at_s, abs=1e-9)


def test_pauses_at_every_look_leave_what_was_known():
    clocks = Clocks()
    arrivals = arrivals_of(clocks)
    clocks.looks_s = [0.5] * 5
    arrivals.compare()

    assert arrivals.step_count == 0
    at_s = clocks.now_s
    stamped_ns = EPOCH_NS + round((at_s - 100.0) * 1e9)
    assert arrivals.arrival_s(stamp(stamped_ns)) == pytest.approx(at_s, abs=1e-9)


def test_a_time_of_day_that_is_set_is_followed_and_counted():
    clocks = Clocks()
    arrivals = arrivals_of(clocks)
    clocks.day_ns += 3_600_000_000_000
    arrivals.compare()
    clocks.now_s = 101.0

    assert arrivals.step_count == 1
    set_ns = EPOCH_NS + 3_600_000_000_000
    assert arrivals.arrival_s(stamp(set_ns + 500_000_000)) == pytest.approx(100.5, abs=1e-9)


def test_a_time_of_day_that_drifts_is_followed_and_no_step():
    clocks = Clocks()
    arrivals = arrivals_of(clocks)
    clocks.day_ns += 200_000
    arrivals.compare()
    clocks.now_s = 101.0

    assert arrivals.step_count == 0
    drifted_ns = EPOCH_NS + 200_000
    assert arrivals.arrival_s(stamp(drifted_ns + 500_000_000)) == pytest.approx(100.5, abs=1e-9)


# --- real sockets -----------------------------------------------------------------------------


class Reader:
    def __init__(self):
        self.data = b""
        self.times_s = []
        self.more = asyncio.Event()
        self.lost = asyncio.get_running_loop().create_future()

    def data_arrived(self, data, at_s):
        self.data += data
        self.times_s.append(at_s)
        self.more.set()

    def connection_lost(self, exc):
        self.lost.set_result(exc)


class Pair:
    """A stamped transport and the blocking socket at its other end."""

    def __init__(self):
        self.arrivals = ArrivalClock(time.monotonic)
        self.arrivals.open()
        with socket.create_server(("127.0.0.1", 0)) as server:
            ours = socket.create_connection(server.getsockname())
            self.other, _ = server.accept()
        ours.setblocking(False)
        self.arrivals.arm(ours)
        self.reader = Reader()
        self.transport = StampedTransport(ours, self.reader, self.arrivals)

    async def read(self, byte_count):
        async with asyncio.timeout(10):
            while len(self.reader.data) < byte_count:
                self.reader.more.clear()
                await self.reader.more.wait()

    async def wait_stamped(self):
        """The kernel begins with stamps a moment after the first socket wanted them."""
        sent = len(self.reader.data)
        async with asyncio.timeout(10):
            while self.arrivals.read_count == self.arrivals.unstamped_count:
                self.other.send(b".")
                sent += 1
                await self.read(sent)
        return sent

    async def close(self):
        self.transport.abort()
        await self.reader.lost
        self.other.close()
        self.arrivals.close()


@pytest.fixture
async def pair():
    pair = Pair()
    yield pair
    await pair.close()


async def test_what_is_read_late_came_when_the_other_end_wrote_it(pair):
    sent = await pair.wait_stamped()

    before_s = time.monotonic()
    pair.other.send(b"token")
    written_s = time.monotonic()
    deadline_s = written_s + 0.05
    while time.monotonic() < deadline_s:
        pass  # the reader's loop stands still, as one does that has other things to do
    await pair.read(sent + 5)

    # What the comparison of the clocks may be wrong by, and they drift while this test runs.
    assert before_s - 0.001 <= pair.reader.times_s[-1] <= written_s + 0.001


async def test_two_tokens_in_one_read_have_the_later_ones_time(pair):
    sent = await pair.wait_stamped()

    pair.other.send(b"one")
    pause_ends_s = time.monotonic() + 0.02
    while time.monotonic() < pause_ends_s:
        pass
    between_s = time.monotonic()
    pair.other.send(b"two")
    await pair.read(sent + 6)

    assert pair.reader.data.endswith(b"onetwo")
    assert pair.reader.times_s[-1] >= between_s - 0.001


async def test_more_than_the_kernel_takes_at_once_is_sent_as_there_is_room(pair):
    data = bytes(range(256)) * (64 << 10)
    pair.transport.write(data)
    pair.transport.write(b"end")
    received = bytearray()

    def receive():
        while len(received) < len(data) + 3:
            received.extend(pair.other.recv(1 << 20))

    await asyncio.to_thread(receive)
    assert received == data + b"end"


async def test_the_other_ends_close_is_told_once(pair):
    pair.other.close()

    assert await asyncio.wait_for(asyncio.shield(pair.reader.lost), 10) is None
    pair.transport.abort()
    pair.transport.write(b"to nobody")


async def test_a_reset_is_told_as_an_error(pair):
    linger = struct.pack("ii", 1, 0)
    pair.other.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    pair.other.close()

    lost = await asyncio.wait_for(asyncio.shield(pair.reader.lost), 10)
    assert isinstance(lost, ConnectionResetError)


async def test_an_answer_without_tls_is_timed_by_the_kernel():
    async def answer(_asked, writer):
        writer.write(stream(tokens(" a", " b") + DONE))
        await writer.drain()
        return True

    ended = asyncio.Event()
    async with scripted_server(answer) as server:
        target = Target(host="127.0.0.1", port=server.port)
        pool = ConnectionPool(target, connections_max=1, clock=time.monotonic)
        await pool.resolve()
        async with asyncio.timeout(10):
            while pool.arrivals.read_count == pool.arrivals.unstamped_count:
                ended.clear()
                request = target.request_head("POST", "/v1/completions") + b"2\r\n\r\n{}"
                exchange = Exchange(
                    request=request,
                    key=None,
                    start_s=time.monotonic(),
                    on_end=lambda _: ended.set(),
                )
                pool.send(exchange)
                await ended.wait()
                assert exchange.fault == ""
        pool.close()

    assert len(exchange.reader.times_s) == 2
    assert exchange.start_s <= exchange.reader.times_s[0] <= exchange.end_s

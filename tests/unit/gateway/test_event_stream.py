"""The way out to a slow reader, step by step: what is held back, when it is given up."""

import asyncio

from pdd.gateway.event_stream import EventStream
from pdd.gateway.http_request import HttpRequest
from pdd.gateway.settings import GatewaySettings
from pdd.gateway.turn import Turn
from tests.unit.gateway.builders import soon


class FakeWire:
    """A transport that a test fills and empties."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.write_paused = False
        self.unsent_bytes = 0

    def write(self, data: bytes) -> None:
        self.sent.append(data)

    def turn_over(self, *, keep_alive: bool) -> None:
        raise AssertionError("the answer's business")

    def abort(self) -> None:
        raise AssertionError("the answer's business")

    def extra_info(self, name: str) -> object:
        return None


class Case:
    def __init__(self, *, version_1_0: bool = False, stall_s: float = 60.0) -> None:
        self.wire = FakeWire()
        self.done = 0
        self.stalled = asyncio.Event()
        request = HttpRequest(method="POST", target="/x", path="/x", is_http_1_0=version_1_0)
        self.turn = Turn(self.wire, request, headers={}, keep_alive=True)
        self.stream = EventStream(
            self.turn,
            settings=GatewaySettings(write_buffer_bytes=100, write_stall_s=stall_s),
            done=self._done,
            stalled=self._stalled,
        )
        self.stream.open()

    def _done(self) -> None:
        self.done += 1

    def _stalled(self) -> None:
        assert not self.stalled.is_set(), "once"
        self.stalled.set()
        self.stream.close()


async def test_headers_leave_with_the_first_event() -> None:
    case = Case()
    case.stream.send(b"data: 1\n\n")
    case.stream.send(b"data: 2\n\n")
    first, second = case.wire.sent
    assert first.startswith(b"HTTP/1.1 200 OK\r\n")
    assert first.endswith(b"\r\n\r\n9\r\ndata: 1\n\n\r\n")
    assert second == b"9\r\ndata: 2\n\n\r\n"


async def test_headers_may_go_ahead_once() -> None:
    case = Case()
    case.stream.flush_head()
    case.stream.finish(b"data: 1\n\n")
    assert case.wire.sent[0].endswith(b"\r\n\r\n")
    assert case.wire.sent[1:] == [b"9\r\ndata: 1\n\n\r\n0\r\n\r\n"]
    assert case.done == 1


async def test_an_old_client_gets_plain_events_until_the_connection_ends() -> None:
    case = Case(version_1_0=True)
    case.stream.send(b"data: 1\n\n")
    case.stream.finish(b"data: 2\n\n")
    assert b"".join(case.wire.sent).endswith(b"\r\n\r\ndata: 1\n\ndata: 2\n\n")
    assert not case.turn.keep_alive


async def test_what_does_not_fit_waits_in_order_and_the_end_waits_with_it() -> None:
    case = Case()
    case.stream.flush_head()
    case.wire.write_paused = True
    case.stream.send(b"1")
    case.stream.finish(b"2")
    assert len(case.wire.sent) == 1
    assert case.done == 0
    case.wire.write_paused = False
    case.stream.resumed()
    assert case.wire.sent[1:] == [b"1\r\n1\r\n", b"1\r\n2\r\n0\r\n\r\n"]
    assert case.done == 1
    assert not case.stalled.is_set()


async def test_at_the_bound_the_client_is_given_up() -> None:
    case = Case()
    case.wire.write_paused = True
    case.stream.send(b"x" * 20)  # with the headers, more than the bound
    assert case.stalled.is_set()
    assert case.done == 0
    assert case.wire.sent == []


async def test_at_the_bound_in_its_last_event_too() -> None:
    case = Case()
    case.stream.flush_head()
    case.wire.write_paused = True
    case.stream.finish(b"x" * 101)
    assert case.stalled.is_set()
    assert case.done == 0


async def test_nothing_taken_for_so_long_is_a_client_that_is_gone() -> None:
    case = Case(stall_s=0.01)
    case.stream.flush_head()
    case.wire.write_paused, case.wire.unsent_bytes = True, 1000
    case.stream.send(b"1")
    await soon(case.stalled)


async def test_a_little_taken_is_patience_for_as_long_again() -> None:
    case = Case(stall_s=0.001)
    looks = iter([1000, 999, 998, 997, 997])  # what waits, each time the stream looks

    class Wire(FakeWire):
        @property
        def unsent_bytes(self) -> int:  # type: ignore[override]
            return next(looks)

        @unsent_bytes.setter
        def unsent_bytes(self, value: int) -> None:
            """Not settable here."""

    case.stream.wire = wire = Wire()
    case.stream.flush_head()
    wire.write_paused = True
    case.stream.send(b"1")
    await soon(case.stalled)
    assert next(looks, None) is None, "it was not given up before it took nothing"

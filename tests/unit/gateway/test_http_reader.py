"""What a chunked body may bring besides the body, piece by piece."""

import pytest

from pdd.gateway.http_reader import HttpReader, Phase
from pdd.gateway.http_request import HttpFault, HttpRequest

HEAD = b"POST /x HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
UPGRADE = HEAD.replace(b"Host", b"Connection: Upgrade\r\nUpgrade: h2c\r\nHost")
MAX_HEAD_BYTES = 1000

ENDLESS: dict[str, tuple[bytes, bytes]] = {  # how it begins, what comes again and again
    "one trailer": (b"0\r\nX-T: ", b"x" * 100),
    "many trailers": (b"0\r\n", b"X-T: y\r\n" * 10),
    "one extension": (b"1;x=", b"x" * 100),
    "an extension per chunk": (b"", b"1;x=" + b"x" * 100 + b"\r\n \r\n"),
    "a size with zeros before it": (b"", b"0" * 100),
    "a trailer behind many small chunks": (b"1\r\n \r\n" * 500 + b"0\r\nX-T: ", b"x" * 100),
}


class Owner:
    def __init__(self) -> None:
        self.reader = HttpReader(self, max_head_bytes=MAX_HEAD_BYTES, max_body_bytes=10_000)
        self.requests: list[HttpRequest] = []
        self.faults: list[HttpFault] = []

    def head_arrived(self, request: HttpRequest) -> None:
        """Nothing to do."""

    def request_arrived(self, request: HttpRequest) -> None:
        self.requests.append(request)

    def fault_arrived(self, fault: HttpFault, request: HttpRequest | None) -> None:
        self.faults.append(fault)

    def feed(self, *pieces: bytes) -> None:
        for piece in pieces:
            self.reader.feed(piece)


@pytest.mark.parametrize("head", [HEAD, UPGRADE], ids=["plain", "upgrade"])
@pytest.mark.parametrize(("begin", "again"), ENDLESS.values(), ids=ENDLESS.keys())
def test_what_is_not_body_is_bounded_like_a_head(head: bytes, begin: bytes, again: bytes) -> None:
    owner = Owner()
    owner.feed(head, begin)
    sent_bytes = 0
    while not owner.faults:
        assert sent_bytes < 2 * MAX_HEAD_BYTES, "refused soon after the bound"
        owner.feed(again)
        sent_bytes += len(again)
    assert sent_bytes > MAX_HEAD_BYTES - len(begin) - len(again), "and not before"
    assert [(one.status, one.code) for one in owner.faults] == [(431, "headers_too_large")]
    owner.feed(again)
    assert (owner.reader.phase, len(owner.faults), owner.requests) == (Phase.END, 1, [])


@pytest.mark.parametrize("piece_bytes", [1, 2, 3, 7, 100, 100_000])
@pytest.mark.parametrize("head", [HEAD, UPGRADE], ids=["plain", "upgrade"])
def test_chunks_of_one_byte_are_a_body_like_another(head: bytes, piece_bytes: int) -> None:
    """Their sizes and line ends are five times as much as the body, and more than a head may be."""
    trailer = b"X-T: " + b"y" * 900 + b"\r\n\r\n"
    raw = (head + b"1\r\nb\r\n" * 1000 + b"0\r\n" + trailer) * 2
    owner = Owner()
    owner.feed(*(raw[at : at + piece_bytes] for at in range(0, len(raw), piece_bytes)))
    assert owner.faults == []
    assert [bytes(one.body) for one in owner.requests] == [b"b" * 1000] * 2

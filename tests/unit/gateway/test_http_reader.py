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


def a_post(body: bytes) -> bytes:
    return b"POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


NEXT_HEAD = b"GET /next HTTP/1.1\r\nHost: x\r\nX: y\r\n\r\n"


@pytest.mark.parametrize("cut", range(1, len(NEXT_HEAD)))
def test_a_large_request_is_no_part_of_the_head_that_comes_with_its_end(cut: int) -> None:
    owner = Owner()
    owner.feed(a_post(b"b" * 5 * MAX_HEAD_BYTES) + NEXT_HEAD[:cut], NEXT_HEAD[cut:])
    assert owner.faults == []
    assert [one.path for one in owner.requests] == ["/x", "/next"]


@pytest.mark.parametrize("piece_bytes", [1, 10, 100, 400, MAX_HEAD_BYTES])
@pytest.mark.parametrize("target_bytes", [10, 600])
def test_a_head_within_the_bound_is_taken_in_any_pieces(
    target_bytes: int, piece_bytes: int
) -> None:
    head = b"GET /%b HTTP/1.1\r\nHost: x\r\n" % (b"t" * target_bytes)
    value = b"y" * ((MAX_HEAD_BYTES - 100 - target_bytes) // 4)
    head += b"".join(b"X-%d: %b\r\n" % (n, value) for n in range(4)) + b"\r\n"
    assert 0.8 * MAX_HEAD_BYTES < len(head) < MAX_HEAD_BYTES
    owner = Owner()
    owner.feed(*(head[at : at + piece_bytes] for at in range(0, len(head), piece_bytes)))
    assert (owner.faults, len(owner.requests)) == ([], 1)


@pytest.mark.parametrize("before", [b"", a_post(b"b" * 50)], ids=["alone", "behind a request"])
@pytest.mark.parametrize(
    "begin", [b"GET /", b"GET / HTTP/1.1\r\nHost: x\r\nX-", b"GET / HTTP/1.1\r\nX:"]
)
def test_a_head_that_does_not_end_is_refused_soon_after_the_bound(
    before: bytes, begin: bytes
) -> None:
    owner = Owner()
    owner.feed(before + begin)
    sent_bytes = 0
    while not owner.faults:
        assert sent_bytes <= MAX_HEAD_BYTES, "refused soon after the bound"
        owner.feed(b"x" * 100)
        sent_bytes += 100
    assert [(one.status, one.code) for one in owner.faults] == [(431, "headers_too_large")]

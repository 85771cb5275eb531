"""Server-sent events: one JSON document per event, each ready to be written."""

from pdd.gateway.json_text import json_bytes

DONE = b"data: [DONE]\n\n"
"""The last event of a stream that ended well. After an error it is never sent."""

HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",  # nginx would collect tokens otherwise
}


def event(document: object) -> bytes:
    """One event."""
    return b"data: " + json_bytes(document) + b"\n\n"


def template(document: dict[str, object], *, hole: str) -> tuple[bytes, bytes]:
    """An event cut in two around ``hole``, a string value that occurs once in the document.

    The per-token path joins both with an encoded text and encodes nothing else.
    """
    encoded = json_bytes(hole)
    before, found, after = event(document).partition(encoded)
    assert found, "the hole must occur"
    assert encoded not in after, "the hole must occur only once"
    return before, after

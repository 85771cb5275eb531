"""Server-sent events: one JSON document per event, each ready to be written.

Every event of a request carries an id (``event_ids``).
"""

from pdd.gateway.json_text import json_bytes

HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",  # nginx would collect tokens otherwise
}


def event(document: object, *, event_id: bytes) -> bytes:
    """One event."""
    return b"id: %b\ndata: %b\n\n" % (event_id, json_bytes(document))


def done(*, event_id: bytes) -> bytes:
    """The last event of a stream that ended well. After an error it is never sent."""
    return b"id: %b\ndata: [DONE]\n\n" % event_id


def template(document: dict[str, object], *, hole: str) -> tuple[bytes, bytes]:
    """What stands between an event's id and ``hole``, a string value that occurs once in the
    document, and what comes after.

    The per-token path joins id, both and an encoded text, and encodes nothing else.
    """
    encoded = json_bytes(hole)
    before, found, after = json_bytes(document).partition(encoded)
    assert found, "the hole must occur"
    assert encoded not in after, "the hole must occur only once"
    return b"\ndata: " + before, after + b"\n\n"

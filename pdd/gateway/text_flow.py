"""A plain stream between its first and its last event: a text each, nothing else.

A class of its own, with no more in it than it takes, and one call from the scheduler's to the
transport: every token goes through here. With hundreds of streams most of what a token costs is how
much memory and how much code it touches, so an event is made as one string with its chunk around
it, and what other rooms would do in calls of their own stands here.
"""

from json.encoder import encode_basestring

from pdd.core.ports import Clock
from pdd.gateway.event_stream import EventStream
from pdd.gateway.json_text import json_string
from pdd.gateway.metrics import RequestMeter
from pdd.gateway.text_events import TextEvents

_CHUNK_HEADS = tuple(f"{size:x}\r\n" for size in range(2048))
"""How a chunk of so many bytes begins; longer ones are rare, and worked out."""


class TextFlow:
    """Tells the tokens of an opened stream. ``events``: what it has in all of them."""

    __slots__ = (
        "_after",
        "_before",
        "_clock",
        "_events",
        "_id_before",
        "_meter",
        "_progress",
        "_size",
        "_stream",
        "_wire",
    )

    def __init__(
        self, events: TextEvents, stream: EventStream, *, meter: RequestMeter, clock: Clock
    ) -> None:
        self._events = events
        self._progress = events.progress
        self._stream = stream
        self._wire = stream.wire
        self._meter = meter
        self._clock = clock
        # Bytes of an event without number and text; 0: it is not as most are, see ``token``.
        self._size = 0
        self._id_before = self._before = self._after = ""
        shared = (events.id_before, events.before, events.after)
        if stream.is_chunked and all(part.isascii() for part in shared):
            self._size = sum(map(len, shared))
            self._id_before, self._before, self._after = (part.decode() for part in shared)
            self._after += "\r\n"

    def token(self, index: int, text_offset: int, text: str) -> None:
        """One more token; nothing is sent when its text is held back.

        Raises:
            RequestFailed: it is not the next token.
        """
        progress = self._progress
        if index != progress.token_count or text_offset != progress.char_count:
            raise progress.lost(index, text_offset)
        progress.token_count = count = index + 1
        self._meter.next_token(self._clock())
        if not text:
            return
        progress.char_count = text_offset + len(text)
        if not self._size or not text.isascii():
            events = self._events
            self._stream.send(
                b"%b%d%b%b%b"
                % (events.id_before, count, events.before, json_string(text), events.after)
            )
            return
        number, literal = str(count), encode_basestring(text)
        size = self._size + len(number) + len(literal)
        head = _CHUNK_HEADS[size] if size < len(_CHUNK_HEADS) else f"{size:x}\r\n"
        data = f"{head}{self._id_before}{number}{self._before}{literal}{self._after}".encode()
        if self._wire.write_paused:
            self._stream.put(data)
        else:  # then nothing is held back either
            self._wire.write(data)

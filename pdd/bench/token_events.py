"""Reads one answer's server-sent events as fast as Python can. Pure: bytes and times in.

Events of one stream differ in one string, the token's text. So an event that was parsed as JSON
is cut around that string; a later event with the same head and tail, and a middle
without a quote or a backslash, is the same JSON with another string: no need to parse it. Every
other event is parsed.
"""

import json
from array import array
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

_STAGES = ("queue_ms", "prefill_ms", "transfer_ms", "decode_ms")
_REST_BYTES_MAX = 4 << 20
"""Longest event; a stream with a longer one is given up as malformed."""


class StreamFault(StrEnum):
    """What was wrong with a stream of status 200."""

    NONE = ""
    ERROR_EVENT = "error_event"
    BAD_EVENT = "bad_event"


class TokenEvents:
    """One answer. Read the attributes when it is over.

    ``times_s``: when each event with text came (the clock of ``feed``). ``texts``: their texts,
    if they are kept. ``done``: ``[DONE]`` was seen. ``usage``: the last ``usage`` object.
    """

    __slots__ = (
        "_head",
        "_keep",
        "_rest",
        "_tail",
        "done",
        "fault",
        "fault_text",
        "finish_reason",
        "texts",
        "times_s",
        "usage",
    )

    def __init__(self, *, keep_texts: bool = False) -> None:
        self._rest = b""
        self._head: bytes = b""
        self._tail: bytes = b""
        self._keep = keep_texts
        self.times_s = array("d")
        self.texts: list[str] = []
        self.usage: Mapping[str, Any] = {}
        self.done = False
        self.finish_reason = ""
        self.fault = StreamFault.NONE
        self.fault_text = ""

    def feed(self, data: bytes, now_s: float) -> None:
        """Take the next bytes, cut anywhere."""
        head = self._head
        if data.startswith(b"id: ") and not self._rest:  # says where a client is; we never resume
            data = data[data.find(b"\n") + 1 :]
        if head and not self._rest and data.startswith(head) and data.endswith(self._tail):
            # The usual case: exactly one event, as it was written.
            middle = data[len(head) : len(data) - len(self._tail)]
            if (
                b'"' not in middle
                and b"\\" not in middle
                and len(data) >= len(head) + len(self._tail)
            ):
                if middle:
                    self.times_s.append(now_s)
                    if self._keep:
                        self.texts.append(middle.decode())
                return
        data = self._rest + data
        if b"\r" in data:
            data, held = (data[:-1], b"\r") if data.endswith(b"\r") else (data, b"")
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        else:
            held = b""
        *events, rest = data.split(b"\n\n")
        self._rest = rest + held
        for event in events:
            self._event(event, now_s)
        if len(self._rest) > _REST_BYTES_MAX:
            self._rest = b""
            self._fail(StreamFault.BAD_EVENT, f"an event is longer than {_REST_BYTES_MAX} bytes")

    def stages_ms(self) -> tuple[float, ...] | None:
        """queue, prefill, transfer and decode, if the server is pdd."""
        costs = self.usage.get("pdd")
        if not isinstance(costs, dict):
            return None
        values = [costs.get(name) for name in _STAGES]
        if not all(isinstance(value, int | float) for value in values):
            return None
        return tuple(float(value) for value in values)  # type: ignore[arg-type]  # checked above

    def _event(self, event: bytes, now_s: float) -> None:
        if b"\n" in event or not event.startswith(b"data:"):
            event = self._joined(event)
            if not event:
                return  # a comment, or an event without data
        payload = event[5:].strip()
        if payload == b"[DONE]":
            self.done = True
            return
        try:
            document = json.loads(payload)
        except ValueError:
            self._fail(StreamFault.BAD_EVENT, payload[:200].decode(errors="replace"))
            return
        if not isinstance(document, dict):
            self._fail(StreamFault.BAD_EVENT, payload[:200].decode(errors="replace"))
            return
        if document.get("error"):
            self._fail(StreamFault.ERROR_EVENT, _error_text(document["error"]))
            return
        if isinstance(usage := document.get("usage"), dict):
            self.usage = usage
        text = self._text_of(document)
        if text:
            self.times_s.append(now_s)
            if self._keep:
                self.texts.append(text)
            self._learn(event, text)

    def _joined(self, event: bytes) -> bytes:
        """The data lines of an event with several lines, as one."""
        parts = [
            line[5:].removeprefix(b" ") for line in event.split(b"\n") if line.startswith(b"data:")
        ]
        return b"data:" + b"\n".join(parts) if parts else b""

    def _text_of(self, document: Mapping[str, Any]) -> str:
        choices = document.get("choices")
        if not choices:
            return ""
        choice = choices[0]
        if reason := choice.get("finish_reason"):
            self.finish_reason = reason
        if isinstance(text := choice.get("text"), str):
            return text
        delta = choice.get("delta") or {}
        # Reasoning models put their first tokens elsewhere.
        for name in ("content", "reasoning_content", "reasoning"):
            if isinstance(text := delta.get(name), str) and text:
                return text
        return ""

    def _learn(self, event: bytes, text: str) -> None:
        """Cut the event around its text, if that is possible without doubt. Done anew for every
        event that was parsed: the first one often has a role that the others lack.

        The head must end in the value's own key, else a token equal to another string of the
        document (its model's name, say) would cut at the wrong place.
        """
        encoded = json.dumps(text, ensure_ascii=False).encode()
        if json.dumps(text).encode() != encoded or event.count(encoded) != 1:
            return
        before, _, after = event.partition(encoded)
        key = before.rstrip().removesuffix(b":").rstrip()
        if not key.endswith((b'"text"', b'"content"')):
            return
        # What an event of this shape must not repeat: a reason to end, and running usage.
        frame = (before + after).replace(b" ", b"")
        if frame.count(b'"finish_reason"') != frame.count(b'"finish_reason":null'):
            return
        if b'"usage":{' in frame:
            return
        self._head = before + b'"'
        self._tail = b'"' + after + b"\n\n"

    def _fail(self, fault: StreamFault, text: str) -> None:
        if self.fault is StreamFault.NONE:
            self.fault, self.fault_text = fault, text


def _error_text(error: object) -> str:
    if isinstance(error, dict):
        return str(error.get("message") or error.get("code") or error)[:500]
    return str(error)[:500]

"""Heads of responses as bytes. Pure but for the date, which is shown and never reckoned with."""

from datetime import UTC, datetime
from email.utils import format_datetime
from http import HTTPStatus

from pdd.core.ports import Clock

JSON = "application/json"

_REASONS = {status.value: status.phrase for status in HTTPStatus}


def head(
    status: int, headers: dict[str, str], *, is_http_1_0: bool = False, keep_alive: bool = True
) -> bytes:
    """Status line and headers with the empty line after them.

    Values must hold no line break: they are ours, or were checked when they came in.
    """
    version = "1.0" if is_http_1_0 else "1.1"
    lines = [f"HTTP/{version} {status} {_REASONS.get(status, '')}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    if not keep_alive:
        lines.append("Connection: close")
    elif is_http_1_0:
        lines.append("Connection: keep-alive")
    lines.append("\r\n")
    text = "\r\n".join(lines)
    assert text.count("\n") == len(lines), "a header with a line break"
    return text.encode("latin-1")


class DateHeader:
    """``Date``, made at most once per second."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._made_s = -1
        self._text = ""

    def __str__(self) -> str:
        now_s = int(self._clock())
        if now_s != self._made_s:
            self._made_s = now_s
            self._text = format_datetime(datetime.now(UTC), usegmt=True)
        return self._text

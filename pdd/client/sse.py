"""Read a stream of server-sent events (WHATWG HTML, section 9.2). Pure: bytes in, events out."""

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """``last_id``: the id that it, or an event before it, has; "" if there was none."""

    data: str
    last_id: str


class EventStream:
    """Cuts bytes, split anywhere, into complete events."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []
        self._last_id = ""

    def feed(self, chunk: bytes) -> Iterator[Event]:
        """Yield each event with data that ``chunk`` completes."""
        self._rest += chunk
        *lines, self._rest = self._rest.split(b"\n")
        for ended in lines:
            line = ended.removesuffix(b"\r")
            if not line:
                if self._data:
                    yield Event(
                        data=b"\n".join(self._data).decode(errors="replace"), last_id=self._last_id
                    )
                self._data = []
            elif line.startswith(b"data:"):
                self._data.append(line.removeprefix(b"data:").removeprefix(b" "))
            elif line.startswith(b"id:") and b"\0" not in line:
                self._last_id = (
                    line.removeprefix(b"id:").removeprefix(b" ").decode(errors="replace")
                )
            # Comments and other fields carry nothing that we use.

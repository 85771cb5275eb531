"""Read a stream of server-sent events (WHATWG HTML, section 9.2). Pure: bytes in, data out."""

from collections.abc import Iterator


class EventStream:
    """Cuts bytes, split anywhere, into the data of complete events."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []

    def feed(self, chunk: bytes) -> Iterator[str]:
        """Yield the data of each event that ``chunk`` completes."""
        self._rest += chunk
        *lines, self._rest = self._rest.split(b"\n")
        for ended in lines:
            line = ended.removesuffix(b"\r")
            if not line:
                if self._data:
                    yield b"\n".join(self._data).decode()
                self._data = []
            elif line.startswith(b"data:"):
                self._data.append(line.removeprefix(b"data:").removeprefix(b" "))
            # Comments and other fields carry nothing that we use.

"""The worker half's end of the link to its node daemon.

One thread reads; any thread may send. Without its daemon a worker is of no use to anybody, so a
broken link ends the process (vLLM's engine core and the daemon notice and report it).
"""

import os
import socket
import sys
import threading
import traceback
from collections.abc import Callable

from pdd.connector.link_messages import Decoder, Hello, LinkError, LinkMessage, encode

_SEND_TIMEOUT_S = 5.0
"""How long the daemon may leave the socket's buffer full before it counts as gone."""


class LinkClient:
    """Connects at construction. ``on_message`` runs on the link's own thread."""

    def __init__(
        self, *, socket_name: str, hello: Hello, on_message: Callable[[LinkMessage], None]
    ) -> None:
        self._on_message = on_message
        self._closing = threading.Event()
        self._send_lock = threading.Lock()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        self._socket.settimeout(_SEND_TIMEOUT_S)
        self._socket.connect("\0" + socket_name)  # abstract: leaves no file behind
        self.send(hello)
        # Receiving waits for ever, sending does not: the kernel keeps the two apart by option.
        self._socket.settimeout(None)
        seconds = int(_SEND_TIMEOUT_S).to_bytes(8, sys.byteorder)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, seconds + bytes(8))
        self._thread = threading.Thread(target=self._read, name="pdd-link", daemon=True)
        self._thread.start()

    def send(self, message: LinkMessage) -> None:
        """Queue one message in the socket; blocks only while the daemon does not read."""
        frame = encode(message)
        try:
            with self._send_lock:
                self._socket.sendall(frame)
        except OSError as error:
            if not self._closing.is_set():
                self._die(f"cannot send to the node daemon: {error}")

    def close(self) -> None:
        """Stop reading and sending. Idempotent."""
        self._closing.set()
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # the daemon was faster
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout=1.0)
        self._socket.close()

    def _read(self) -> None:
        decoder = Decoder()
        try:
            while data := self._socket.recv(1 << 16):
                for message in decoder.feed(data):
                    self._on_message(message)
        except (OSError, LinkError) as error:
            if not self._closing.is_set():
                self._die(f"link to the node daemon broke: {error}")
        except Exception as error:  # a bug: without this thread no first token would ever come
            if not self._closing.is_set():
                traceback.print_exc()
                self._die(f"a message of the node daemon could not be obeyed: {error!r}")
        if not self._closing.is_set():
            self._die("the node daemon closed the link")

    def _die(self, why: str) -> None:
        print(f"pdd worker half: {why}; ending this process", file=sys.stderr, flush=True)  # noqa: T201
        os._exit(70)

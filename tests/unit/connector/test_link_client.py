"""The worker half's end of the link: what cannot be obeyed ends the process, and says why."""

import secrets
import socket
import threading

import pytest

from pdd.connector import link_client
from pdd.connector.link_client import LinkClient
from pdd.connector.link_messages import FirstToken, Hello, LinkMessage, encode
from tests.waiting import wait_until

HELLO = Hello(secret="s", rank=0, block_count=1, block_bytes=1, ucx_address=b"", fingerprint={})


class Exited(BaseException):
    """Stands in for the end of the process."""


def test_a_bug_in_what_is_obeyed_ends_the_process_not_only_the_thread(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    codes: list[int] = []

    def exit_now(code: int) -> None:
        codes.append(code)
        raise Exited

    monkeypatch.setattr(link_client.os, "_exit", exit_now)
    monkeypatch.setattr(threading, "excepthook", lambda args: None)

    def obey(message: LinkMessage) -> None:
        raise KeyError("r-1")

    name = f"pdd-test-{secrets.token_hex(8)}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind("\0" + name)
        server.listen()
        client = LinkClient(socket_name=name, hello=HELLO, on_message=obey)
        daemon, _ = server.accept()
        with daemon:
            daemon.sendall(encode(FirstToken(key="r-1/0", token_id=7)))
            wait_until(lambda: not client._thread.is_alive())
        client.close()
    assert codes == [70]
    assert "could not be obeyed: KeyError('r-1')" in capfd.readouterr().err

"""The notify protocol against a socket of the test's own."""

import os
import socket

import pytest

from pdd.daemon import notify


@pytest.fixture(params=["path", "abstract"])
def listener(request, tmp_path, monkeypatch):
    receiver = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    receiver.settimeout(10)
    if request.param == "path":
        address = str(tmp_path / "notify")
        receiver.bind(address)
    else:
        address = f"@pdd-test-{os.getpid()}"
        receiver.bind("\0" + address[1:])
    monkeypatch.setenv("NOTIFY_SOCKET", address)
    yield receiver
    receiver.close()


def test_ready_is_one_message_with_status_and_addresses(listener):
    notify.notify_ready(grpc="127.0.0.1:7070", http="127.0.0.1:8000", status="two nodes")
    assert listener.recv(4096).decode().splitlines() == [
        "READY=1",
        "STATUS=two nodes",
        "X_PDD_GRPC=127.0.0.1:7070",
        "X_PDD_HTTP=127.0.0.1:8000",
    ]


def test_a_node_has_no_http_address(listener):
    notify.notify_ready(grpc="127.0.0.1:1")
    assert b"HTTP" not in listener.recv(4096)


def test_stopping_and_watchdog_and_status(listener):
    notify.notify_status("loading model")
    notify.notify_watchdog()
    notify.notify_stopping()
    assert listener.recv(4096) == b"STATUS=loading model"
    assert listener.recv(4096) == b"WATCHDOG=1"
    assert listener.recv(4096) == b"STOPPING=1\nSTATUS=stopping"


def test_a_line_break_in_a_status_cannot_add_a_field(listener):
    notify.notify_status("x\nREADY=1")
    assert listener.recv(4096) == b"STATUS=x READY=1"


def test_without_a_socket_nothing_happens(monkeypatch):
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    notify.notify_ready(grpc="127.0.0.1:1")
    notify.notify_stopping()


def test_a_starter_that_is_gone_fails_the_start_but_not_the_stop(tmp_path, monkeypatch):
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "nobody"))
    with pytest.raises(FileNotFoundError):
        notify.notify_ready(grpc="127.0.0.1:1")
    notify.notify_stopping()
    notify.notify_watchdog()


@pytest.mark.parametrize(
    ("environment", "interval_s"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "30000000"}, 15.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}, 15.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
    ],
)
def test_watchdog_interval_is_half_of_what_is_allowed(environment, interval_s):
    assert notify.watchdog_interval_s(environment) == interval_s

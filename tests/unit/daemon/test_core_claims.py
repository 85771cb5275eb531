"""Nodes of one host that compute on the same cores hear of each other."""

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing
from itertools import count

import pytest

from pdd.daemon.core_claims import CoreClaims

_number = count()


class Host:
    """A host of its own per test: its sockets have a prefix of their own."""

    def __init__(self, stack: ExitStack) -> None:
        self.now_s = 0.0
        self.prefix = f"pdd-test-{os.getpid()}-{next(_number)}"
        self._stack = stack

    def node(self, name: str, *cores: int) -> CoreClaims:
        claims = CoreClaims(cores, name=name, clock=lambda: self.now_s, prefix=self.prefix)
        return self._stack.enter_context(closing(claims))

    def look(self, *nodes: CoreClaims) -> None:
        """A heartbeat of each, and another to hear the answers."""
        for _ in range(2):
            self.now_s += 1.0
            for node in nodes:
                node.look()


@pytest.fixture
def host() -> Iterator[Host]:
    with ExitStack() as stack:
        yield Host(stack)


def test_nodes_on_cores_of_their_own_are_well(host: Host) -> None:
    first, second = host.node("prefill-0", 0, 1), host.node("decode-0", 2, 3)
    host.look(first, second)
    assert first.degraded_reason == second.degraded_reason == ""


def test_both_nodes_name_the_shared_cores_and_each_other(host: Host) -> None:
    first, second = host.node("prefill-0", 0, 1, 2), host.node("decode-0", 1, 2, 3)
    host.look(first, second)
    assert first.degraded_reason == (
        "computes on cores [1, 2] together with decode-0, and both stall:"
        " give each node of this host its own node.cpu_cores"
    )
    assert "[1, 2] together with prefill-0" in second.degraded_reason


def test_when_the_neighbour_ends_the_other_is_well_and_holds_the_core(host: Host) -> None:
    first, second = host.node("a", 0), host.node("b", 0)
    host.look(first, second)
    first.close()
    for _ in range(4):
        host.look(second)
    assert second.degraded_reason == ""
    third = host.node("c", 0)
    host.look(second, third)
    assert "together with b" in third.degraded_reason


def test_two_neighbours_on_different_cores_are_both_named(host: Host) -> None:
    wide, first, second = host.node("wide", 0, 1), host.node("a", 0), host.node("b", 1)
    host.look(wide, first, second)
    assert "cores [0, 1] together with a, b" in wide.degraded_reason


def test_garbage_from_a_stranger_says_nothing(host: Host) -> None:
    node = host.node("a", 0)
    host.look(node)
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as stranger:
        for message in (b"", b"\xff\xfe", b"zero b", b"7 b", b"0", b"0 \x1b[2J", b"-0 b"):
            stranger.sendto(message, f"\0{host.prefix}-0")
            node.look()
            assert node.degraded_reason == "", message
        stranger.sendto(b"0 " + b"x" * 100_000, f"\0{host.prefix}-0")
        node.look()
        assert 0 < len(node.degraded_reason) < 500


def test_a_holder_that_stands_still_stops_nobody(host: Host) -> None:
    stopped, caller = host.node("stopped", 0), host.node("caller", 0)
    stopped.look()
    for _ in range(1000):  # more than its socket takes
        caller.look()
    host.look(stopped, caller)
    assert "together with stopped" in caller.degraded_reason

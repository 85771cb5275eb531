"""What ``pdd node`` says: of a node's state, and of the last one of its role."""

from types import SimpleNamespace
from typing import Any

import pytest

from pdd.cli.node import state_cell
from pdd.cli.node_drain import last_of_its_role


@pytest.mark.parametrize(
    ("state", "reason", "shown"),
    [
        ("ready", "", "ready"),
        ("cordoned", "cordoned", "cordoned"),
        ("cordoned", "cordoned: swap NIC", "cordoned (swap NIC)"),
        ("cordoned", "draining: swap NIC", "cordoned (draining: swap NIC)"),
        ("cordoned", "cordoned, and not seen", "cordoned (cordoned, and not seen)"),
        ("degraded", "1 KV block is lost", "degraded (1 KV block is lost)"),
    ],
)
def test_a_reason_that_names_the_state_does_not_say_it_twice(
    state: str, reason: str, shown: str
) -> None:
    assert state_cell(state, reason) == shown


def rows(**nodes: tuple[str, str]) -> Any:
    return [
        SimpleNamespace(name=name, role=role, state=state) for name, (role, state) in nodes.items()
    ]


def test_whoever_takes_out_the_last_decode_node_is_told_what_it_means() -> None:
    others = rows(p0=("prefill", "ready"), d0=("decode", "degraded"), d1=("decode", "lost"))
    assert last_of_its_role("d0", others, back="pdd node uncordon d0") == (
        "d0 is the last decode node that takes work: new requests get 503 until another joins or"
        " 'pdd node uncordon d0'"
    )
    assert "decode nodes compute prompts themselves" in last_of_its_role("p0", others, back="")


@pytest.mark.parametrize("other", ["ready", "degraded"])
def test_nothing_is_said_while_another_takes_its_work(other: str) -> None:
    assert last_of_its_role("d0", rows(d0=("decode", "ready"), d1=("decode", other)), back="") == ""


@pytest.mark.parametrize("state", ["cordoned", "lost"])
def test_nothing_is_said_of_a_node_that_takes_no_work_now(state: str) -> None:
    assert (
        last_of_its_role("d0", rows(d0=("decode", state), p0=("prefill", "ready")), back="") == ""
    )

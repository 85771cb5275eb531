"""What ``pdd node list`` says of a node's state."""

import pytest

from pdd.cli.node import state_cell


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

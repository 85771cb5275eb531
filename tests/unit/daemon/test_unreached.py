"""What commands say of a scheduler that they cannot reach."""

import pytest

from pdd.daemon.unreached import reason_with_advice


@pytest.mark.parametrize(
    "reason",
    [
        "failed to connect to all addresses; last error: UNKNOWN: Connection refused",
        "errors resolving nowhere:7070: [field:hostname lookup error]",
    ],
)
def test_without_a_connection_the_message_says_what_to_look_at(reason: str) -> None:
    assert reason_with_advice(reason).startswith(f"{reason}; does a scheduler run there")


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        ("no scheduler leads", "no scheduler leads"),
        ("", "no reason given"),
        (None, "no reason given"),
    ],
)
def test_what_a_scheduler_itself_answers_gets_no_advice(reason: str | None, said: str) -> None:
    assert reason_with_advice(reason) == said

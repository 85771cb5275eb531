"""What ``pdd quota`` refuses before it asks anybody."""

import pytest
from click.testing import CliRunner

from pdd.cli.quota import quota


def test_a_quota_of_nothing_is_asked_what_it_is_of() -> None:
    result = CliRunner().invoke(quota, ["set", "acme", "--scheduler", "127.0.0.1:1"])
    assert result.exit_code == 2
    assert "name --requests or --tokens-per-minute" in result.stderr


@pytest.mark.parametrize("requests", ["-1", "1000001", "99999999999999999999", "1.5", ""])
def test_a_limit_that_no_message_can_carry_is_refused_with_the_range(requests: str) -> None:
    arguments = ["set", "acme", "--requests", requests, "--scheduler", "127.0.0.1:1"]
    result = CliRunner().invoke(quota, arguments)
    assert result.exit_code == 2
    assert "Invalid value for '--requests'" in result.stderr

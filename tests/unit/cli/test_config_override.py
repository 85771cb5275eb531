import click
import pytest

from pdd.cli.config_override import check_runtime_key


def test_a_key_that_cannot_be_set_is_not_reported_as_merely_unset() -> None:
    with pytest.raises(click.ClickException, match=r"mean .scheduler\.path\.mode") as told:
        check_runtime_key("scheduler.path.modee")
    assert "scheduler.path.modee" in told.value.message
    check_runtime_key("scheduler.path.mode")

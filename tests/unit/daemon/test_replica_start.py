"""A replica that cannot be started now may be started later."""

import sys

import pytest

from pdd.daemon.replica_child import ReplicaDied, start_replica


async def test_a_host_that_gives_no_process_is_a_death_and_no_bug(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(ReplicaDied, match="could not be started"):
        await start_replica({}, environment={})

"""A node keeps to its cores, and so does all that it starts."""

import os

import pytest

from pdd.core.errors import ConfigError
from pdd.daemon.node_daemon import keep_to_cores


@pytest.fixture(autouse=True)
def _restore():
    before = os.sched_getaffinity(0)
    yield
    os.sched_setaffinity(0, before)


def test_the_process_is_bound_to_its_cores() -> None:
    first = min(os.sched_getaffinity(0))
    keep_to_cores((first,))
    assert os.sched_getaffinity(0) == {first}


def test_without_cores_nothing_changes() -> None:
    before = os.sched_getaffinity(0)
    keep_to_cores(())
    assert os.sched_getaffinity(0) == before


def test_cores_that_may_not_be_used_are_named_and_nothing_changes() -> None:
    before = os.sched_getaffinity(0)
    with pytest.raises(ConfigError, match=r"node\.cpu_cores is \[4000\]"):
        keep_to_cores((4000,))
    assert os.sched_getaffinity(0) == before

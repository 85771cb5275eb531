"""The ``start`` fixture."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pdd.daemon.supervisor_members import end_members, find_members
from tests.cluster.supervisor.harness import FakeCluster


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., FakeCluster]]:
    """Start fake clusters; whatever a failed test left is killed."""
    clusters: list[FakeCluster] = []

    def start(**task: object) -> FakeCluster:
        clusters.append(FakeCluster(task.pop("state_dir", tmp_path / "state"), **task))
        return clusters[-1]

    yield start
    for cluster in clusters:
        if cluster.process.poll() is None:
            cluster.process.kill()
            cluster.process.communicate()
        if cluster.cluster_id:
            end_members(lambda: find_members(cluster.cluster_id), grace_s=0.0)  # noqa: B023
        cluster.process.stdout.close()

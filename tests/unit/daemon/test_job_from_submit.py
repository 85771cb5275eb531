"""What a scheduler's submit makes of a job."""

import pytest

from pdd.connector.params import JobKind
from pdd.daemon.node_service import job_from_submit
from pdd.rpc.v1 import cluster_pb2


def submit_of(kind: str) -> cluster_pb2.Submit:
    """With everything that any kind may have."""
    peer = cluster_pb2.PeerNode(
        identity=cluster_pb2.NodeIdentity(name="peer", uuid="u", boot_epoch=3),
        address="peer:1",
        ucx_worker_addresses=[b"rank 0", b"rank 1"],
    )
    return cluster_pb2.Submit(
        request_id="r1",
        generation=2,
        kind=kind,
        prompt_token_ids=range(40),
        source=peer,
        pull=cluster_pb2.Pull(source=peer, token_count=32, wait_s=0.5),
        lends=True,
    )


@pytest.mark.parametrize(
    ("kind", "has_source", "pulls", "lends"),
    [
        ("prefill", False, True, False),
        ("decode", True, False, True),
        ("local", False, False, False),
    ],
)
def test_each_kind_takes_what_it_can_use(
    kind: str, has_source: bool, pulls: bool, lends: bool
) -> None:
    job = job_from_submit(submit_of(kind))
    assert (job.key, job.kind) == ("r1/2", JobKind(kind))
    assert ((job.source is not None), (job.pull is not None), job.lends) == (
        has_source,
        pulls,
        lends,
    )
    if job.pull is not None:
        assert (job.pull.token_count, job.pull.wait_s) == (32, 0.5)
        assert job.pull.source.ucx_addresses == (b"rank 0", b"rank 1")
        assert job.pull.source.boot_epoch == 3


def test_a_submit_without_a_pull_has_none() -> None:
    submit = submit_of("prefill")
    submit.ClearField("pull")
    assert job_from_submit(submit).pull is None

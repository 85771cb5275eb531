"""What waits to go out: order, batching, the bound."""

import asyncio

import pytest

from pdd.control import outbox, versions
from pdd.control.outbox import Outbox, OutboxOverflow, coalesce
from pdd.rpc.v1 import cluster_pb2


async def test_what_was_put_in_one_turn_comes_together_and_in_order() -> None:
    box: Outbox[int] = Outbox()
    taker = asyncio.create_task(box.take())
    await asyncio.sleep(0)
    for number in range(5):
        box.put(number)
    assert await taker == [0, 1, 2, 3, 4]
    box.put(5)
    assert await box.take() == [5]


async def test_the_bound_is_told_to_whoever_watches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "OUTBOX_LENGTH_MAX", 2)
    box: Outbox[int] = Outbox()
    watcher = asyncio.create_task(box.wait_overflow())
    box.put(1)
    box.put(2)
    await asyncio.sleep(0)
    assert not watcher.done()
    box.put(3)
    with pytest.raises(OutboxOverflow, match="2 messages"):
        await watcher


def frames(*indices: int, size: int = 0) -> cluster_pb2.NodeMessage:
    return cluster_pb2.NodeMessage(
        frames=cluster_pb2.FrameBatch(
            frames=[cluster_pb2.TokenFrame(request_id=f"{index}{'x' * size}") for index in indices]
        )
    )


def status() -> cluster_pb2.NodeMessage:
    return cluster_pb2.NodeMessage(status=cluster_pb2.NodeStatus())


def test_only_neighbouring_frames_share_a_message() -> None:
    merged = coalesce([frames(1), frames(2), status(), frames(3)], kinds=("frames",))
    assert [message.WhichOneof("message") for message in merged] == ["frames", "status", "frames"]
    assert len(merged[0].frames.frames) == 2


@pytest.mark.parametrize("size", [0, 1000])
def test_a_batch_has_a_bounded_size(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(outbox, "BATCH_BYTES_MAX", 4096)
    merged = coalesce([frames(index, size=size) for index in range(20)], kinds=("frames",))
    assert [len(message.frames.frames) for message in merged] == ([20] if size == 0 else [4] * 5)


def test_a_batch_of_work_has_a_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "BATCH_BYTES_MAX", 4096)
    submits = [
        cluster_pb2.SchedulerMessage(
            submits=cluster_pb2.SubmitBatch(
                submits=[cluster_pb2.Submit(request_id=str(index), prompt_token_ids=range(400))]
            )
        )
        for index in range(20)
    ]
    merged = coalesce(submits, kinds=("submits", "cancels"))
    names = [one.request_id for message in merged for one in message.submits.submits]
    assert names == [str(index) for index in range(20)]
    assert max(message.ByteSize() for message in merged) <= 4096 + 16
    assert len(merged) < 20


def test_what_is_no_list_is_never_merged() -> None:
    tokens = [
        cluster_pb2.SchedulerMessage(first_token=cluster_pb2.FirstToken(token_id=index))
        for index in range(3)
    ]
    merged = coalesce(tokens, kinds=("submits", "cancels"))
    assert [message.first_token.token_id for message in merged] == [0, 1, 2]


def test_the_longest_batch_fits_into_a_message() -> None:
    # A batch is never longer than its bound, unless one message alone is.
    assert versions.BATCH_BYTES_MAX * 2 < versions.MESSAGE_BYTES_MAX

"""Nodes of different tensor parallelism exchange a sequence over real UCX, rank by rank."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from pdd.transfer.pool import BlockPool
from pdd.transfer.reshard import ShardLayout, pair_key, plan_reshard
from pdd.transfer.settings import TransferSettings
from pdd.transfer.values import SourceReleased, TargetCompleted

spec = importlib.util.spec_from_file_location(
    "transfer_ranks", Path(__file__).with_name("conftest.py")
)
ranks = importlib.util.module_from_spec(spec)
spec.loader.exec_module(ranks)

pytestmark = pytest.mark.cluster

LAYERS, HEADS, TOKENS, TOKEN_BYTES = 3, 4, 8, 32
BLOCKS, POOL_BLOCKS = 5, 9
SOURCE_IDS, TARGET_IDS = [8, 2, 3, 4, 0], [1, 5, 7, 6, 2]


def make_layout(tp_size, order):
    return ShardLayout(
        kv_head_count=HEADS,
        tp_size=tp_size,
        stages=((0, LAYERS),),
        order=order,
        block_tokens=TOKENS,
        token_bytes=TOKEN_BYTES,
    )


def packed(layout, rank, block):
    """The bytes of ``block`` (``[L, H, N, C]``) that a rank holds, in its order."""
    part = block[:, list(layout.heads(rank))]
    axes = {"LHN": (0, 1, 2, 3), "HLN": (1, 0, 2, 3), "LNH": (0, 2, 1, 3)}[layout.order]
    return part.transpose(axes).tobytes()


@pytest.mark.parametrize(("source_tp", "target_tp"), [(4, 2), (4, 4), (2, 4)])
@pytest.mark.parametrize("orders", [("LHN", "LHN"), ("HLN", "LNH")])
@pytest.mark.parametrize("shared", [False, True])
def test_a_sequence_changes_its_tensor_parallelism(
    make_ranks, source_tp, target_tp, orders, shared
):
    rng = np.random.default_rng(source_tp * 10 + target_tp)
    blocks = rng.integers(0, 256, (BLOCKS, LAYERS, HEADS, TOKENS, TOKEN_BYTES), np.uint8)
    layouts = (make_layout(source_tp, orders[0]), make_layout(target_tp, orders[1]))
    nodes = []
    for name, layout in zip(("prefill", "decode"), layouts, strict=True):
        node = []
        for number in range(layout.rank_count):
            size = layout.block_bytes(number)
            pool = BlockPool.contiguous(np.zeros(POOL_BLOCKS * size, np.uint8), block_bytes=size)
            settings = TransferSettings(shared_memory=shared)
            rank = ranks.Rank(name, pool, settings, rank=number)
            make_ranks.keep(rank)
            node.append(rank)
        nodes.append(node)
    sources, targets = nodes
    ranks.link(*sources, *targets)
    for number, rank in enumerate(sources):
        for block_id, block in zip(SOURCE_IDS, blocks, strict=True):
            start = block_id * rank.pool.block_bytes
            bytes_ = np.frombuffer(packed(layouts[0], number, block), np.uint8)
            rank.pool.memory[start : start + rank.pool.block_bytes] = bytes_

    plans = plan_reshard(*layouts)
    for plan in plans:
        source, target = sources[plan.source_rank], targets[plan.target_rank]
        source.engine.set_shares(target.peer, send=plan.source_ranges)
        target.engine.set_shares(source.peer, receive=plan.target_ranges)
        key = pair_key("k", source_rank=plan.source_rank, target_rank=plan.target_rank)
        source.engine.source_open(key, deadline_s=30.0)
        target.engine.target_open(
            key, source=source.peer, first_index=0, block_ids=TARGET_IDS, deadline_s=30.0
        )
        source.engine.source_append(key, first_index=0, block_ids=SOURCE_IDS, last=True)

    for number, rank in enumerate(targets):
        mine = [plan for plan in plans if plan.target_rank == number]
        events = rank.next_events(len(mine))
        assert all(isinstance(event, TargetCompleted) for event in events), events
        moved = sum(event.transferred_bytes for event in events)
        assert moved == BLOCKS * layouts[1].block_bytes(number)
        for block_id, block in zip(TARGET_IDS, blocks, strict=True):
            assert rank.bytes_of([block_id]) == [packed(layouts[1], number, block)]
    for number, rank in enumerate(sources):
        mine = [plan for plan in plans if plan.source_rank == number]
        events = rank.next_events(len(mine))
        assert all(isinstance(event, SourceReleased) for event in events)

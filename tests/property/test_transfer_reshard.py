"""The byte ranges of a change of tensor and pipeline parallelism, against a numpy reshard."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdd.core.errors import ConfigError
from pdd.transfer.reshard import ORDERS, ShardLayout, plan_reshard

TOKENS, TOKEN_BYTES = 4, 6
SIZES = (1, 2, 4, 8)
HEADS = (1, 2, 3, 8)


def make_layout(*, heads, tp_size, stages=((0, 5),), order="LHN"):
    return ShardLayout(
        kv_head_count=heads,
        tp_size=tp_size,
        stages=stages,
        order=order,
        block_tokens=TOKENS,
        token_bytes=TOKEN_BYTES,
    )


def packed(layout, rank, whole):
    """What a rank's block looks like: numpy slices and transposes of the whole ``[L, H, N, C]``."""
    tp_rank = rank % layout.tp_size
    heads = layout.kv_head_count
    if heads >= layout.tp_size:
        head_slices = np.split(whole, layout.tp_size, axis=1)
    else:
        head_slices = np.repeat(whole, layout.tp_size // heads, axis=1)
        head_slices = np.split(head_slices, layout.tp_size, axis=1)
    first, count = layout.stages[rank // layout.tp_size]
    part = head_slices[tp_rank][first : first + count]
    axes = {"LHN": (0, 1, 2, 3), "HLN": (1, 0, 2, 3), "LNH": (0, 2, 1, 3)}[layout.order]
    return np.ascontiguousarray(part.transpose(axes)).reshape(-1)


def check(source, target):
    layers = sum(count for _, count in source.stages)
    whole = np.random.default_rng(3).integers(
        0, 256, (layers, source.kv_head_count, TOKENS, TOKEN_BYTES), np.uint8
    )
    arrived = [np.zeros(target.block_bytes(rank), np.int32) for rank in range(target.rank_count)]
    written = [np.zeros(target.block_bytes(rank), np.int32) for rank in range(target.rank_count)]
    for plan in plan_reshard(source, target):
        block = packed(source, plan.source_rank, whole)
        sent = np.concatenate([block[at : at + size] for at, size in plan.source_ranges])
        assert sum(size for _, size in plan.target_ranges) == len(sent) == plan.size_bytes
        position = 0
        for at, size in plan.target_ranges:
            arrived[plan.target_rank][at : at + size] = sent[position : position + size]
            written[plan.target_rank][at : at + size] += 1
            position += size
    for rank in range(target.rank_count):
        assert (written[rank] == 1).all(), "every byte comes from exactly one rank"
        assert (arrived[rank] == packed(target, rank, whole)).all()


@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize(("source_tp", "target_tp"), list(itertools.product(SIZES, SIZES)))
def test_every_pair_of_sizes_reshards_or_names_what_does_not_divide(heads, source_tp, target_tp):
    source = make_layout(heads=heads, tp_size=source_tp)
    target = make_layout(heads=heads, tp_size=target_tp)
    bad = [tp for tp in (source_tp, target_tp) if heads % tp and tp % heads]
    if not bad:
        check(source, target)
        return
    with pytest.raises(ConfigError, match=f"kv_head_count {heads} and tp_size {bad[0]}"):
        plan_reshard(source, target)


@st.composite
def cut_layers(draw, layers):
    cuts = sorted(draw(st.sets(st.integers(1, layers - 1), max_size=3)))
    edges = [0, *cuts, layers]
    return tuple((a, b - a) for a, b in itertools.pairwise(edges))


@given(
    heads=st.sampled_from([1, 2, 4, 8]),
    source_tp=st.sampled_from(SIZES),
    target_tp=st.sampled_from(SIZES),
    source_stages=cut_layers(7),
    target_stages=cut_layers(7),
    source_order=st.sampled_from(ORDERS),
    target_order=st.sampled_from(ORDERS),
)
def test_stages_and_orders_may_differ_too(
    heads, source_tp, target_tp, source_stages, target_stages, source_order, target_order
):
    check(
        make_layout(heads=heads, tp_size=source_tp, stages=source_stages, order=source_order),
        make_layout(heads=heads, tp_size=target_tp, stages=target_stages, order=target_order),
    )


def test_equal_cuts_send_each_block_in_one_stretch():
    layout = make_layout(heads=8, tp_size=4)
    plans = plan_reshard(layout, layout)
    assert [(plan.source_rank, plan.target_rank) for plan in plans] == [(r, r) for r in range(4)]
    assert all(plan.source_ranges == ((0, layout.block_bytes(0)),) for plan in plans)


def test_copies_of_a_head_share_the_work():
    plans = plan_reshard(make_layout(heads=1, tp_size=4), make_layout(heads=1, tp_size=4))
    assert sorted(plan.source_rank for plan in plans) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"heads": 4}, "kv_head_count is 8 at the source and 4 at the target"),
        ({"stages": ((0, 4),)}, r"layers are 0..4 \(5\) at the source and 0..3 \(4\)"),
        ({"order": "NHL"}, "order 'NHL' is none of"),
    ],
)
def test_what_cannot_work_is_refused_with_both_values(change, said):
    with pytest.raises(ConfigError, match=said):
        plan_reshard(
            make_layout(heads=8, tp_size=2), make_layout(**{"heads": 8, "tp_size": 2, **change})
        )

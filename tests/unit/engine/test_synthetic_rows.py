"""The bytes of the pool: every one of them counts, and chunks do not."""

import random

import numpy as np
import pytest

from pdd.engine.synthetic.kv_rows import KvRows, planes_of
from pdd.transfer.reshard import ShardLayout

BLOCK_SIZE, ROW_BYTES, BLOCK_COUNT = 4, 32, 12
TABLE = [7, 2, 9, 4, 11]
TOKENS = random.Random(1).choices(range(5000), k=18)


def rows_of(*, rank_count: int = 1, model_seed: int = 0) -> tuple[KvRows, list[np.ndarray]]:
    pools = [np.zeros((BLOCK_COUNT, BLOCK_SIZE * ROW_BYTES), np.uint8) for _ in range(rank_count)]
    return KvRows(pools=pools, block_size=BLOCK_SIZE, model_seed=model_seed), pools


def digest_of(tokens: list[int], table: list[int], **fields) -> int:
    rows, _ = rows_of(**fields)
    rows.write(table, 0, tokens)
    return rows.digest(table, len(tokens))


@pytest.mark.parametrize("rank_count", [1, 2, 3])
@pytest.mark.parametrize("cuts", [[1], [4], [5, 9], [3, 4, 8, 17], list(range(1, 18))])
def test_chunk_boundaries_do_not_show(rank_count: int, cuts: list[int]):
    rows, pools = rows_of(rank_count=rank_count)
    for start, end in zip([0, *cuts], [*cuts, len(TOKENS)], strict=True):
        rows.write(TABLE, start, TOKENS[start:end])
    whole, whole_pools = rows_of(rank_count=rank_count)
    whole.write(TABLE, 0, TOKENS)
    for pool, other in zip(pools, whole_pools, strict=True):
        assert np.array_equal(pool, other)


def test_a_pool_in_pieces_holds_the_same_rows():
    wide = np.zeros((BLOCK_COUNT, 2 * BLOCK_SIZE * ROW_BYTES), np.uint8)
    half = wide[:, : BLOCK_SIZE * ROW_BYTES]
    assert not half.flags.c_contiguous
    pieces = KvRows(pools=[half], block_size=BLOCK_SIZE, model_seed=0)
    whole, (pool,) = rows_of()
    for rows in (pieces, whole):
        for start in range(0, len(TOKENS), 3):
            rows.write(TABLE, start, TOKENS[start : start + 3])
    assert np.array_equal(half, pool)
    for end in range(1, len(TOKENS) + 1):
        assert pieces.digest(TABLE, end) == whole.digest(TABLE, end)


def test_where_blocks_lie_does_not_show():
    assert digest_of(TOKENS, TABLE) == digest_of(TOKENS, [1, 2, 3, 4, 5])


@pytest.mark.parametrize("rank_count", [1, 2])
def test_every_byte_of_the_sequence_changes_the_digest(rank_count: int):
    rows, pools = rows_of(rank_count=rank_count)
    rows.write(TABLE, 0, TOKENS)
    before = rows.digest(TABLE, len(TOKENS))
    for pool in pools:
        for position in range(len(TOKENS)):
            index, offset = divmod(position, BLOCK_SIZE)
            for byte in range(offset * ROW_BYTES, (offset + 1) * ROW_BYTES):
                pool[TABLE[index], byte] ^= 1
                assert rows.digest(TABLE, len(TOKENS)) != before, (position, byte)
                pool[TABLE[index], byte] ^= 1
    assert rows.digest(TABLE, len(TOKENS)) == before


def test_bytes_behind_the_sequence_do_not_count():
    rows, (pool,) = rows_of()
    rows.write(TABLE, 0, TOKENS)
    before = rows.digest(TABLE, len(TOKENS))
    pool[TABLE[-1], 2 * ROW_BYTES :] = 255
    pool[0] = 255
    assert rows.digest(TABLE, len(TOKENS)) == before


def test_two_blocks_that_change_places_are_noticed():
    rows, (pool,) = rows_of()
    rows.write(TABLE, 0, TOKENS)
    before = rows.digest(TABLE, len(TOKENS))
    pool[[TABLE[0], TABLE[1]]] = pool[[TABLE[1], TABLE[0]]]
    assert rows.digest(TABLE, len(TOKENS)) != before


def test_what_is_computed_on_a_damaged_row_is_damaged_too():
    rows, (pool,) = rows_of()
    rows.write(TABLE, 0, TOKENS[:8])
    good = pool[TABLE[1]].copy()
    pool[TABLE[1], -1] ^= 1
    rows.write(TABLE, 8, TOKENS[8:])
    pool[TABLE[1]] = good
    assert rows.digest(TABLE, len(TOKENS)) != digest_of(TOKENS, TABLE)


def test_tokens_their_order_and_the_model_decide():
    digests = {
        digest_of(TOKENS, TABLE),
        digest_of(TOKENS[:-1], TABLE),
        digest_of([TOKENS[1], TOKENS[0], *TOKENS[2:]], TABLE),
        digest_of(TOKENS, TABLE, model_seed=1),
        digest_of(TOKENS, TABLE, rank_count=2),
    }
    assert len(digests) == 5


def test_a_row_must_be_a_multiple_of_sixteen_bytes():
    with pytest.raises(ValueError, match="a row of 24 bytes is no multiple of 16"):
        KvRows(pools=[np.zeros((3, 4 * 24), np.uint8)], block_size=4, model_seed=0)


def cut_rows(*, tp_size: int, head_count: int = 4) -> tuple[KvRows, list[np.ndarray]]:
    """Rows of a node whose ranks share heads."""
    layout = ShardLayout(
        kv_head_count=head_count,
        tp_size=tp_size,
        stages=((0, 1),),
        order="LHN",
        block_tokens=BLOCK_SIZE,
        token_bytes=ROW_BYTES,
    )
    pools = [np.zeros((BLOCK_COUNT, layout.block_bytes(rank)), np.uint8) for rank in range(tp_size)]
    planes = planes_of(pools, layout)
    rows = KvRows(
        pools=[of_head[0] for of_head in planes],
        copies=[of_head[1:] for of_head in planes],
        block_size=BLOCK_SIZE,
        model_seed=0,
    )
    rows.write(TABLE, 0, TOKENS)
    return rows, pools


def test_how_many_ranks_share_the_heads_does_not_show():
    digests = {cut_rows(tp_size=tp_size)[0].digest(TABLE, len(TOKENS)) for tp_size in (1, 2, 4, 8)}
    assert len(digests) == 1


@pytest.mark.parametrize("tp_size", [2, 8])
def test_every_rank_counts_copies_included(tp_size: int):
    rows, pools = cut_rows(tp_size=tp_size)
    before = rows.digest(TABLE, len(TOKENS))
    plane_bytes = BLOCK_SIZE * ROW_BYTES
    for pool in pools:
        for plane in range(pool.shape[1] // plane_bytes):
            for block, byte in ((TABLE[0], 0), (TABLE[-1], 2 * ROW_BYTES - 1)):
                pool[block, plane * plane_bytes + byte] ^= 1
                assert rows.digest(TABLE, len(TOKENS)) != before
                pool[block, plane * plane_bytes + byte] ^= 1
            pool[TABLE[-1], plane * plane_bytes + 2 * ROW_BYTES] ^= 1  # behind the sequence
    assert rows.digest(TABLE, len(TOKENS)) == before

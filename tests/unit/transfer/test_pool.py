import numpy as np
import pytest

from pdd.transfer.pool import BlockPool, DeviceMemory, Region, host_memory


def layer_major(*, block_count=5, layer_count=3, segment_bytes=8):
    """A pool as CPU vLLM lays it out, every byte different enough to see a mix-up."""
    size = block_count * layer_count * segment_bytes
    memory = (np.arange(size) % 251).astype(np.uint8)
    region = Region(
        offset=0,
        layer_count=layer_count,
        layer_stride=block_count * segment_bytes,
        block_stride=segment_bytes,
        segment_bytes=segment_bytes,
    )
    return BlockPool(memory, regions=[region], block_count=block_count)


def block_major(*, block_count=5, block_bytes=24):
    memory = (np.arange(block_count * block_bytes) % 251).astype(np.uint8)
    return BlockPool.contiguous(memory, block_bytes=block_bytes)


def by_hand(pool, block_ids):
    return b"".join(
        pool.memory[offset : offset + size].tobytes()
        for block_id in block_ids
        for offset, size in pool.segments(block_id)
    )


@pytest.mark.parametrize("make", [layer_major, block_major])
def test_gather_is_the_segments_one_after_another(make):
    pool = make()
    packed = np.zeros(3 * pool.block_bytes, np.uint8)
    pool.gather([4, 0, 2], packed)
    assert packed.tobytes() == by_hand(pool, [4, 0, 2])


@pytest.mark.parametrize("make", [layer_major, block_major])
def test_scatter_undoes_gather_and_touches_no_other_block(make):
    source, target = make(), make()
    target.memory[:] = 255
    packed = np.zeros(2 * source.block_bytes, np.uint8)
    source.gather([1, 3], packed)
    target.scatter([2, 0], packed)
    assert by_hand(target, [2, 0]) == by_hand(source, [1, 3])
    assert set(by_hand(target, [1, 3, 4])) == {255}


def test_pools_of_different_layouts_agree_on_the_packed_form():
    source, target = layer_major(), block_major()
    packed = np.zeros(source.block_bytes, np.uint8)
    source.gather([3], packed)
    target.scatter([1], packed)
    assert by_hand(target, [1]) == by_hand(source, [3])


def test_several_regions_follow_one_another():
    memory = np.arange(40, dtype=np.uint8)
    regions = [
        Region(offset=0, layer_count=1, layer_stride=0, block_stride=4, segment_bytes=4),
        Region(offset=20, layer_count=2, layer_stride=10, block_stride=2, segment_bytes=2),
    ]
    pool = BlockPool(memory, regions=regions, block_count=5)
    packed = np.zeros(8, np.uint8)
    pool.gather([1], packed)
    assert packed.tolist() == [4, 5, 6, 7, 22, 23, 32, 33]
    assert pool.smallest_segment_bytes == 2


def test_neighbouring_blocks_are_one_piece():
    pool = block_major()
    assert pool.pieces([1, 2, 3], 3 * 24) == [(24, 72)]
    assert pool.pieces([1, 2, 3], 24) == [(24, 24), (48, 24), (72, 24)]
    assert pool.pieces([1, 2, 3], 50) == [(24, 50), (74, 22)]


def test_a_piece_that_is_scattered_here_is_not_cut():
    assert block_major().pieces([1, 3], 48) is None
    assert layer_major().pieces([1], 24) is None
    assert layer_major().pieces([1], 8) == [(8, 8), (48, 8), (88, 8)]


def test_a_pool_that_leaves_its_memory_is_refused():
    with pytest.raises(ValueError, match="ends at byte"):
        BlockPool(
            np.zeros(10, np.uint8),
            regions=[
                Region(offset=4, layer_count=1, layer_stride=0, block_stride=4, segment_bytes=4)
            ],
            block_count=2,
        )
    with pytest.raises(ValueError, match="has no bytes"):
        BlockPool.contiguous(np.zeros(3, np.uint8), block_bytes=4)


def test_host_memory_is_a_view():
    array = np.zeros(4, np.uint8)
    host_memory(array.ctypes.data, 4)[2] = 9
    assert array.tolist() == [0, 0, 9, 0]


def test_device_memory_is_described_and_never_touched():
    pool = BlockPool.contiguous(DeviceMemory(0x7000, 96), block_bytes=24)
    part = pool.part(24, 48)
    assert part.__cuda_array_interface__["data"] == (0x7018, False)
    assert part.__cuda_array_interface__["shape"] == (48,)
    assert pool.on_device
    assert pool.pieces([0, 1], 48) == [(0, 48)]


@pytest.mark.parametrize("make", [layer_major, block_major])
def test_a_selection_packs_only_its_ranges(make):
    pool = make()
    ranges = [(20, 4), (2, 9), (13, 1)]
    chosen = pool.select(ranges)
    whole = by_hand(pool, [3])
    assert chosen.block_bytes == 14
    packed = np.zeros(14, np.uint8)
    chosen.gather([3], packed)
    assert packed.tobytes() == b"".join(whole[at : at + size] for at, size in ranges)


def test_a_selection_of_everything_is_the_pool():
    pool = layer_major()
    assert pool.select([(0, pool.block_bytes)]).regions == pool.regions


@pytest.mark.parametrize("bad", [(0, 0), (-1, 3), (20, 5)])
def test_a_range_outside_the_block_is_refused(bad):
    with pytest.raises(ValueError, match="is not within a block of 24 B"):
        block_major().select([bad])

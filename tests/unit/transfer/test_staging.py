from pdd.transfer.staging import Staging
from pdd.transfer.values import PeerId

A = PeerId(uuid="a", boot_epoch=1, rank=0)
B = PeerId(uuid="b", boot_epoch=1, rank=0)


def test_one_peer_cannot_take_all_buffers():
    staging = Staging(buffer_bytes=10, per_peer=2, limit_bytes=100)
    taken = [staging.take(A, 10) for _ in range(3)]
    assert [buffer is None for buffer in taken] == [False, False, True]
    assert staging.take(B, 10) is not None


def test_a_buffer_given_back_is_lent_again():
    staging = Staging(buffer_bytes=10, per_peer=1, limit_bytes=10)
    first = staging.take(A, 4)
    assert staging.take(B, 4) is None
    staging.give(A, first)
    assert staging.take(B, 4) is first
    assert staging.held_bytes == 10


def test_a_chunk_longer_than_the_limit_still_gets_through_alone():
    staging = Staging(buffer_bytes=10, per_peer=1, limit_bytes=10)
    small = staging.take(A, 10)
    assert staging.take(B, 50) is None
    staging.give(A, small)
    assert staging.take(B, 50).nbytes == 50

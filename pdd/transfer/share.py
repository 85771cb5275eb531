"""The part of a pool that one peer gets or gives, and how it is cut into messages."""

from collections.abc import Sequence
from math import gcd

from pdd.transfer.pool import BlockPool
from pdd.transfer.settings import TransferSettings


class Share:
    """``pool``: the whole pool, or a selection of every block (see ``reshard``).

    ``staged``: its contiguous stretches are so short that chunks go through a staging buffer.
    """

    def __init__(self, pool: BlockPool, settings: TransferSettings) -> None:
        self.pool = pool
        self.staged = (
            not pool.on_device and pool.smallest_segment_bytes < settings.stage_below_bytes
        )
        self._piece_bytes = _longest_piece(pool)

    def piece_bytes(self, block_ids: Sequence[int], target_block_ids: Sequence[int]) -> int:
        """Bytes per message of a chunk that is sent in place.

        The whole chunk where it is one stretch on both sides, else what is contiguous in any block.
        """
        size = len(block_ids) * self.pool.block_bytes
        if self._piece_bytes == self.pool.block_bytes and len(block_ids) > 1:
            in_runs = all(
                list(ids) == list(range(ids[0], ids[0] + len(ids)))
                for ids in (block_ids, target_block_ids)
            )
            if in_runs and self.pool.pieces(block_ids, size) is not None:
                return size
        return self._piece_bytes

    def lands_in_place(self, block_ids: Sequence[int], piece_bytes: int) -> bool:
        """Whether messages of that size can be received straight into the blocks."""
        if self.pool.on_device:
            return True  # there is no staging for it; other pieces are never sent by our peers
        return not self.staged and self.pool.pieces(block_ids, piece_bytes) is not None


def _longest_piece(pool: BlockPool) -> int:
    """Longest message size that divides every contiguous stretch of a block."""
    size = 0
    for region in pool.regions:
        whole = region.layer_count == 1 or region.layer_stride == region.segment_bytes
        size = gcd(size, region.segment_bytes * (region.layer_count if whole else 1))
    return size

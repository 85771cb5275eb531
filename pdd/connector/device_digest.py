"""The digest of a chunk in GPU memory, taken on the GPU: every byte counts, none is copied out.

The packed bytes are read as 64-bit words. Each word is mixed (xor-shift, multiplication, xor-shift,
all invertible), multiplied with the factor of its position, which is odd, and all is summed modulo
2^64. A change within one word therefore always changes the sum. The mixing carries changes of high
bits to low ones: without it, a sign flipped in any two words would go unseen, for the upper bits of
a product depend on lower bits only. It is no defence against damage that is made on purpose; who
could make it has the blocks anyway. Sums of integers do not depend on their order, so source and
target may cut a chunk differently.

Written for CUDA, run on CPU tensors so far.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from pdd.transfer.pool import DeviceMemory

if TYPE_CHECKING:
    import torch

WORD_BYTES = 8
MIX_FACTOR = 0xBF58476D1CE4E5B9  # SplitMix64's first
_LOW_32 = (1 << 32) - 1
_LOW_35 = (1 << 35) - 1


def factors(count: int) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    """The first ``count`` factors: equal on every node, whatever its device or numpy.

    SplitMix64 (Steele, Lea and Flood, OOPSLA 2014) of the position, made odd.
    """
    words = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((words ^ (words >> np.uint64(31))) | np.uint64(1)).view(np.int64)


class DeviceDigest:
    """Called in the transfer thread with the stretches of a chunk, in packed order.

    Args:
        device: where the pool lies.
        view: a uint8 tensor over a stretch, without a copy; CUDA's unless a test brings its own.
    """

    def __init__(
        self,
        device: "torch.device",
        *,
        view: "Callable[[DeviceMemory], torch.Tensor] | None" = None,
    ) -> None:
        self._device = device
        self._view = view or self._cuda_view
        self._factors: torch.Tensor | None = None  # as many as the longest chunk so far has words

    def __call__(self, pieces: Sequence[DeviceMemory]) -> int:
        """The digest; never 0, which stands for "not taken".

        Raises:
            ValueError: a stretch is not made of whole words.
        """
        import torch

        word_count = 0
        for piece in pieces:
            if piece.size_bytes % WORD_BYTES or piece.address % WORD_BYTES:
                raise ValueError(
                    f"a stretch of {piece.size_bytes} B at {piece.address:#x} of a GPU pool is not"
                    f" made of words of {WORD_BYTES} B; set transfer.digest = false for this model"
                )
            word_count += piece.size_bytes // WORD_BYTES
        if self._factors is None or len(self._factors) < word_count:
            self._factors = torch.from_numpy(factors(word_count)).to(self._device)
        total = torch.zeros((), dtype=torch.int64, device=self._device)
        at = 0
        for piece in pieces:
            words = self._view(piece).view(torch.int64)
            total += (_mixed(words) * self._factors[at : at + len(words)]).sum()
            at += len(words)
        return int(total.item()) % (1 << 64) or 1

    def _cuda_view(self, piece: DeviceMemory) -> "torch.Tensor":
        import torch

        return torch.as_tensor(piece, device=self._device)


def _mixed(words: "torch.Tensor") -> "torch.Tensor":
    """torch shifts signed words with their sign; the masks make that a plain shift."""
    words = words ^ ((words >> 32) & _LOW_32)
    words = words * (MIX_FACTOR - (1 << 64))  # as a signed number
    return words ^ ((words >> 29) & _LOW_35)

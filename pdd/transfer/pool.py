"""Where a block's bytes lie in registered memory, and how they are copied out of and into it.

A pool is one stretch of memory. A block is the same set of segments for every block id, shifted by
``block_stride``: a block-major engine has one segment per block, a layer-major one has a segment
per layer (CPU vLLM, LBHNC: 30 layers, segment 98,304 B, block stride 98,304 B, layer stride
``block_count`` x 98,304 B).

The *packed* form of some blocks is their segments one after another, block by block, region by
region, layer by layer. Digests are taken over it and it is what travels; source and target may
lay out their pools differently as long as the packed forms agree.

::

    layer-major pool   | L0: b0 b1 b2 b3 ... | L1: b0 b1 b2 b3 ... |
    packed (b2, b0)    | b2.L0 b2.L1 | b0.L0 b0.L1 |
"""

import ctypes
import itertools
import mmap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from pdd.transfer.digest import digest_of

ByteArray = np.ndarray[Any, np.dtype[np.uint8]]

COPY_STEP_BYTES = 256 * 1024
"""Short segments are copied in steps of about this size, so that what looks at a copied piece (a
digest) finds it in the core's own cache. Longer segments are copied whole: glibc copies what is
larger than the core's cache with vector instructions, and on AMD that is half as fast again as what
it does for less."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """``layer_count`` segments of each block, in bytes relative to the pool's base.

    Segment of layer ``l`` of block ``b``: ``offset + l * layer_stride + b * block_stride``,
    ``segment_bytes`` long.
    """

    offset: int
    layer_count: int
    layer_stride: int
    block_stride: int
    segment_bytes: int


class DeviceMemory:
    """GPU memory by address, as UCX takes it; never read or written by the CPU.

    Not run yet on a GPU node with RDMA; see README.
    """

    def __init__(self, address: int, size_bytes: int) -> None:
        self.address = address
        self.size_bytes = size_bytes

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": (self.size_bytes,),
            "typestr": "|u1",
            "data": (self.address, False),
            "strides": None,
            "version": 3,
        }

    def part(self, offset: int, size_bytes: int) -> "DeviceMemory":
        """The stretch of ``size_bytes`` at ``offset``."""
        assert 0 <= offset <= self.size_bytes - size_bytes
        return DeviceMemory(self.address + offset, size_bytes)


DeviceDigest = Callable[[Sequence[DeviceMemory]], int]
"""Of stretches one after another; equal for equal bytes however they are cut, and never 0."""


def host_memory(address: int, size_bytes: int) -> ByteArray:
    """View ``size_bytes`` of this process's memory at ``address``; the caller keeps them alive."""
    return np.ctypeslib.as_array((ctypes.c_uint8 * size_bytes).from_address(address))


def page_aligned(size_bytes: int) -> ByteArray:
    """Zeroed memory that begins at a page.

    numpy's own begins 16 bytes beside one, and copies to and from there run at half the speed where
    the processor copies strings by microcode.
    """
    memory = np.zeros(size_bytes + mmap.PAGESIZE, np.uint8)
    start = -memory.ctypes.data % mmap.PAGESIZE
    return memory[start : start + size_bytes]


class BlockPool:
    """Blocks 0..``block_count``-1 in ``memory``; see the module for the layout.

    Args:
        memory: one-dimensional uint8 array (kept, not copied), or device memory.
        regions: the segments of a block; their order is the packed order.
        device_digest: takes the digest of stretches of device memory; None if nothing can.
    Raises:
        ValueError: a segment of some block lies outside ``memory``, or there are no bytes.
    """

    def __init__(
        self,
        memory: ByteArray | DeviceMemory,
        *,
        regions: Sequence[Region],
        block_count: int,
        device_digest: DeviceDigest | None = None,
    ) -> None:
        self.memory = memory
        self.device_digest = device_digest
        self.regions = tuple(regions)
        self.block_count = block_count
        self.block_bytes = sum(r.layer_count * r.segment_bytes for r in regions)
        self.size_bytes = (
            memory.size_bytes if isinstance(memory, DeviceMemory) else int(memory.nbytes)
        )
        if block_count < 1 or self.block_bytes < 1:
            raise ValueError(f"a pool of {block_count} blocks of {self.block_bytes} B has no bytes")
        for region in self.regions:
            last_layer = region.offset + (region.layer_count - 1) * region.layer_stride
            start = min(region.offset, last_layer)
            end = (
                max(region.offset, last_layer)
                + (block_count - 1) * region.block_stride
                + region.segment_bytes
            )
            if start < 0 or end > self.size_bytes:
                raise ValueError(f"{region} ends at byte {end} of a pool of {self.size_bytes} B")
        self._views: list[tuple[Any, list[tuple[slice, slice]]]] = []
        if not isinstance(memory, DeviceMemory):
            at = 0
            for region in self.regions:
                view = as_strided(
                    memory[region.offset :],
                    shape=(block_count, region.layer_count, region.segment_bytes),
                    strides=(region.block_stride, region.layer_stride, 1),
                )
                self._views.append((view, _steps(region, at)))
                at += region.layer_count * region.segment_bytes

    @classmethod
    def contiguous(cls, memory: ByteArray | DeviceMemory, *, block_bytes: int) -> "BlockPool":
        """A block-major pool: block ``b`` is the ``block_bytes`` at ``b * block_bytes``."""
        size = memory.size_bytes if isinstance(memory, DeviceMemory) else int(memory.nbytes)
        region = Region(
            offset=0,
            layer_count=1,
            layer_stride=0,
            block_stride=block_bytes,
            segment_bytes=block_bytes,
        )
        return cls(memory, regions=[region], block_count=size // block_bytes)

    @property
    def address(self) -> int:
        """Where ``memory`` begins."""
        if isinstance(self.memory, DeviceMemory):
            return self.memory.address
        return int(self.memory.ctypes.data)

    @property
    def on_device(self) -> bool:
        """True for GPU memory."""
        return isinstance(self.memory, DeviceMemory)

    @property
    def smallest_segment_bytes(self) -> int:
        """Bytes of the shortest contiguous stretch of a block."""
        return min(region.segment_bytes for region in self.regions)

    def segments(self, block_id: int) -> list[tuple[int, int]]:
        """``(offset, bytes)`` of every segment of a block, in packed order."""
        self._check(block_id)
        return [
            (
                region.offset + layer * region.layer_stride + block_id * region.block_stride,
                region.segment_bytes,
            )
            for region in self.regions
            for layer in range(region.layer_count)
        ]

    def gather(
        self,
        block_ids: Sequence[int],
        packed: ByteArray,
        seen: Callable[[ByteArray], object] | None = None,
    ) -> None:
        """Copy blocks into ``packed`` (uint8, ``len(block_ids) * block_bytes``). Host only.

        ``seen`` is called with each copied piece of ``packed``, in order.
        """
        rows = packed.reshape(len(block_ids), self.block_bytes)
        for row, block_id in zip(rows, block_ids, strict=True):
            self._check(block_id)
            for view, steps in self._views:
                block = view[block_id]
                for layers, at in steps:
                    piece = row[at]
                    segments = block[layers]
                    np.copyto(piece.reshape(segments.shape), segments)
                    if seen is not None:
                        seen(piece)

    def scatter(
        self,
        block_ids: Sequence[int],
        packed: ByteArray,
        seen: Callable[[ByteArray], object] | None = None,
    ) -> None:
        """Copy ``packed`` into blocks: the reverse of ``gather``. Host only.

        ``seen`` is called with each copied piece of the pool, in packed order.
        """
        rows = packed.reshape(len(block_ids), self.block_bytes)
        for row, block_id in zip(rows, block_ids, strict=True):
            self._check(block_id)
            for view, steps in self._views:
                block = view[block_id]
                for layers, at in steps:
                    segments = block[layers]
                    np.copyto(segments, row[at].reshape(segments.shape))
                    if seen is not None:
                        for segment in segments:
                            seen(segment)

    def select(self, ranges: Sequence[tuple[int, int]]) -> "BlockPool":
        """The same blocks, of which only these ``(offset, bytes)`` of the packed form count.

        Raises:
            ValueError: a range is empty or leaves the packed block.
        """
        pieces: list[Region] = []
        for offset, size in ranges:
            if size < 1 or offset < 0 or offset + size > self.block_bytes:
                raise ValueError(
                    f"range ({offset}, {size}) is not within a block of {self.block_bytes} B"
                )
            pieces.extend(self._parts(offset, size))
        return BlockPool(
            self.memory,
            regions=_merge(pieces),
            block_count=self.block_count,
            device_digest=self.device_digest,
        )

    def _parts(self, offset: int, size: int) -> list[Region]:
        """One packed range as stretches of memory of block 0."""
        parts = []
        at = 0
        for region in self.regions:
            for layer in range(region.layer_count):
                start, end = max(offset, at), min(offset + size, at + region.segment_bytes)
                if start < end:
                    parts.append(
                        Region(
                            offset=region.offset + layer * region.layer_stride + start - at,
                            layer_count=1,
                            layer_stride=0,
                            block_stride=region.block_stride,
                            segment_bytes=end - start,
                        )
                    )
                at += region.segment_bytes
        return parts

    def pieces(self, block_ids: Sequence[int], piece_bytes: int) -> list[tuple[int, int]] | None:
        """Cut the packed form of ``block_ids`` every ``piece_bytes``, in place.

        Returns ``(offset, bytes)`` per piece, or None when a piece would not be contiguous here
        (the caller then stages the bytes).
        """
        pieces: list[tuple[int, int]] = []
        room = 0  # bytes still missing in the last piece
        for block_id in block_ids:
            for offset, size in self.segments(block_id):
                at, left = offset, size
                while left:
                    if room:
                        start, have = pieces[-1]
                        if start + have != at:
                            return None
                        step = min(room, left)
                        pieces[-1] = (start, have + step)
                        room -= step
                    else:
                        step = min(piece_bytes, left)
                        pieces.append((at, step))
                        room = piece_bytes - step
                    at += step
                    left -= step
        return pieces

    def part(self, offset: int, size_bytes: int) -> ByteArray | DeviceMemory:
        """The stretch of pool memory at ``offset``, not copied."""
        if isinstance(self.memory, DeviceMemory):
            return self.memory.part(offset, size_bytes)
        return self.memory[offset : offset + size_bytes]

    def digest_of(self, pieces: Sequence[Any]) -> int:
        """The digest of these parts of the pool, in their order."""
        if isinstance(self.memory, DeviceMemory):
            assert self.device_digest is not None, "checked when an engine is made"
            return self.device_digest(pieces)
        return digest_of(pieces)

    def _check(self, block_id: int) -> None:
        assert 0 <= block_id < self.block_count, (
            f"block {block_id} of a pool of {self.block_count}: ids are checked where they come in"
        )


def _steps(region: Region, packed_at: int) -> list[tuple[slice, slice]]:
    """Cut a region, whose packed form begins at ``packed_at``, into copies.

    Returns the layers of each copy, and where they lie in the packed block.
    """
    size = region.segment_bytes
    whole = max(1, COPY_STEP_BYTES // size)
    cuts = [*range(0, region.layer_count, whole), region.layer_count]
    return [
        (slice(start, end), slice(packed_at + start * size, packed_at + end * size))
        for start, end in itertools.pairwise(cuts)
    ]


def _merge(pieces: list[Region]) -> list[Region]:
    """Join neighbours of one size at one distance: what one strided copy can do."""
    merged: list[Region] = []
    for piece in pieces:
        last = merged[-1] if merged else None
        if last is None or (last.segment_bytes, last.block_stride) != (
            piece.segment_bytes,
            piece.block_stride,
        ):
            merged.append(piece)
            continue
        stride = piece.offset - (last.offset + (last.layer_count - 1) * last.layer_stride)
        if last.layer_count > 1 and stride != last.layer_stride:
            merged.append(piece)
            continue
        merged[-1] = Region(
            offset=last.offset,
            layer_count=last.layer_count + 1,
            layer_stride=stride,
            block_stride=last.block_stride,
            segment_bytes=last.segment_bytes,
        )
    return merged

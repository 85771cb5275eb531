"""From vLLM's KV cache tensors to the byte ranges that a transfer moves.

vLLM 0.29 and later back all layers by one storage and hand out one strided view per layer,
``[blocks, heads, tokens, 2 * head_dim]`` in some order (vllm/v1/kv_cache_layout.py). Whatever the
order, the bytes of block ``b`` in layer ``l`` lie at ``base + l * layer_stride + b * block_stride``
(vllm/v1/worker/utils.py), so one registration per worker covers everything. On CPU the K and V
rows inside a block are packed in an ISA's own way: only whole blocks may be moved.
"""

from typing import TYPE_CHECKING

from pdd.connector.device_digest import DeviceDigest
from pdd.transfer.pool import BlockPool, DeviceMemory, Region, host_memory

if TYPE_CHECKING:
    import torch


def pool_of(kv_caches: "dict[str, torch.Tensor]") -> BlockPool:
    """Describe the pool behind vLLM's views.

    Raises:
        ValueError: the views do not lie in one storage with constant strides; the message names
            the layer that does not fit.
    """
    views = list(kv_caches.items())
    (first_name, first) = views[0]
    block_count = first.shape[0]
    element_bytes = first.element_size()
    block_stride = first.stride(0) * element_bytes
    segment_bytes = first[0].numel() * element_bytes
    addresses = [view.data_ptr() for _, view in views]
    layer_stride = addresses[1] - addresses[0] if len(views) > 1 else 0
    for index, (name, view) in enumerate(views):
        same_shape = view.shape == first.shape and view.stride() == first.stride()
        if not same_shape or addresses[index] != addresses[0] + index * layer_stride:
            raise ValueError(
                f"KV cache of layer {name!r} (shape {tuple(view.shape)}, strides {view.stride()}) "
                f"does not continue the layout of {first_name!r} (shape {tuple(first.shape)}, "
                f"strides {first.stride()}, layer stride {layer_stride} bytes)"
            )
    if not _block_is_contiguous(first):
        raise ValueError(
            f"one block of layer {first_name!r} is not one run of bytes: shape "
            f"{tuple(first.shape)}, strides {first.stride()}"
        )
    region = Region(
        offset=0,
        layer_count=len(views),
        layer_stride=layer_stride,
        block_stride=block_stride,
        segment_bytes=segment_bytes,
    )
    size = (len(views) - 1) * layer_stride + (block_count - 1) * block_stride + segment_bytes
    if first.device.type == "cpu":
        memory = host_memory(addresses[0], size)
        return BlockPool(memory, regions=[region], block_count=block_count)
    return BlockPool(
        DeviceMemory(addresses[0], size),
        regions=[region],
        block_count=block_count,
        device_digest=DeviceDigest(first.device),
    )


def _block_is_contiguous(view: "torch.Tensor") -> bool:
    """Whether the elements of one block fill one run of memory, in any order of axes."""
    block = view[0]
    expected = 1
    for stride, size in sorted(zip(block.stride(), block.shape, strict=True)):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True

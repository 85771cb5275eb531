"""What two workers must agree on before one may fill the other's blocks."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def pool_fingerprint(kv_caches: "dict[str, torch.Tensor]") -> dict[str, str]:
    """Layout, dtype and, on CPU, the instruction set that K and V are packed for.

    Compared key by key at join; a difference is refused by name (vLLM's own connectors do not
    compare the packing, and would then read noise).
    """
    first = next(iter(kv_caches.values()))
    return {
        "kv_layers": str(len(kv_caches)),
        "kv_dtype": str(first.dtype).removeprefix("torch."),
        "kv_block_shape": "x".join(str(size) for size in first.shape[1:]),
        "kv_block_strides": "x".join(str(stride) for stride in first.stride()[1:]),
        "kv_device": first.device.type,
        "kv_packing": _packing(first),
    }


def _packing(view: "torch.Tensor") -> str:
    if view.device.type != "cpu":
        return "none"
    # Private in vLLM 0.32; checked by a test, so that a rename is noticed there and not in a join.
    from vllm.v1.attention.backends import cpu_attn

    head_size = view.shape[-1] // 2
    return str(cpu_attn._get_attn_isa(view.dtype, view.shape[-2], head_size))

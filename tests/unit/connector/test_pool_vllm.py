"""Real torch tensors in vLLM's layouts: which bytes a block is, and what does not fit."""

import inspect
import warnings

import numpy as np
import pytest

with warnings.catch_warnings():
    # vLLM's own imports warn; here warnings are errors.
    warnings.simplefilter("ignore")
    import torch
    from vllm.v1.attention.backends import cpu_attn

from pdd.connector.fingerprint import pool_fingerprint
from pdd.connector.pool import pool_of

LAYERS, BLOCKS, HEADS, TOKENS, WIDTH = 3, 5, 2, 16, 8


def layer_major() -> dict[str, torch.Tensor]:
    """LBHNC: all blocks of layer 0, then of layer 1..."""
    storage = torch.arange(LAYERS * BLOCKS * HEADS * TOKENS * WIDTH, dtype=torch.int16)
    layers = storage.reshape(LAYERS, BLOCKS, HEADS, TOKENS, WIDTH)
    return {f"model.layers.{index}.attn": layers[index] for index in range(LAYERS)}


def block_major() -> dict[str, torch.Tensor]:
    """BLHNC: all layers of block 0, then of block 1..."""
    storage = torch.arange(LAYERS * BLOCKS * HEADS * TOKENS * WIDTH, dtype=torch.int16)
    blocks = storage.reshape(BLOCKS, LAYERS, HEADS, TOKENS, WIDTH)
    return {f"model.layers.{index}.attn": blocks[:, index] for index in range(LAYERS)}


@pytest.mark.parametrize("make", [layer_major, block_major])
def test_the_bytes_of_a_block_are_those_of_all_its_layers(make) -> None:  # type: ignore[no-untyped-def]
    views = make()
    pool = pool_of(views)
    assert pool.block_count == BLOCKS
    assert pool.block_bytes == LAYERS * HEADS * TOKENS * WIDTH * 2
    for block in range(BLOCKS):
        packed = np.zeros(pool.block_bytes, dtype=np.uint8)
        pool.gather([block], packed)
        expected = b"".join(view[block].contiguous().numpy().tobytes() for view in views.values())
        assert packed.tobytes() == expected


@pytest.mark.parametrize("make", [layer_major, block_major])
def test_writing_a_block_changes_that_block_alone(make) -> None:  # type: ignore[no-untyped-def]
    views = make()
    before = {name: view.clone() for name, view in views.items()}
    pool = pool_of(views)
    pool.scatter([3], np.zeros(pool.block_bytes, dtype=np.uint8))
    for name, view in views.items():
        assert not view[3].any()
        for block in (0, 1, 2, 4):
            assert torch.equal(view[block], before[name][block])


def test_the_two_layouts_exchange_blocks() -> None:
    source, target = layer_major(), block_major()
    packed = np.zeros(pool_of(source).block_bytes, dtype=np.uint8)
    pool_of(source).gather([1], packed)
    pool_of(target).scatter([4], packed)
    for name in source:
        assert torch.equal(target[name][4], source[name][1])


def test_heads_and_tokens_may_change_places_inside_a_block() -> None:
    storage = torch.arange(LAYERS * BLOCKS * HEADS * TOKENS * WIDTH, dtype=torch.int16)
    blocks = storage.reshape(LAYERS, BLOCKS, TOKENS, HEADS, WIDTH).transpose(2, 3)
    pool = pool_of({f"layer-{index}": blocks[index] for index in range(LAYERS)})
    assert pool.block_bytes == LAYERS * HEADS * TOKENS * WIDTH * 2


def test_one_layer_is_a_pool_too() -> None:
    views = dict(list(layer_major().items())[:1])
    assert pool_of(views).block_bytes == HEADS * TOKENS * WIDTH * 2


def odd_shape(views: dict[str, torch.Tensor]) -> None:
    views["model.layers.1.attn"] = torch.zeros(BLOCKS, HEADS, TOKENS, WIDTH * 2, dtype=torch.int16)


def odd_stride(views: dict[str, torch.Tensor]) -> None:
    views["model.layers.1.attn"] = views["model.layers.1.attn"].transpose(1, 2)


def elsewhere(views: dict[str, torch.Tensor]) -> None:
    views["model.layers.1.attn"] = views["model.layers.1.attn"].clone()
    views["model.layers.2.attn"] = views["model.layers.2.attn"].clone()


@pytest.mark.parametrize("spoil", [odd_shape, odd_stride, elsewhere])
def test_a_layer_that_does_not_fit_is_named(spoil) -> None:  # type: ignore[no-untyped-def]
    views = layer_major()
    spoil(views)
    with pytest.raises(ValueError, match=r"model\.layers\.[12]\.attn.*does not continue"):
        pool_of(views)


def test_a_block_with_holes_is_refused() -> None:
    storage = torch.zeros(LAYERS, BLOCKS, HEADS, TOKENS, WIDTH * 2, dtype=torch.int16)
    views = {f"layer-{index}": storage[index][..., :WIDTH] for index in range(LAYERS)}
    with pytest.raises(ValueError, match="not one run of bytes"):
        pool_of(views)


def test_a_fingerprint_tells_layouts_and_types_apart() -> None:
    views = {
        name: torch.zeros(BLOCKS, 2, 32, 128, dtype=torch.bfloat16) for name in ("a", "b", "c")
    }
    fingerprint = pool_fingerprint(views)
    assert fingerprint["kv_layers"] == "3"
    assert fingerprint["kv_dtype"] == "bfloat16"
    assert fingerprint["kv_block_shape"] == "2x32x128"
    assert fingerprint["kv_device"] == "cpu"
    assert fingerprint["kv_packing"] not in ("", "none")
    half = {name: view.to(torch.float16) for name, view in views.items()}
    assert pool_fingerprint(half)["kv_dtype"] == "float16"
    turned = {name: view.transpose(1, 2) for name, view in views.items()}
    assert pool_fingerprint(turned)["kv_block_strides"] != fingerprint["kv_block_strides"]


def test_the_private_function_that_names_the_packing_is_still_there() -> None:
    parameters = list(inspect.signature(cpu_attn._get_attn_isa).parameters)
    assert parameters[:3] == ["dtype", "block_size", "head_size"]
    assert cpu_attn._get_attn_isa(torch.bfloat16, 32, 64)

"""The roofline against numbers worked out by hand, and its limits."""

import pytest

from pdd.timing.roofline import Roofline, StepWork, work_of
from pdd.timing.sheets import DEVICES, MODELS, DeviceSheet, ModelSheet

TINY_MODEL = ModelSheet(
    name="tiny",
    parameter_count=1_000,
    layer_count=2,
    head_count=4,
    kv_head_count=2,
    head_size=8,
)
TINY_DEVICE = DeviceSheet(
    name="tiny",
    flops_per_s=1e6,
    memory_bytes_per_s=1e6,
    network_bytes_per_s=1e6,
    flops_efficiency=1.0,
    memory_efficiency=1.0,
    network_efficiency=1.0,
)


def roofline(**fields) -> Roofline:
    return Roofline(**{"model": TINY_MODEL, "device": TINY_DEVICE, "step_overhead_s": 0.5} | fields)


def test_kv_bytes_of_a_llama_3_70b_token_are_those_of_the_design():
    assert MODELS["llama-3-70b"].kv_bytes_per_token == 327_680


def test_a_decode_step_is_bound_by_reading_weights_and_kv():
    # 2,000 B of weights and 10 positions x 128 B of KV; 2,000 + 2,560 flops
    work = StepWork(token_count=1, kv_token_count=10, attention_pair_count=10)
    assert roofline().step_s(work) == pytest.approx(0.5 + (2_000 + 1_280) / 1e6, rel=0.5)
    slow_memory = roofline(
        device=DeviceSheet(
            name="slow memory",
            flops_per_s=1e12,
            memory_bytes_per_s=1e6,
            network_bytes_per_s=1e6,
            memory_efficiency=1.0,
        )
    )
    assert slow_memory.step_s(work) == pytest.approx(0.5 + (2_000 + 1_280) / 1e6)


def test_a_long_chunk_is_bound_by_arithmetic():
    work = work_of([(0, 100)])
    flops = 2 * 1_000 * 100 + 4 * 64 * (100 * 101 // 2)
    assert roofline().step_s(work) == pytest.approx(0.5 + flops / 1e6)


def test_a_step_without_work_takes_no_time():
    assert roofline().step_s(work_of([])) == 0.0


def test_scale_multiplies_everything_and_zero_makes_all_free():
    work = work_of([(0, 64), (7, 8)])
    assert roofline(scale=3.0).step_s(work) == pytest.approx(3 * roofline().step_s(work))
    assert roofline(scale=0.0).step_s(work) == 0.0
    assert roofline(scale=0.0).transfer_s(10) == 0.0


def test_two_devices_halve_what_is_shared():
    one, two = roofline(step_overhead_s=0.0), roofline(step_overhead_s=0.0, device_count=2)
    work = work_of([(0, 500)])
    assert two.step_s(work) == pytest.approx(one.step_s(work) / 2)
    assert two.transfer_s(500) == pytest.approx(one.transfer_s(500) / 2)


def test_chunks_of_a_prompt_attend_to_as_many_positions_as_the_prompt_at_once():
    whole = work_of([(0, 1000)])
    parts = [work_of([(start, start + 250)]) for start in range(0, 1000, 250)]
    assert sum(part.attention_pair_count for part in parts) == whole.attention_pair_count
    assert sum(part.token_count for part in parts) == whole.token_count


def test_modelled_times_of_the_target_hardware_lie_where_the_design_has_them():
    cost = Roofline(model=MODELS["llama-3-70b"], device=DEVICES["h100"], device_count=4)
    prefill_s = cost.step_s(work_of([(0, 2048)]))
    decode_s = cost.step_s(work_of([(1000, 1001)] * 32))
    assert 0.08 < prefill_s < 0.2
    assert 0.01 < decode_s < 0.03
    assert cost.transfer_s(2048) < 0.04

"""Step times from a roofline: the slower of computing and of reading memory, plus an overhead.

    step = overhead + max(flops / reachable flops, bytes / reachable bandwidth)

* flops: 2 per weight and token; attention 4 x heads x head size x layers per (token, position
  attended to).
* bytes: every weight once per step, and the KV of every position that a sequence attends to.

It leaves out what a kernel's shape costs (small batches reach less of the peak) and the exchange
between tensor-parallel devices beyond the overhead. It is for load, fault and scale work and for
comparing plans, not for promising latencies.
"""

from dataclasses import dataclass

from pdd.timing.sheets import DeviceSheet, ModelSheet


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWork:
    """What one step computes.

    ``token_count``: positions computed. ``kv_token_count``: positions whose KV is read, summed
    over sequences. ``attention_pair_count``: (position computed, position attended to), summed.
    """

    token_count: int
    kv_token_count: int
    attention_pair_count: int


def work_of(chunks: list[tuple[int, int]]) -> StepWork:
    """The work of computing positions ``start``..``end`` - 1 of each sequence, causally."""
    return StepWork(
        token_count=sum(end - start for start, end in chunks),
        kv_token_count=sum(end for _, end in chunks),
        attention_pair_count=sum((end - start) * (start + end + 1) // 2 for start, end in chunks),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Roofline:
    """A model on ``device_count`` devices that share each layer. ``scale``: factor on every time;
    0 makes all free, 1 is as modelled."""

    model: ModelSheet
    device: DeviceSheet
    device_count: int = 1
    step_overhead_s: float = 0.002
    scale: float = 1.0

    def step_s(self, work: StepWork) -> float:
        """Seconds of one step; 0 for a step without work."""
        if work.token_count == 0:
            return 0.0
        model, device = self.model, self.device
        width = model.head_count * model.head_size * model.layer_count
        flops = 2.0 * model.parameter_count * work.token_count
        flops += 4.0 * width * work.attention_pair_count
        size_bytes = model.weight_bytes + model.kv_bytes_per_token * work.kv_token_count
        compute_s = flops / (device.flops_per_s * device.flops_efficiency * self.device_count)
        memory_s = size_bytes / (
            device.memory_bytes_per_s * device.memory_efficiency * self.device_count
        )
        return self.scale * (self.step_overhead_s + max(compute_s, memory_s))

    def transfer_s(self, token_count: int) -> float:
        """Seconds in which the KV of ``token_count`` positions crosses the network, each device
        over a rail of its own."""
        reachable = self.device.network_bytes_per_s * self.device.network_efficiency
        size_bytes = self.model.kv_bytes_per_token * token_count
        return self.scale * size_bytes / (reachable * self.device_count)

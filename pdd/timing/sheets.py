"""Data sheets: what the roofline needs to know of a model and of a device.

Sources: the models' published configurations; NVIDIA's data sheets for H100 SXM and A100 SXM 80 GB
(dense bf16, without sparsity).
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSheet:
    """A dense decoder. ``element_bytes``: of weights and KV alike."""

    name: str
    parameter_count: int
    layer_count: int
    head_count: int
    kv_head_count: int
    head_size: int
    element_bytes: int = 2

    @property
    def weight_bytes(self) -> int:
        """All weights once."""
        return self.parameter_count * self.element_bytes

    @property
    def kv_bytes_per_token(self) -> int:
        """Keys and values of one position, over all layers."""
        return 2 * self.layer_count * self.kv_head_count * self.head_size * self.element_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSheet:
    """One accelerator and its share of the network. Efficiencies: the part of the peak that
    serving engines reach in practice."""

    name: str
    flops_per_s: float
    memory_bytes_per_s: float
    network_bytes_per_s: float
    flops_efficiency: float = 0.5
    memory_efficiency: float = 0.8
    network_efficiency: float = 0.85


MODELS = {
    sheet.name: sheet
    for sheet in (
        ModelSheet(
            name="llama-3-70b",
            parameter_count=70_600_000_000,
            layer_count=80,
            head_count=64,
            kv_head_count=8,
            head_size=128,
        ),
        ModelSheet(
            name="llama-3-8b",
            parameter_count=8_030_000_000,
            layer_count=32,
            head_count=32,
            kv_head_count=8,
            head_size=128,
        ),
    )
}

DEVICES = {
    sheet.name: sheet
    for sheet in (
        DeviceSheet(
            name="h100",
            flops_per_s=989e12,
            memory_bytes_per_s=3.35e12,
            network_bytes_per_s=50e9,
        ),
        DeviceSheet(
            name="a100",
            flops_per_s=312e12,
            memory_bytes_per_s=2.04e12,
            network_bytes_per_s=25e9,
        ),
    )
}

"""Which bytes of a block go from which rank to which, when the two nodes are cut differently.

Pure. A node cuts a model's KV by layers (pipeline stages) and by KV heads (tensor parallelism).
With fewer heads than ranks, vLLM gives neighbouring ranks copies of one head.

::

    3 layers, 4 heads:    TP 2                         TP 4
                          rank 0: heads 0 1    ---->   rank 0: head 0    rank 1: head 1
                          rank 1: heads 2 3    ---->   rank 2: head 2    rank 3: head 3

    2 heads, TP 4:        ranks 0, 1: head 0           ranks 2, 3: head 1   (copies)

Offsets are into the packed form of a rank's block (``pool``): the bytes of one block, laid out as
``order`` says, outermost first, with the K and V of one token of one head (``token_bytes``)
innermost. vLLM's BLHNC and LBHNC pack as ``LHN``, BHLNC as ``HLN``, BLNHC and LBNHC as ``LNH``.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from pdd.core.errors import ConfigError

ORDERS = ("LHN", "HLN", "LNH")
Ranges = tuple[tuple[int, int], ...]
"""``(offset, bytes)`` in a packed block, in the order in which they travel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardLayout:
    """How a node cuts blocks. Rank ``stage * tp_size + tp_rank`` holds ``stages[stage]``.

    ``stages``: ``(first_layer, layer_count)`` per pipeline stage.
    ``block_tokens``: tokens per block. ``token_bytes``: K and V of one token in one head and layer.
    """

    kv_head_count: int
    tp_size: int
    stages: tuple[tuple[int, int], ...]
    order: str
    block_tokens: int
    token_bytes: int

    @property
    def rank_count(self) -> int:
        """Ranks of the node."""
        return len(self.stages) * self.tp_size

    @property
    def heads_per_rank(self) -> int:
        """Heads that one rank holds, copies counted."""
        return max(1, self.kv_head_count // self.tp_size)

    def heads(self, rank: int) -> range:
        """The KV heads of a rank."""
        tp_rank = rank % self.tp_size
        first = tp_rank * self.kv_head_count // self.tp_size
        return range(first, first + self.heads_per_rank)

    def layers(self, rank: int) -> range:
        """The layers of a rank."""
        first, count = self.stages[rank // self.tp_size]
        return range(first, first + count)

    def block_bytes(self, rank: int) -> int:
        """Bytes of one packed block of a rank."""
        per_head = self.block_tokens * self.token_bytes
        return len(self.layers(rank)) * self.heads_per_rank * per_head

    def fault(self) -> str:
        """Why no engine can be cut like this; empty when one can."""
        heads, ranks = self.kv_head_count, self.tp_size
        if heads % ranks and ranks % heads:
            return f"kv_head_count {heads} and tp_size {ranks}: neither divides the other"
        if self.order not in ORDERS:
            return f"order {self.order!r} is none of {', '.join(ORDERS)}"
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairPlan:
    """What one source rank sends to one target rank, of every block."""

    source_rank: int
    target_rank: int
    source_ranges: Ranges
    target_ranges: Ranges

    @property
    def size_bytes(self) -> int:
        """Bytes per block."""
        return sum(size for _, size in self.source_ranges)


def plan_reshard(source: ShardLayout, target: ShardLayout) -> list[PairPlan]:
    """Byte ranges for every pair of ranks that exchange anything; every target byte exactly once.

    Where several source ranks hold copies of a head, target ranks are spread over them.

    Raises:
        ConfigError: the two nodes cannot exchange blocks; both values are named.
    """
    _check(source, target)
    plans = []
    for target_rank in range(target.rank_count):
        for source_rank in range(source.rank_count):
            wanted = _heads_from(source, source_rank, target, target_rank)
            layers = _overlap(source.layers(source_rank), target.layers(target_rank))
            if wanted and layers:
                plans.append(_pair(source, source_rank, target, target_rank, layers, wanted))
    return plans


def pair_key(key: str, *, source_rank: int, target_rank: int) -> str:
    """The transfer key of one pair's share of a sequence; each pair is a transfer of its own."""
    return f"{key}/{source_rank}>{target_rank}"


def _check(source: ShardLayout, target: ShardLayout) -> None:
    for side, layout in (("source", source), ("target", target)):
        fault = layout.fault()
        if fault:
            raise ConfigError(f"{side}: {fault}")
    for name in ("kv_head_count", "block_tokens", "token_bytes"):
        ours, theirs = getattr(source, name), getattr(target, name)
        if ours != theirs:
            raise ConfigError(f"{name} is {ours} at the source and {theirs} at the target")
    held = {layer for first, count in source.stages for layer in range(first, first + count)}
    wanted = {layer for first, count in target.stages for layer in range(first, first + count)}
    if held != wanted:
        raise ConfigError(
            f"layers are {_span(held)} at the source and {_span(wanted)} at the target"
        )


def _span(layers: set[int]) -> str:
    return f"{min(layers)}..{max(layers)} ({len(layers)})" if layers else "none"


def _overlap(one: range, other: range) -> range:
    return range(max(one.start, other.start), min(one.stop, other.stop))


def _heads_from(
    source: ShardLayout, source_rank: int, target: ShardLayout, target_rank: int
) -> list[int]:
    """Heads that this target rank takes from this source rank and from no other of its stage."""
    copies = max(1, source.tp_size // source.kv_head_count)
    mine = []
    for head in _overlap(source.heads(source_rank), target.heads(target_rank)):
        holders = [tp_rank for tp_rank in range(source.tp_size) if head in source.heads(tp_rank)]
        assert len(holders) == copies
        if holders[target_rank % copies] == source_rank % source.tp_size:
            mine.append(head)
    return mine


def _pair(
    source: ShardLayout,
    source_rank: int,
    target: ShardLayout,
    target_rank: int,
    layers: range,
    heads: list[int],
) -> PairPlan:
    by_token = "LNH" in (source.order, target.order)
    tokens = range(source.block_tokens) if by_token else range(1)
    size = source.token_bytes * (1 if by_token else source.block_tokens)
    source_ranges: list[tuple[int, int]] = []
    target_ranges: list[tuple[int, int]] = []
    for layer, head, token in _walk(target.order, layers, heads, tokens):
        _extend(source_ranges, _offset(source, source_rank, layer, head, token), size)
        _extend(target_ranges, _offset(target, target_rank, layer, head, token), size)
    return PairPlan(
        source_rank=source_rank,
        target_rank=target_rank,
        source_ranges=tuple(source_ranges),
        target_ranges=tuple(target_ranges),
    )


def _walk(
    order: str, layers: range, heads: list[int], tokens: range
) -> Iterator[tuple[int, int, int]]:
    """Every (layer, head, token), in the order in which they lie at the target."""
    match order:
        case "LHN":
            yield from ((la, h, n) for la in layers for h in heads for n in tokens)
        case "HLN":
            yield from ((la, h, n) for h in heads for la in layers for n in tokens)
        case _:
            yield from ((la, h, n) for la in layers for n in tokens for h in heads)


def _offset(layout: ShardLayout, rank: int, layer: int, head: int, token: int) -> int:
    """Offset of one token of one head in one layer within the rank's packed block."""
    at_layer = layer - layout.layers(rank).start
    at_head = head - layout.heads(rank).start
    tokens = layout.block_tokens
    match layout.order:
        case "LHN":
            index = (at_layer * layout.heads_per_rank + at_head) * tokens + token
        case "HLN":
            index = (at_head * len(layout.layers(rank)) + at_layer) * tokens + token
        case _:
            index = (at_layer * tokens + token) * layout.heads_per_rank + at_head
    return index * layout.token_bytes


def _extend(ranges: list[tuple[int, int]], offset: int, size: int) -> None:
    if ranges and ranges[-1][0] + ranges[-1][1] == offset:
        ranges[-1] = (ranges[-1][0], ranges[-1][1] + size)
    else:
        ranges.append((offset, size))

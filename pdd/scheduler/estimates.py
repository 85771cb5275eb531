"""What nodes, links and requests cost, measured as they run.

Every rate is a ratio of two sums that decay with time (an exponentially weighted average in which
long observations count more than short ones). A start value counts as a little work done before
the first measurement, and decays as measurements do: one that is ten times wrong is outweighed by
the first seconds of real work.
"""

from collections.abc import Hashable
from dataclasses import dataclass, field
from math import sqrt
from typing import TypeVar

from pdd.core.identity import NodeName
from pdd.scheduler.settings import EstimateSettings

_Key = TypeVar("_Key", bound=Hashable)

_START_WEIGHT_S = 0.5
"""The start value of a rate counts as half a second of work at that rate."""
_OUTPUT_BUCKET_COUNT = 32


@dataclass(slots=True, kw_only=True)
class Rate:
    """Amount per second, of one kind of work at one place."""

    half_life_s: float
    amount: float
    seconds: float
    sample_count: int = 0
    updated_s: float | None = None

    @classmethod
    def start(cls, per_s: float, *, half_life_s: float) -> "Rate":
        """Nothing measured yet."""
        return cls(half_life_s=half_life_s, amount=per_s * _START_WEIGHT_S, seconds=_START_WEIGHT_S)

    @property
    def per_s(self) -> float:
        """The estimate; above 0."""
        return self.amount / self.seconds

    def observe(self, amount: float, seconds: float, *, now_s: float) -> None:
        """``amount`` was done within ``seconds``, of which either may be 0: of two results of one
        moment, the second one adds no time."""
        assert amount >= 0.0, amount
        assert seconds >= 0.0, seconds
        if self.updated_s is not None:
            # Only an observation outweighs an older one: while nothing runs the last word holds.
            kept = max(0.5 ** ((now_s - self.updated_s) / self.half_life_s), 1e-3)
            self.amount *= kept
            self.seconds *= kept
        self.updated_s = now_s
        self.amount += amount
        self.seconds += seconds
        self.sample_count += 1


@dataclass(slots=True, kw_only=True)
class Level:
    """Mean and spread of a quantity over its latest occurrences. ``step``: weight of a new one."""

    mean: float
    variance: float = 0.0
    step: float = 0.1
    sample_count: int = 0

    def observe(self, value: float) -> None:
        """One occurrence. The first ones replace the start value quickly."""
        step = max(self.step, 1.0 / (self.sample_count + 2))
        off = value - self.mean
        self.mean += step * off
        self.variance = (1.0 - step) * (self.variance + step * off * off)
        self.sample_count += 1

    @property
    def upper(self) -> float:
        """What few exceed: two standard deviations above the mean."""
        return self.mean + 2.0 * sqrt(self.variance)


@dataclass(slots=True, kw_only=True)
class Estimates:
    """All of them. Bounded by the nodes that are members: ``forget`` a node that is not."""

    settings: EstimateSettings
    _prefill: dict[NodeName, Rate] = field(default_factory=dict)
    _decode: dict[NodeName, Rate] = field(default_factory=dict)
    _links: dict[tuple[NodeName, NodeName], Rate] = field(default_factory=dict)
    _handovers: dict[tuple[NodeName, NodeName], Level] = field(default_factory=dict)
    _outputs: dict[int, Level] = field(default_factory=dict)

    def prefill(self, node: NodeName) -> Rate:
        """Prompt tokens computed per second on a node of either role."""
        return self._rate(self._prefill, node, self.settings.prefill_tokens_per_s)

    def decode(self, node: NodeName) -> Rate:
        """Output tokens per second of one sequence."""
        return self._rate(self._decode, node, self.settings.decode_tokens_per_s)

    def link(self, source: NodeName, target: NodeName) -> Rate:
        """Bytes of KV blocks per second from a prefill to a decode node."""
        return self._rate(self._links, (source, target), self.settings.link_bytes_per_s)

    def handover(self, source: NodeName, target: NodeName) -> Level:
        """Seconds from the first token until the decode node can go on."""
        key = (source, target)
        if key not in self._handovers:
            self._handovers[key] = Level(mean=self.settings.handover_s)
        return self._handovers[key]

    def observe_transfer(
        self,
        source: NodeName,
        target: NodeName,
        *,
        size_bytes: int,
        transfer_s: float,
        waited_s: float,
        now_s: float,
    ) -> None:
        """Blocks came over in ``transfer_s`` from ticket to last block, of which the client waited
        for ``waited_s``.

        Blocks travel while the prompt is computed, so that ``size_bytes / transfer_s`` is the
        link's speed only where the transfer was the slower of the two; otherwise it is a lower
        bound.
        """
        self.handover(source, target).observe(waited_s)
        link = self.link(source, target)
        if size_bytes <= 0 or transfer_s <= 0.0:
            return
        if waited_s > 0.5 * transfer_s or size_bytes / transfer_s > link.per_s:
            link.observe(size_bytes, transfer_s, now_s=now_s)

    def output(self, max_tokens: int) -> Level:
        """Output tokens of requests that ask for about as many at most."""
        bucket = min(max_tokens.bit_length(), _OUTPUT_BUCKET_COUNT)
        if bucket not in self._outputs:
            start = min(self.settings.output_tokens, float(max_tokens))
            self._outputs[bucket] = Level(mean=start, variance=(start / 2) ** 2)
        return self._outputs[bucket]

    def expected_output_tokens(self, max_tokens: int) -> int:
        """At least 1, at most ``max_tokens``."""
        return max(min(round(self.output(max_tokens).mean), max_tokens), 1)

    def likely_output_tokens_max(self, max_tokens: int) -> int:
        """What few outputs exceed; at least 16, for a start, at most ``max_tokens``."""
        return min(max(round(self.output(max_tokens).upper), 16), max_tokens)

    def forget(self, node: NodeName) -> None:
        """It is no member any more."""
        self._prefill.pop(node, None)
        self._decode.pop(node, None)
        for table in (self._links, self._handovers):
            for key in [key for key in table if node in key]:
                del table[key]

    def _rate(self, table: dict[_Key, Rate], key: _Key, start: float) -> Rate:
        if key not in table:
            table[key] = Rate.start(start, half_life_s=self.settings.half_life_s)
        return table[key]

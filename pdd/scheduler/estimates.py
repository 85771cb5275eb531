"""What nodes, links and requests cost, measured as they run.

How a rate follows from what was done is told by ``rates``. A path that is never taken is never
measured. So a link that is not known, or was not used for ``_KNOWN_FOR_S``, is to be tried
(``wants_probe``).
"""

from dataclasses import dataclass
from math import sqrt

from pdd.core.identity import NodeName
from pdd.scheduler.rates import Column, Rate, Rates
from pdd.scheduler.settings import EstimateSettings

_Pair = tuple[NodeName, NodeName]

_OUTPUT_BUCKET_COUNT = 32
_LINK_SAMPLE_BYTES_MIN = 64 << 10
_KNOWN_FOR_S = 60.0
"""What was measured longer ago may have changed."""
_RETRY_S = 5.0
"""Between tries of a link, when as many as should do were sent and too few told anything."""


@dataclass(slots=True, kw_only=True)
class Level:
    """Mean and spread of a quantity over its latest occurrences. ``step``: weight of a new one."""

    mean: float
    variance: float = 0.0
    step: float = 0.1
    sample_count: int = 0
    updated_s: float = 0.0

    def observe(self, value: float, *, now_s: float = 0.0) -> None:
        """One occurrence. The first ones replace the start value quickly."""
        self.updated_s = now_s
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
class _Tries:
    """Of a link: how many, and when the last one was sent."""

    count: int = 0
    last_s: float = 0.0


_NO_TRIES = _Tries()


class Estimates:
    """All of them. Bounded by the nodes that are members: ``forget`` a node that is not."""

    def __init__(self, settings: EstimateSettings) -> None:
        half_life_s = settings.half_life_s
        self.settings = settings
        self._any_prefill = Rate(start_per_s=settings.prefill_tokens_per_s, half_life_s=half_life_s)
        self._any_decode = Rate(start_per_s=settings.decode_tokens_per_s, half_life_s=half_life_s)
        self._any_link = Rate(start_per_s=settings.link_bytes_per_s, half_life_s=half_life_s)
        self._any_handover = Level(mean=settings.handover_s)
        self._prefill: Rates[NodeName] = Rates(self._any_prefill)
        self._decode: Rates[NodeName] = Rates(self._any_decode)
        self._links: dict[NodeName, Rates[NodeName]] = {}
        """By source, then by target."""
        self._handovers: dict[_Pair, Level] = {}
        self._tries: dict[_Pair, _Tries] = {}
        self._outputs: dict[int, Level] = {}

    def prefill(self, node: NodeName) -> Rate:
        """Prompt tokens computed per second on a node of either role."""
        return self._prefill.of(node)

    def prefill_per_s(self, nodes: tuple[NodeName, ...]) -> Column:
        """The rates of several, to be read at once."""
        return self._prefill.per_s(nodes)

    def observe_prefill(self, node: NodeName, tokens: int, seconds: float, *, now_s: float) -> None:
        """A node computed ``tokens`` of prompts within ``seconds`` of work."""
        self._prefill.observe(node, tokens, seconds, now_s=now_s)
        self._any_prefill.observe(tokens, seconds, now_s=now_s)

    def decode(self, node: NodeName) -> Rate:
        """Output tokens per second of one sequence."""
        return self._decode.of(node)

    def observe_decode(self, node: NodeName, tokens: int, seconds: float, *, now_s: float) -> None:
        """A sequence grew by ``tokens`` within ``seconds``."""
        self._decode.observe(node, tokens, seconds, now_s=now_s)
        self._any_decode.observe(tokens, seconds, now_s=now_s)

    def link(self, source: NodeName, target: NodeName) -> Rate:
        """Bytes of KV blocks per second from one node to another."""
        return self._links_from(source).of(target)

    def links_per_s(self, source: NodeName, targets: tuple[NodeName, ...]) -> Column:
        """The rates to several, to be read at once."""
        return self._links_from(source).per_s(targets)

    def _links_from(self, source: NodeName) -> Rates[NodeName]:
        links = self._links.get(source)
        if links is None:
            links = self._links[source] = Rates(self._any_link)
        return links

    def handover(self, source: NodeName, target: NodeName) -> Level:
        """Seconds from the first token until the decode node can go on."""
        key = (source, target)
        level = self._handovers.get(key)
        if level is None:
            level = self._handovers[key] = Level(mean=self._any_handover.mean)
        elif level.sample_count == 0:
            level.mean = self._any_handover.mean
        return level

    @property
    def any_handover_s(self) -> float:
        """That time, between any two nodes."""
        return max(self._any_handover.mean, 0.0)

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
        bound. What a transfer below ``_LINK_SAMPLE_BYTES_MIN`` takes is latency: it says nothing
        about speed.
        """
        self.handover(source, target).observe(waited_s, now_s=now_s)
        self._any_handover.observe(waited_s, now_s=now_s)
        links = self._links_from(source)
        if size_bytes < _LINK_SAMPLE_BYTES_MIN or transfer_s <= 0.0:
            return
        if waited_s > 0.5 * transfer_s or size_bytes / transfer_s > links.of(target).per_s:
            links.observe(target, size_bytes, transfer_s, now_s=now_s)
            self._any_link.observe(size_bytes, transfer_s, now_s=now_s)

    def pull_s(self, source: NodeName, target: NodeName, *, size_bytes: int, now_s: float) -> float:
        """Seconds in which a prefill node (``target``) would have a prefix from a decode node: what
        a hand-over between the two takes, which is mostly round trips, and the link's time.

        What was measured long ago is not held against the link, or it would never be tried again.
        """
        link = self.link(source, target)
        per_s = link.per_s
        if link.updated_s is None or now_s - link.updated_s > _KNOWN_FOR_S:
            per_s = max(per_s, self._any_link.per_s)
        return max(self.handover(target, source).mean, 0.0) + size_bytes / per_s

    def observe_pull(
        self,
        source: NodeName,
        target: NodeName,
        *,
        size_bytes: int,
        pull_s: float,
        is_complete: bool,
        now_s: float,
    ) -> None:
        """A prefix has come, or not: then its time was lost, which counts against the link. One
        that is held no more is told at once, and costs next to nothing."""
        if size_bytes >= _LINK_SAMPLE_BYTES_MIN or not is_complete:
            self._links_from(source).observe(target, size_bytes, pull_s, now_s=now_s)

    def wants_probe(self, source: NodeName, target: NodeName, *, now_s: float) -> bool:
        """Whether a hand-over is worth a try only to know what it costs."""
        level = self.handover(source, target)
        tries = self._tries.get((source, target), _NO_TRIES)
        if level.sample_count < self.settings.sample_count_min:
            # As many at once as are needed; then, for those that told nothing, one now and again.
            return tries.count < self.settings.sample_count_min or now_s - tries.last_s > _RETRY_S
        return now_s - max(level.updated_s, tries.last_s) > _KNOWN_FOR_S

    def probes(self, source: NodeName, target: NodeName, *, now_s: float) -> None:
        """A try is on its way."""
        tries = self._tries.setdefault((source, target), _Tries())
        tries.count += 1
        tries.last_s = now_s

    def output(self, max_tokens: int) -> Level:
        """Output tokens of requests that ask for about as many at most."""
        bucket = min(max_tokens.bit_length(), _OUTPUT_BUCKET_COUNT)
        level = self._outputs.get(bucket)
        if level is None:
            start = min(self.settings.output_tokens, float(max_tokens))
            level = self._outputs[bucket] = Level(mean=start, variance=(start / 2) ** 2)
        return level

    def expected_output_tokens(self, max_tokens: int) -> int:
        """At least 1, at most ``max_tokens``."""
        return max(min(round(self.output(max_tokens).mean), max_tokens), 1)

    def likely_output_tokens_max(self, max_tokens: int) -> int:
        """What few outputs exceed; at least 16, for a start, at most ``max_tokens``."""
        return min(max(round(self.output(max_tokens).upper), 16), max_tokens)

    def forget(self, node: NodeName) -> None:
        """It is no member any more."""
        self._prefill.forget(node)
        self._decode.forget(node)
        self._links.pop(node, None)
        for links in self._links.values():
            links.forget(node)
        self._links = {source: links for source, links in self._links.items() if len(links)}
        for key in [key for key in self._handovers if node in key]:
            self._tries.pop(key, None)
            del self._handovers[key]

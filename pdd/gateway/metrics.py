"""Prometheus metrics of the front door, as its clients feel the cluster.

Labels are bounded: ``surface`` is http or grpc, ``path`` one of two and "none", ``outcome`` one
of ``OUTCOMES``, ``tenant`` one of the first ``TENANT_LABEL_COUNT_MAX`` names or
``OTHER_TENANTS``. Names and units follow vLLM's, with pdd's prefix.
"""

from bisect import bisect_left

from prometheus_client import CollectorRegistry

from pdd.core.requests import DEFAULT_TENANT, Path, RequestUsage
from pdd.gateway.plain_metrics import PlainCounter, PlainGauge, PlainHistogram
from pdd.gateway.token_metrics import GAP_BUCKETS_S, TokenMetrics

OUTCOMES = (
    "finished",
    "invalid",
    "rejected",
    "unavailable",
    "deadline",
    "failed",
    "cancelled",
    "stalled",
)
"""How a request can end: by itself, by the client's fault, for want of room, for want of a node,
by its deadline, by a failure, because its client left, because its client stopped reading."""

TENANT_LABEL_COUNT_MAX = 100
OTHER_TENANTS = "(other)"
"""Counts for every tenant that came later than so many others; no tenant can be called so."""

_TTFT_BUCKETS_S = (0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_E2E_BUCKETS_S = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 15, 30, 60, 120, 300, 600)


class GatewayMetrics:
    """The metrics of one process. Give it the registry that ``/metrics`` shows."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = CollectorRegistry() if registry is None else registry
        self.ttft = PlainHistogram(
            "pdd_time_to_first_token_seconds",
            "Request accepted until its first token was sent",
            ("path",),
            bounds=_TTFT_BUCKETS_S,
            registry=self.registry,
        )
        self.tokens = TokenMetrics(self.registry)
        self.tpot = PlainHistogram(
            "pdd_request_time_per_output_token_seconds",
            "Mean gap of a finished request: (end to end - first token) / (tokens - 1)",
            bounds=GAP_BUCKETS_S,
            registry=self.registry,
        )
        self.e2e = PlainHistogram(
            "pdd_e2e_request_latency_seconds",
            "Request accepted until its last token was sent",
            bounds=_E2E_BUCKETS_S,
            registry=self.registry,
        )
        self.requests = PlainCounter(
            "pdd_requests",
            "Requests that have ended, by how they ended",
            ("surface", "path", "outcome"),
            registry=self.registry,
        )
        self.running = PlainGauge(
            "pdd_requests_running",
            "Requests accepted and not ended",
            registry=self.registry,
        )
        self.prompt_tokens = PlainCounter(
            "pdd_prompt_tokens", "Prompt tokens of finished requests", registry=self.registry
        )
        self.cached_prompt_tokens = PlainCounter(
            "pdd_cached_prompt_tokens",
            "Prompt tokens of finished requests that did not have to be computed",
            registry=self.registry,
        )
        self.tenant_requests = PlainCounter(
            "pdd_tenant_requests",
            "Requests that have ended, by whom they belonged to",
            ("tenant", "outcome"),
            registry=self.registry,
        )
        self.tenant_tokens = PlainCounter(
            "pdd_tenant_tokens",
            "Tokens of finished requests: of the prompt, of it found in caches, of the output",
            ("tenant", "kind"),
            registry=self.registry,
        )
        self._tenant_labels: set[str] = {DEFAULT_TENANT}
        self.http_refused = PlainCounter(
            "pdd_http_refused",
            "Requests refused on HTTP's own account, before anybody looked at their body",
            ("status",),
            registry=self.registry,
        )

    def begin(self, surface: str, *, now_s: float) -> "RequestMeter":
        """Start measuring one request; ``end`` must follow exactly once."""
        self.running.add()
        return RequestMeter(self, surface, now_s)

    def tenant_label(self, tenant: str) -> str:
        """Whom a tenant is counted as."""
        if tenant in self._tenant_labels:
            return tenant
        if len(self._tenant_labels) >= TENANT_LABEL_COUNT_MAX:
            return OTHER_TENANTS
        self._tenant_labels.add(tenant)
        return tenant


class RequestMeter:
    """The stopwatch of one request. ``now_s`` is monotonic seconds."""

    __slots__ = (
        "_begun_count",
        "_first_token_s",
        "_gaps_s",
        "_last_token_s",
        "_metrics",
        "_others_last_token_s",
        "_per_token",
        "_started_s",
        "_surface",
        "ended",
        "path",
        "tenant",
        "token_count",
    )

    def __init__(self, metrics: GatewayMetrics, surface: str, now_s: float) -> None:
        self._metrics = metrics
        self._per_token = metrics.tokens
        self._surface = surface
        self._started_s = now_s
        self._first_token_s: float | None = None
        self._last_token_s: float | None = None  # of choice 0
        self._others_last_token_s: dict[int, float] = {}  # by choice
        self._begun_count = 0  # choices
        self._gaps_s = 0.0  # of all choices, added up
        self.path: Path | None = None
        self.tenant = DEFAULT_TENANT
        self.token_count = 0
        self.ended = False

    @property
    def ttft_s(self) -> float | None:
        return None if self._first_token_s is None else self._first_token_s - self._started_s

    def age_s(self, now_s: float) -> float:
        return now_s - self._started_s

    def tokens(self, count: int, now_s: float, choice_index: int = 0) -> None:
        """``count`` tokens of a choice were handed to the client's connection just now."""
        if count == 0:
            return
        if choice_index == 0:
            last_token_s, self._last_token_s = self._last_token_s, now_s
        else:
            last_token_s = self._others_last_token_s.get(choice_index)
            self._others_last_token_s[choice_index] = now_s
        if last_token_s is None:
            if self._first_token_s is None:
                self._first_token_s = now_s
                label = "none" if self.path is None else self.path.value
                self._metrics.ttft.observe(now_s - self._started_s, (label,))
            self._begun_count += 1
            self._per_token.sent(count, count - 1, 0.0)
        else:
            gap_s = now_s - last_token_s
            self._gaps_s += gap_s
            self._per_token.sent(count, count, gap_s)
        self.token_count += count

    def next_token(self, now_s: float) -> None:
        """``tokens`` with one token of an only choice, not its first; every token pays for it."""
        assert self._last_token_s is not None, "not the first token"
        gap_s = now_s - self._last_token_s
        self._last_token_s = now_s
        self._gaps_s += gap_s
        self.token_count += 1
        every = self._per_token
        every.token_count += 1
        every.gap_counts[bisect_left(GAP_BUCKETS_S, gap_s)] += 1
        every.gap_sum_s += gap_s

    def end(self, outcome: str, *, now_s: float, usage: RequestUsage | None = None) -> None:
        """Close the books on this request."""
        assert outcome in OUTCOMES, outcome
        assert not self.ended, "a request ends exactly once"
        self.ended = True
        self._metrics.running.add(-1.0)
        path = "none" if self.path is None else self.path.value
        self._metrics.requests.add(1.0, (self._surface, path, outcome))
        tenant = self._metrics.tenant_label(self.tenant)
        self._metrics.tenant_requests.add(1.0, (tenant, outcome))
        if usage is None:
            return
        self._metrics.e2e.observe(now_s - self._started_s)
        gap_count = self.token_count - self._begun_count
        if gap_count > 0:
            self._metrics.tpot.observe(self._gaps_s / gap_count)
        self._metrics.prompt_tokens.add(usage.prompt_tokens)
        self._metrics.cached_prompt_tokens.add(usage.cached_tokens)
        tokens = self._metrics.tenant_tokens
        tokens.add(usage.prompt_tokens, (tenant, "prompt"))
        tokens.add(usage.cached_tokens, (tenant, "cached"))
        tokens.add(usage.completion_tokens, (tenant, "completion"))

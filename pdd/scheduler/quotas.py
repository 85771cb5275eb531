"""What tenants may have: so many requests at a time, and so many tokens a minute.

Tokens are counted in a bucket per tenant that holds a minute's worth and fills up evenly. A request
takes what it is expected to need when it is let in: its prompt, and as much output as others like
it had. Output beyond that is taken as it grows, and at the end what it really was is settled, so
that over time no tenant has more than its limit, whatever was expected::

    let in          prompt + expected output of each choice
    grows           up to what it has said
    has ended       prompt + what it has said; nothing, if it was never given a place; the prompt,
                    if nobody knows of any output

Output nobody foresaw leaves a debt, which is filled first. A prompt longer than a minute's worth is
let in when nothing of the minute is used, and leaves a debt, too: else it would never come.

Only who leads refuses, as it alone knows all that a tenant has. A scheduler that comes to lead
knows what its own clients have used and begins with full buckets for the rest: a change of leaders
is worth at most a minute's tokens to a tenant. Bound: one bucket for each quota, and as many of
those as the cell keeps.
"""

from collections.abc import Mapping
from dataclasses import dataclass

_SECONDS = 60.0
_ROUNDING = 1e-6
"""Of a token: who waits for as long as was said is not refused for what sums of fractions lose."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """Of one tenant. None: no limit of that kind."""

    requests_max: int | None = None
    tokens_per_minute_max: int | None = None


NO_QUOTA = Quota()


class TokenBucket:
    """Tokens that a tenant has left, at most ``per_minute``; below 0 while it is in debt."""

    __slots__ = ("_as_of_s", "_level", "per_minute")

    def __init__(self, per_minute: int, *, now_s: float) -> None:
        """Full."""
        self.per_minute = per_minute
        self._level = float(per_minute)
        self._as_of_s = now_s

    def left(self, now_s: float) -> float:
        """What may be taken now."""
        self._fill(now_s)
        return self._level

    def wait_s(self, tokens: int, now_s: float) -> float:
        """In how long so many may be taken if nothing else is; infinite where never."""
        if self.per_minute == 0:
            return float("inf")
        self._fill(now_s)
        missing = min(tokens, self.per_minute) - self._level
        return missing * _SECONDS / self.per_minute if missing > _ROUNDING else 0.0

    def take(self, tokens: int, now_s: float) -> None:
        """So many were used; below 0: given back. What is more than a minute's worth goes."""
        self._fill(now_s)
        self._level = min(self._level - tokens, float(self.per_minute))

    def change(self, per_minute: int, now_s: float) -> None:
        """Another limit. Raised: what was used of the former minute stays used. Lowered: as large a
        part of the minute as before is left or owed, for tokens of a larger minute would take
        hours, or days, to come back."""
        self._fill(now_s)
        if per_minute >= self.per_minute:
            self._level += per_minute - self.per_minute
        else:
            self._level *= per_minute / self.per_minute
        self.per_minute = per_minute

    def _fill(self, now_s: float) -> None:
        passed_s = max(now_s - self._as_of_s, 0.0)
        self._as_of_s = max(now_s, self._as_of_s)
        gained = passed_s * self.per_minute / _SECONDS
        self._level = min(self._level + gained, float(self.per_minute))


class Quotas:
    """Of all tenants, and what they have used."""

    __slots__ = ("_buckets", "_limits")

    def __init__(self) -> None:
        self._limits: Mapping[str, Quota] = {}
        self._buckets: dict[str, TokenBucket] = {}

    def __bool__(self) -> bool:
        return bool(self._limits)

    def of(self, tenant: str) -> Quota:
        """A tenant that is not named has none."""
        return self._limits.get(tenant, NO_QUOTA)

    def bucket(self, tenant: str) -> TokenBucket | None:
        """None: its tokens are not counted."""
        return self._buckets.get(tenant)

    def change(self, limits: Mapping[str, Quota], now_s: float) -> None:
        """These are all there are."""
        self._limits = limits
        former, self._buckets = self._buckets, {}
        for tenant, quota in limits.items():
            if (per_minute := quota.tokens_per_minute_max) is None:
                continue
            bucket = former.get(tenant)
            if bucket is None:
                bucket = TokenBucket(per_minute, now_s=now_s)
            elif bucket.per_minute != per_minute:
                bucket.change(per_minute, now_s)
            self._buckets[tenant] = bucket

"""How fast work of one kind is done, by node or by link.

Every rate is a ratio of two sums that decay with time (an exponentially weighted average in which
long observations count more than short ones). A start value counts as a little work, half as much
after each measurement: one that is ten times wrong is forgotten after a handful of them. What
little is known of is believed to be like the others of its kind.
"""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

_Key = TypeVar("_Key", bound=Hashable)

Column: TypeAlias = npt.NDArray[np.float64]

_START_WEIGHT_S = 0.5
"""The start value of a rate counts as half a second of work at that rate."""
_SECONDS_MIN = 1e-6
_PER_S_MIN = 1e-3
"""What has done nothing at all so far: others divide by it."""
_FEW_SAMPLES = 8
_COLUMN_COUNT_MAX = 4
"""Sets of keys that are asked for again and again: the nodes of each role."""


@dataclass(slots=True, kw_only=True)
class Rate:
    """Amount per second, of one kind of work at one place."""

    start_per_s: float
    half_life_s: float
    amount: float = 0.0
    seconds: float = 0.0
    sample_count: int = 0
    updated_s: float | None = None

    @property
    def start_weight_s(self) -> float:
        """Seconds of work that the start value still counts as."""
        return 0.0 if self.sample_count > 20 else _START_WEIGHT_S * 0.5**self.sample_count

    @property
    def per_s(self) -> float:
        """The estimate; above 0."""
        if self.sample_count > 20:
            return max(self.amount / max(self.seconds, _SECONDS_MIN), _PER_S_MIN)
        weight_s = self.start_weight_s
        return (self.amount + self.start_per_s * weight_s) / (self.seconds + weight_s)

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


class Rates(Generic[_Key]):
    """Those of one kind. Bounded by the keys that are not forgotten."""

    def __init__(self, any_rate: Rate) -> None:
        """``any_rate``: of all of the kind together; whoever made it tells it what it sees."""
        self._any = any_rate
        self._rates: dict[_Key, Rate] = {}
        self._columns: list[_RateColumn[_Key]] = []

    def __len__(self) -> int:
        return len(self._rates)

    def of(self, key: _Key) -> Rate:
        """The one of a node or link; what little is known of is believed to be like the others."""
        rate = self._rates.get(key)
        if rate is None:
            rate = Rate(start_per_s=self._any.per_s, half_life_s=self._any.half_life_s)
            self._rates[key] = rate
        elif rate.sample_count < _FEW_SAMPLES:
            rate.start_per_s = self._any.per_s
        return rate

    def observe(self, key: _Key, amount: float, seconds: float, *, now_s: float) -> None:
        """See ``Rate.observe``."""
        rate = self.of(key)
        rate.observe(amount, seconds, now_s=now_s)
        for column in self._columns:
            column.copy(key, rate)

    def per_s(self, keys: tuple[_Key, ...]) -> Column:
        """``of(key).per_s`` of each. Quick for a tuple that was asked for before."""
        for column in self._columns:
            if column.keys is keys:
                return column.values(self._any)
        column = _RateColumn(keys)
        for key, rate in self._rates.items():
            column.copy(key, rate)
        self._columns = [column, *self._columns[: _COLUMN_COUNT_MAX - 1]]
        return column.values(self._any)

    def forget(self, key: _Key) -> None:
        """It is gone."""
        self._rates.pop(key, None)
        self._columns.clear()


class _RateColumn(Generic[_Key]):
    """``per_s`` of some keys. Of those of which little is known it follows from what is known of
    all, so that the sums are kept for them; where more is known these are 0."""

    def __init__(self, keys: tuple[_Key, ...]) -> None:
        self.keys = keys
        self._index = {key: position for position, key in enumerate(keys)}
        count = len(keys)
        self._values = np.zeros(count)
        self._is_little = np.ones(count, dtype=np.bool_)
        self._amounts, self._seconds = np.zeros(count), np.zeros(count)
        self._weights_s = np.full(count, _START_WEIGHT_S)
        self._little_count = count
        self._any_per_s = -1.0

    def copy(self, key: _Key, rate: Rate) -> None:
        """The rate has changed, or is new here."""
        position = self._index.get(key)
        if position is None:
            return
        if rate.sample_count < _FEW_SAMPLES:
            self._amounts[position], self._seconds[position] = rate.amount, rate.seconds
            self._weights_s[position] = rate.start_weight_s
            self._any_per_s = -1.0
            return
        self._values[position] = rate.per_s
        if self._is_little[position]:
            self._is_little[position] = False
            self._little_count -= 1

    def values(self, any_rate: Rate) -> Column:
        """To be read only, and at once."""
        if self._little_count and self._any_per_s != (any_per_s := any_rate.per_s):
            self._any_per_s = any_per_s
            sums = self._amounts + any_per_s * self._weights_s
            np.divide(
                sums, self._seconds + self._weights_s, out=self._values, where=self._is_little
            )
        return self._values

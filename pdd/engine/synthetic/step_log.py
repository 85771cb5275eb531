"""When each token was made: a file that ``pdd bench gateway`` reads, one line per step.

``{"at_ns": ..., "new": {"KEY": number, ...}, "of": [number, ...]}``: at that time of
CLOCK_MONOTONIC the step's tokens, one of each of these sequences, were handed over. A sequence gets
its number with its first token on this node; the number of a sequence that has ended is not used
again. A line is written before the tokens leave.
"""

import json
from collections.abc import Iterable
from pathlib import Path


class StepLog:
    """Writes one file anew. Bound: a line per step; for measurements, not for production."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w", encoding="ascii")
        self._numbers: dict[str, int] = {}
        self._count = 0

    def add(self, at_ns: int, keys: Iterable[str], ended: Iterable[str]) -> None:
        """One step. ``ended``: those of ``keys`` that are over on this node."""
        new: dict[str, int] = {}
        numbers: list[int] = []
        for key in keys:
            number = self._numbers.get(key)
            if number is None:
                number = self._numbers[key] = new[key] = self._count
                self._count += 1
            numbers.append(number)
        for key in ended:
            self.forget(key)
        if numbers:
            self._file.write(json.dumps({"at_ns": at_ns, "new": new, "of": numbers}) + "\n")
            self._file.flush()

    def forget(self, key: str) -> None:
        """The sequence is over; unknown keys are ignored."""
        self._numbers.pop(key, None)

    def close(self) -> None:
        """Nothing more is added."""
        self._file.close()


def read_step_log(path: Path) -> dict[str, list[int]]:
    """Nanoseconds of every token of each sequence of one node, in order.

    A line that is not whole yet is left out: its tokens have not left either.
    """
    names: dict[int, str] = {}
    times: dict[str, list[int]] = {}
    with path.open(encoding="ascii") as lines:
        for line in lines:
            if not line.endswith("\n"):
                break
            step = json.loads(line)
            names |= {number: key for key, number in step["new"].items()}
            for number in step["of"]:
                times.setdefault(names[number], []).append(step["at_ns"])
    return times

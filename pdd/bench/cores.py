"""Which cores what is measured runs on, and what a measurement was limited by. Linux.

On one machine the nodes and the generator push the scheduler out of its caches, which no client on
another machine would do. So, where there are two cores or more, the scheduler's process tree has
the first one for itself, and everything else shares the others.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import psutil

_FULL_FRACTION = 0.85


@dataclass(frozen=True, slots=True, kw_only=True)
class CorePlan:
    """``scheduler`` and ``others`` are equal where there is nothing to divide."""

    scheduler: tuple[int, ...]
    others: tuple[int, ...]


def plan_cores(usable: Sequence[int], *, divide: bool) -> CorePlan:
    """The first for the scheduler; all for all without ``divide``, or of one core."""
    cores = tuple(sorted(usable))
    if not divide or len(cores) < 2:
        return CorePlan(scheduler=cores, others=cores)
    return CorePlan(scheduler=cores[:1], others=cores[1:])


@contextmanager
def kept_to(cores: Sequence[int]) -> Iterator[None]:
    """This thread, and every process and thread that it starts."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def move_tree(pid: int, cores: Sequence[int]) -> None:
    """Every thread of a process and of its descendants; what they start later goes with them."""
    root = psutil.Process(pid)
    for process in (root, *root.children(recursive=True)):
        try:
            threads = process.threads()
        except psutil.NoSuchProcess:
            continue  # it has ended just now, as may a thread below
        for thread in threads:
            with suppress(ProcessLookupError):
                os.sched_setaffinity(thread.id, cores)


def limited_by(
    busy_cores: Mapping[str, float], *, core_count: int, reached: float, offered: float
) -> str:
    """What kept the rate below what was offered, in words; "" where nothing did.

    Args:
        busy_cores: CPU seconds per second, by the name of a process that cannot use more than one.
    """
    if reached >= 0.99 * offered:
        return ""
    name, most = max(busy_cores.items(), key=lambda item: item[1])
    total = sum(busy_cores.values())
    told = ", ".join(f"{one} {cores:.2f}" for one, cores in sorted(busy_cores.items()))
    if most >= _FULL_FRACTION:
        return f"{name}, which has one thread (cores busy: {told})"
    if total >= _FULL_FRACTION * core_count:
        return f"this machine's {core_count} cores (busy: {told})"
    return f"waiting: neither a process nor the machine is full (cores busy: {told})"

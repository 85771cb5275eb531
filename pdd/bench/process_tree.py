"""CPU time and memory of a process and everything below it, by the kernel's accounts (Linux)."""

from dataclasses import dataclass

import psutil

from pdd.core.errors import PddError


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """``cpu_s``: user and system, of children that have ended too; in steps of 10 ms.
    ``rss_bytes``: resident, pages that several processes share counted in each."""

    cpu_s: float
    rss_bytes: int
    process_count: int


def tree_usage(pid: int) -> Usage:
    """Of ``pid`` and its descendants.

    Raises:
        PddError: ``pid`` has ended.
    """
    try:
        root = psutil.Process(pid)
        processes = [root, *root.children(recursive=True)]
        root.status()
    except psutil.NoSuchProcess as error:
        raise PddError(f"process {pid} has ended while it was measured; see its log") from error
    cpu_s, rss_bytes, count = 0.0, 0, 0
    for process in processes:
        try:
            times, memory = process.cpu_times(), process.memory_info()
        except psutil.NoSuchProcess:
            continue  # ended just now: its parent has its time from here on
        cpu_s += times.user + times.system + times.children_user + times.children_system
        rss_bytes += memory.rss
        count += 1
    return Usage(cpu_s=cpu_s, rss_bytes=rss_bytes, process_count=count)

"""What became of one operation. The answers of an entry travel back to whoever proposed it."""

from enum import IntEnum


class Status(IntEnum):
    """Numbers are in results on the wire: never reuse one."""

    APPLIED = 0
    DUPLICATE = 1  # known already; nothing changed
    GAP = 2  # applied, but something before it is missing: ask the node for a snapshot
    STALE = 3  # of a former life; nothing changed
    UNKNOWN = 4  # names a node that is not here: a node must join first
    FULL = 5  # a bound is reached; nothing changed
    SNAPSHOT_DROPPED = 6  # parts out of order: ask for a new snapshot

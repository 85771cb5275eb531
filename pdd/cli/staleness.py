"""Reads that one scheduler serves from its own copy, as they may be old: all commands say so alike.

A warning on stderr, and ``stale_reason`` in each object that ``-o json`` prints.
"""

from collections.abc import Mapping
from typing import Any

from pdd.cli.output import say


class Staleness:
    """What one command has read. Call it with each answer's reason."""

    def __init__(self) -> None:
        self.reason = ""
        """Of the last answer that may be old; empty while none was."""

    def __call__(self, reason: str) -> None:
        """Warn, once as long as the reason is the same: some commands ask again and again."""
        if reason != self.reason:
            say(f"warning: {reason}")
        self.reason = reason

    def mark(self, entry: Mapping[str, Any]) -> dict[str, Any]:
        """With ``stale_reason``, which is None for what is not old."""
        return {**entry, "stale_reason": self.reason or None}

"""One line of the doctor's list."""

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """How bad it is."""

    OK = "ok"
    WARNING = "warning"  # works, slower or with less than it could
    FAULT = "fault"  # does not work


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """``text``: what is. ``advice``: what to do next; empty where nothing needs doing."""

    name: str
    level: Level
    text: str
    advice: str = ""


def ok(name: str, text: str) -> Check:
    """Nothing to do."""
    return Check(name=name, level=Level.OK, text=text)


def warning(name: str, text: str, advice: str) -> Check:
    """Works, and could be better."""
    return Check(name=name, level=Level.WARNING, text=text, advice=advice)


def fault(name: str, text: str, advice: str) -> Check:
    """Does not work."""
    return Check(name=name, level=Level.FAULT, text=text, advice=advice)

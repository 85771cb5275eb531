"""What a rule between keys says when it is broken."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenRelation:
    """``keys`` (``section.key``) do not fit together."""

    keys: tuple[str, ...]
    message: str

"""Write TOML. The standard library only reads it; this writes what our configuration holds."""

import json
import math
from collections.abc import Mapping
from enum import Enum
from pathlib import Path

from pdd.config.types import HostPort


def to_toml(tables: Mapping[str, Mapping[str, object]]) -> str:
    """A document of plain tables, one level deep; values as ``value_text`` takes them."""
    parts = [
        "\n".join([f"[{name}]", *(f"{key_text(k)} = {value_text(v)}" for k, v in table.items())])
        for name, table in tables.items()
        if table
    ]
    return "\n\n".join(parts) + "\n"


def key_text(key: str) -> str:
    """A bare key where that is allowed, else a quoted one."""
    is_bare = key.isascii() and key.replace("_", "").replace("-", "").isalnum()
    return key if is_bare else value_text(key)


def value_text(value: object) -> str:
    """One value in TOML.

    Raises:
        TypeError: TOML has no such value (None above all).
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Enum):
        return value_text(value.value)
    if isinstance(value, str | Path | HostPort):
        # JSON's escapes are TOML's; DEL is the one character that only TOML wants escaped.
        return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else str(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(value_text(item) for item in value)}]"
    if isinstance(value, Mapping):
        pairs = (f"{key_text(str(key))} = {value_text(item)}" for key, item in value.items())
        return f"{{ {', '.join(pairs)} }}" if value else "{}"
    raise TypeError(f"TOML has no value for {value!r}")

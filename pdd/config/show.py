"""Show a configuration: effective values with their origin, and the documented example file."""

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

from pdd.config.load import Loaded
from pdd.config.schema import fields_of, sections
from pdd.config.sections import Config, NodeSection
from pdd.config.toml_text import value_text
from pdd.core.identity import Role

_EXAMPLE_HEADER = """\
# Every key of pdd's configuration, with its default. A file needs only what differs, and
# name and role. Flags override environment variables (PDD_SECTION__KEY, for example
# PDD_ENGINE__MAX_NUM_SEQS=4), which override this file.
#
#   pdd config check FILE     names every fault at once
#   pdd config show FILE      effective values and where each came from
"""
_REQUIRED_IN_EXAMPLE = {"node.name": "decode-0", "node.role": "decode"}
_LEFT_OUT = {"node.state_dir": "/var/lib/pdd/decode-0"}
"""Keys whose default depends on other keys: shown commented out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One effective value."""

    name: str
    value: object
    """As JSON has it."""
    origin: str


def rows(loaded: Loaded) -> Iterator[Row]:
    """Every key in the order of the schema."""
    values = loaded.config.model_dump(mode="json", by_alias=True)
    for section in sections():
        for key in fields_of(section):
            name = f"{section}.{key}"
            yield Row(name=name, value=values[section][key], origin=loaded.origin(name))


def example_file() -> str:
    """The text of ``config/pdd.toml``."""
    parts = [_EXAMPLE_HEADER]
    example = Config(node=NodeSection(name="decode-0", role=Role.DECODE)).model_dump(
        mode="json", by_alias=True
    )
    for section, model in sections().items():
        lines = [f"[{section}]", *_comment(model.__doc__ or "")]
        values = example[section]
        for key, field in fields_of(section).items():
            name = f"{section}.{key}"
            value = _REQUIRED_IN_EXAMPLE.get(name, _LEFT_OUT.get(name, values[key]))
            lines += ["", *_comment(field.description or "")]
            lines.append(f"{'# ' if name in _LEFT_OUT else ''}{key} = {value_text(value)}")
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def _comment(text: str) -> list[str]:
    one_line = " ".join(text.split()).replace("``", "")
    return [f"# {line}" for line in textwrap.wrap(one_line, width=96)]

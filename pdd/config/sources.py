"""Where settings come from. Each source yields settings that know their origin, and faults.

Precedence, lowest first: defaults, file, environment (``PDD_SECTION__KEY``), flags.
"""

import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pdd.config.schema import fields_of, from_text, sections, split_name, unknown
from pdd.core.errors import ConfigError

ENVIRONMENT_PREFIX = "PDD_"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One key with one value, as one source gave it. Not validated yet."""

    section: str
    key: str
    value: object
    origin: str

    @property
    def name(self) -> str:
        return f"{self.section}.{self.key}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """A command-line override: ``spelling`` is what the operator typed, for messages."""

    name: str
    text: str
    spelling: str


@dataclass(slots=True)
class Source:
    """What one source said."""

    settings: list[Setting]
    faults: list[str]


def fault_line(origin: str, message: str) -> str:
    """``ORIGIN: MESSAGE``; a message does not begin with the key that ``--set`` has just named."""
    return f"{origin}: {message.removeprefix(origin.removeprefix('--set ') + ': ')}"


def parse_set(text: str) -> Flag:
    """Read the argument of ``--set section.key=value``.

    Raises:
        ConfigError: not of that form.
    """
    name, equals, value = text.partition("=")
    if not equals or name.count(".") < 1 or not all(name.split(".")):
        raise ConfigError(f"--set {text}: is written --set section.key=value")
    return Flag(name=name, text=value, spelling=f"--set {name}")


def read_file(path: Path) -> Source:
    """Read a TOML file. A file that cannot be read or parsed is one fault."""
    try:
        with path.open("rb") as file:
            document = tomllib.load(file)
    except OSError as error:
        return Source([], [f"{path}: {error.strerror}"])
    except UnicodeDecodeError as error:
        return Source([], [f"{path}: is not UTF-8 text at byte {error.start}"])
    except tomllib.TOMLDecodeError as error:
        return Source([], [f"{path}: {error}"])
    source = Source([], [])
    for section, table in document.items():
        if section not in sections():
            source.faults.append(f"{path}: {unknown(section, list(sections()), noun='section')}")
        elif not isinstance(table, dict):
            source.faults.append(
                f"{path}: {section} is a section; write [{section}] above its keys"
            )
        else:
            _add_table(source, section, table, origin=str(path))
    return source


def read_environment(environment: Mapping[str, str]) -> Source:
    """Take ``PDD_SECTION__KEY``. Variables without the double underscore are not settings."""
    source = Source([], [])
    for variable in sorted(environment):
        if variable.startswith(ENVIRONMENT_PREFIX) and "__" in variable:
            name = variable.removeprefix(ENVIRONMENT_PREFIX).lower().replace("__", ".")
            _add_text(source, name, environment[variable], origin=f"${variable}")
    return source


def read_flags(flags: Iterable[Flag]) -> Source:
    """Take flags, in the order given: the last one wins."""
    source = Source([], [])
    for flag in flags:
        _add_text(source, flag.name, flag.text, origin=flag.spelling)
    return source


def _add_table(source: Source, section: str, table: dict[str, object], *, origin: str) -> None:
    for key, value in table.items():
        inner = f"{section}.{key}"
        if inner in sections() and isinstance(value, dict):
            _add_table(source, inner, value, origin=origin)
        else:
            _add(source, section, key, value, origin=origin)


def _add(source: Source, section: str, key: str, value: object, *, origin: str) -> None:
    if key in fields_of(section):
        source.settings.append(Setting(section=section, key=key, value=value, origin=origin))
    else:
        fault = unknown(key, list(fields_of(section)), noun=f"key in [{section}]:")
        source.faults.append(f"{origin}: {fault}")


def _add_text(source: Source, name: str, text: str, *, origin: str) -> None:
    section, key = split_name(name)
    if section not in sections():
        source.faults.append(f"{origin}: {unknown(section, list(sections()), noun='section')}")
        return
    if section == "engine" and key.startswith("extra."):
        value: object = {key.removeprefix("extra."): _literal(text)}
        _add(source, section, "extra", value, origin=origin)
        return
    try:
        value = from_text(section, key, text) if key in fields_of(section) else text
    except ValueError as error:
        source.faults.append(fault_line(origin, f"{name}: {error}"))
        return
    _add(source, section, key, value, origin=origin)


def _literal(text: str) -> object:
    """An engine argument has no type that we know: JSON if it parses as such, else text."""
    try:
        return json.loads(text)
    except ValueError:
        return text

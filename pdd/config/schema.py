"""Look-ups in the schema: which sections and keys exist, and does one value fit one key."""

import json
from difflib import get_close_matches
from functools import cache
from typing import Annotated, Any, get_origin

from pydantic import TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from pdd.config.sections import Config, Section


@cache
def sections() -> dict[str, type[Section]]:
    """Section classes by name, in the order of the file."""
    found: dict[str, type[Section]] = {}
    for name, field in Config.model_fields.items():
        assert isinstance(field.annotation, type), name
        assert issubclass(field.annotation, Section), name
        found[field.alias or name] = field.annotation
    return found


def split_name(name: str) -> tuple[str, str]:
    """``(section, key)`` of ``section.key``; the section may have a dot itself. A section that does
    not exist is taken to end at the first dot."""
    section, _, key = name.partition(".")
    inner, _, rest = key.partition(".")
    return (f"{section}.{inner}", rest) if f"{section}.{inner}" in sections() else (section, key)


def fields_of(section: str) -> dict[str, FieldInfo]:
    """Keys of a section."""
    return sections()[section].model_fields


@cache
def _adapter(section: str, key: str) -> TypeAdapter[Any]:
    field = fields_of(section)[key]
    annotation: Any = field.annotation
    for metadata in field.metadata:
        annotation = Annotated[annotation, metadata]
    return TypeAdapter(annotation)


def value_of(section: str, key: str, text: str) -> object:
    """What a text after ``--set`` means for a key. Raises ValueError: why it does not fit."""
    try:
        value: object = _adapter(section, key).validate_python(from_text(section, key, text))
    except ValidationError as error:
        raise ValueError("; ".join(_sentence(fault) for fault in error.errors())) from error
    return value


def faults_of(section: str, key: str, value: object) -> list[str]:
    """Why ``value`` does not fit the key; empty when it does."""
    try:
        _adapter(section, key).validate_python(value)
    except ValidationError as error:
        return [_sentence(fault) for fault in error.errors()]
    return []


def _sentence(fault: Any) -> str:
    where = "".join(f"[{part}]" for part in fault["loc"] if part != "[key]")
    message = str(fault["msg"]).removeprefix("Value error, ").removeprefix("Assertion failed, ")
    return f"{f'item {where}: ' if where else ''}{message} (got {fault['input']!r})"


def from_text(section: str, key: str, text: str) -> object:
    """Turn the text of an environment variable or flag into what the key's type is read from.

    Lists are written ``a,b`` or as JSON, tables as JSON; all else is left to validation.

    Raises:
        ValueError: broken JSON.
    """
    container = get_origin(fields_of(section)[key].annotation)
    if container is dict or (container is tuple and text.lstrip().startswith("[")):
        try:
            return json.loads(text)
        except ValueError as error:
            raise ValueError(f"is not JSON: {error} (got {text!r})") from error
    if container is tuple:
        return [part.strip() for part in text.split(",") if part.strip()]
    return text


def unknown(word: str, known: list[str], *, noun: str) -> str:
    """The fault for a section or key that does not exist, with the nearest one that does."""
    near = get_close_matches(word, known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}"
    return f"unknown {noun} {word!r}; {hint}"

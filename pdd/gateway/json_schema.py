"""A cheap look at a JSON schema, so that nonsense is refused at the door and not by an engine.

It checks the shape of the keywords that grammars are built from, not every rule of the
standard; what passes here may still be more than a grammar backend can do.
"""

import re
import warnings
from collections.abc import Iterator

from pdd.core.errors import InvalidRequest
from pdd.gateway.json_text import shorten

MAX_DEPTH = 100
"""Deeper schemas are refused: grammar compilers recurse."""

_TYPES = ("object", "array", "string", "number", "integer", "boolean", "null")
_SCHEMA_VALUES = ("additionalProperties", "not", "if", "then", "else", "contains", "propertyNames")
_SCHEMA_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_SCHEMA_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_COUNTS = (
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "minProperties",
    "maxProperties",
)
_NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")


def check_json_schema(schema: object, *, field: str, depth: int = 0) -> None:
    """Raise InvalidRequest, naming the path, if ``schema`` cannot be a JSON schema."""
    if isinstance(schema, bool):
        return
    if not isinstance(schema, dict):
        raise _fault(field, f"must be an object or a boolean, not {shorten(schema)}")
    if depth >= MAX_DEPTH:
        raise _fault(field, f"is nested deeper than {MAX_DEPTH} levels")
    _check_type(schema.get("type"), field=f"{field}.type")
    _check_plain_keywords(schema, field=field)
    for path, subschema in _subschemas(schema, field=field):
        check_json_schema(subschema, field=path, depth=depth + 1)


def check_regex(pattern: object, *, field: str) -> None:
    """Raise InvalidRequest unless ``pattern`` is a non-empty regular expression."""
    if not isinstance(pattern, str) or not pattern:
        raise _fault(field, f"must be a non-empty string, not {shorten(pattern)}")
    try:
        with warnings.catch_warnings():  # a doubtful pattern is the client's affair
            warnings.simplefilter("ignore")
            re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise _fault(field, f"is not a regular expression: {error}") from error


def _subschemas(schema: dict[str, object], *, field: str) -> Iterator[tuple[str, object]]:
    for key in _SCHEMA_VALUES:
        if key in schema:
            yield f"{field}.{key}", schema[key]
    items = schema.get("items")
    if isinstance(items, list):  # the tuple form of older drafts
        yield from ((f"{field}.items.{index}", item) for index, item in enumerate(items))
    elif items is not None:
        yield f"{field}.items", items
    for key in _SCHEMA_MAPS:
        if key in schema:
            value = schema[key]
            if not isinstance(value, dict):
                raise _fault(f"{field}.{key}", f"must be an object, not {shorten(value)}")
            yield from ((f"{field}.{key}.{name}", item) for name, item in value.items())
    for key in _SCHEMA_LISTS:
        if key in schema:
            value = schema[key]
            if not isinstance(value, list) or not value:
                raise _fault(f"{field}.{key}", f"must be a non-empty list, not {shorten(value)}")
            yield from ((f"{field}.{key}.{index}", item) for index, item in enumerate(value))


def _check_type(value: object, *, field: str) -> None:
    names = value if isinstance(value, list) else [value]
    if value is None:
        return
    if not names or any(not isinstance(name, str) or name not in _TYPES for name in names):
        raise _fault(field, f"must be one of {', '.join(_TYPES)}, not {shorten(value)}")


def _check_plain_keywords(schema: dict[str, object], *, field: str) -> None:
    if "enum" in schema and (not isinstance(schema["enum"], list) or not schema["enum"]):
        raise _fault(f"{field}.enum", f"must be a non-empty list, not {shorten(schema['enum'])}")
    if "required" in schema:
        required = schema["required"]
        if not isinstance(required, list) or any(not isinstance(name, str) for name in required):
            raise _fault(f"{field}.required", f"must list names, not {shorten(required)}")
    if "pattern" in schema:
        check_regex(schema["pattern"], field=f"{field}.pattern")
    if "$ref" in schema and not isinstance(schema["$ref"], str):
        raise _fault(f"{field}.$ref", f"must be a string, not {shorten(schema['$ref'])}")
    for key in _COUNTS:
        value = schema.get(key, 0)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise _fault(
                f"{field}.{key}", f"must be an integer of at least 0, not {shorten(value)}"
            )
    for key in _NUMBERS:
        value = schema.get(key, 0)
        # Draft 4 wrote the exclusive bounds as booleans.
        boolean_is_fine = key.startswith("exclusive")
        if not isinstance(value, (int, float)) or (isinstance(value, bool) and not boolean_is_fine):
            raise _fault(f"{field}.{key}", f"must be a number, not {shorten(value)}")


def _fault(field: str, what: str) -> InvalidRequest:
    return InvalidRequest(f"{field}: {what}", field=field, code="invalid_schema")

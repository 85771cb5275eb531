"""``response_format`` (OpenAI) and ``structured_outputs`` (vLLM) as one ``Grammar``."""

import json

from pdd.core.errors import InvalidRequest
from pdd.core.sampling import Grammar
from pdd.gateway.json_schema import check_json_schema, check_regex
from pdd.gateway.json_text import shorten

MAX_GRAMMAR_CHARS = 100_000
"""A longer grammar, expression or schema is refused: compiling it would stall an engine."""

_KINDS = ("json", "regex", "choice", "grammar", "json_object")
_NEUTRAL = {
    "disable_any_whitespace": (None, False),
    "disable_additional_properties": (None, False),
    "whitespace_pattern": (None,),
    "structural_tag": (None,),
}


def grammar_from(
    *, response_format: dict[str, object] | None, structured_outputs: dict[str, object] | None
) -> Grammar | None:
    """The constraint that a request asks for, or None.

    Raises:
        InvalidRequest: both fields ask for one, or what they ask for makes no sense.
    """
    from_format = _from_response_format(response_format) if response_format is not None else None
    if structured_outputs is None:
        return from_format
    if from_format is not None:
        raise InvalidRequest(
            "structured_outputs: cannot be used together with response_format; send one of them",
            field="structured_outputs",
        )
    return _from_structured_outputs(structured_outputs)


def _from_response_format(value: dict[str, object]) -> Grammar | None:
    kind = value.get("type")
    match kind:
        case "text":
            return None
        case "json_object":
            return Grammar(kind="json_object")
        case "json_schema":
            holder = value.get("json_schema")
            field = "response_format.json_schema"
            if not isinstance(holder, dict):
                raise _fault(field, f"must be an object with a schema, not {shorten(holder)}")
            return _schema_grammar(holder.get("schema"), field=f"{field}.schema")
        case _:
            raise _fault(
                "response_format.type",
                f"must be text, json_object or json_schema, not {shorten(kind)}",
            )


def _from_structured_outputs(value: dict[str, object]) -> Grammar:
    for name, item in value.items():
        if name in _KINDS:
            continue
        if name not in _NEUTRAL:
            raise _fault(f"structured_outputs.{name}", "is not a known field")
        if item not in _NEUTRAL[name]:
            raise _fault(f"structured_outputs.{name}", "is not available")
    chosen = [name for name in _KINDS if value.get(name) not in (None, False)]
    if len(chosen) != 1:
        named = ", ".join(chosen) or "none"
        raise _fault("structured_outputs", f"needs exactly one of {', '.join(_KINDS)}, got {named}")
    kind = chosen[0]
    item = value[kind]
    field = f"structured_outputs.{kind}"
    match kind:
        case "json":
            return _schema_grammar(_parsed(item, field=field), field=field)
        case "json_object":
            if item is not True:
                raise _fault(field, f"must be true or false, not {shorten(item)}")
            return Grammar(kind="json_object")
        case "choice":
            return _choice_grammar(item, field=field)
        case "regex":
            check_regex(_bounded(item, field=field), field=field)
            return Grammar(kind="regex", value=_bounded(item, field=field))
        case _:
            return Grammar(kind="grammar", value=_bounded(item, field=field))


def _schema_grammar(schema: object, *, field: str) -> Grammar:
    if not isinstance(schema, dict):
        raise _fault(field, f"must be a JSON schema object, not {shorten(schema)}")
    check_json_schema(schema, field=field)
    try:
        text = json.dumps(schema, allow_nan=False)
    except ValueError as error:  # a number such as 1e999 parses to infinity
        raise _fault(field, f"holds a number that JSON cannot say: {error}") from error
    return Grammar(kind="json_schema", value=_bounded(text, field=field))


def _choice_grammar(value: object, *, field: str) -> Grammar:
    if (
        not isinstance(value, list)
        or not value
        or any(not isinstance(item, str) or not item for item in value)
    ):
        raise _fault(field, f"must be a non-empty list of non-empty strings, not {shorten(value)}")
    return Grammar(kind="choice", value=_bounded(json.dumps(value), field=field))


def _parsed(value: object, *, field: str) -> object:
    """vLLM takes a schema as an object or as its text."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(_bounded(value, field=field))
    except (ValueError, RecursionError) as error:
        raise _fault(field, f"is not valid JSON: {error}") from error


def _bounded(value: object, *, field: str) -> str:
    if not isinstance(value, str) or not value:
        raise _fault(field, f"must be a non-empty string, not {shorten(value)}")
    if len(value) > MAX_GRAMMAR_CHARS:
        raise _fault(field, f"has {len(value)} characters; at most {MAX_GRAMMAR_CHARS} are taken")
    return value


def _fault(field: str, what: str) -> InvalidRequest:
    return InvalidRequest(f"{field}: {what}", field=field)

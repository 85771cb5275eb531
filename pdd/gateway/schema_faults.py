"""pydantic's findings as one error that names field, bound and value."""

from collections.abc import Mapping
from functools import cache
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from pdd.core.errors import InvalidRequest
from pdd.gateway.json_text import shorten
from pdd.gateway.other_fields import without_other_fields

MAX_FAULTS_TOLD = 5
"""More faults than that in one body are not listed one by one."""

Schema = TypeVar("Schema", bound=BaseModel)


def validate(schema: type[Schema], body: Mapping[str, object]) -> Schema:
    """Check a parsed body against an endpoint's schema.

    Raises:
        InvalidRequest: ``field`` is the path of the first fault, the message lists them.
    """
    kept = without_other_fields(body, known=_known_fields(schema))
    try:
        return schema.model_validate(kept)
    except ValidationError as error:
        raise _invalid(error) from error


@cache  # of the endpoints' few schemas
def _known_fields(schema: type[BaseModel]) -> frozenset[str]:
    return frozenset(schema.model_fields)


def _invalid(error: ValidationError) -> InvalidRequest:
    faults = error.errors(include_url=False, include_context=False)
    told = [
        f"{_path(fault['loc'])}: {_sentence(fault['msg'])} (got {_value(fault)})"
        for fault in faults[:MAX_FAULTS_TOLD]
    ]
    if len(faults) > MAX_FAULTS_TOLD:
        told.append(f"and {len(faults) - MAX_FAULTS_TOLD} more")
    first = faults[0]
    code = "missing_required_parameter" if first["type"] == "missing" else "invalid_value"
    return InvalidRequest("; ".join(told), field=_path(first["loc"]), code=code)


def _path(location: tuple[int | str, ...]) -> str:
    return ".".join(
        str(part) if len(str(part)) <= 40 else f"{str(part)[:40]}..." for part in location
    )


def _sentence(message: str) -> str:
    return message.removeprefix("Value error, ")


def _value(fault: Mapping[str, object]) -> str:
    return "nothing" if fault["type"] == "missing" else shorten(fault["input"])

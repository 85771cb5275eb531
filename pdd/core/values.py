"""Values that nobody changes, at the price of those that anybody may."""

from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

Made = TypeVar("Made")


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def frozen(made: type[Made]) -> type[Made]:
    """``dataclass(frozen=True, slots=True, kw_only=True)`` for what is made per request or token.

    That no field is set anew is seen to by the type checker only. To have the interpreter see to it
    as well, each field is set through a call: making a value takes twice as long then, and that was
    a twentieth of what a short request costs a scheduler's Python.
    """
    return dataclass(slots=True, kw_only=True, unsafe_hash=True)(made)

"""Values are equal by what they hold, and can be kept in sets."""

from dataclasses import field, replace

import pytest

from pdd.core.values import frozen


@frozen
class Pair:
    left: int
    right: list[int] | tuple[int, ...] = field(default_factory=tuple)


def test_values_that_hold_the_same_are_one_in_a_set() -> None:
    assert {Pair(left=1), Pair(left=1), replace(Pair(left=2), left=1)} == {Pair(left=1)}


def test_a_value_has_no_fields_but_its_own_and_none_without_a_name() -> None:
    with pytest.raises(AttributeError):
        Pair(left=1).middle = 2  # type: ignore[attr-defined]
    with pytest.raises(TypeError):
        Pair(1)  # type: ignore[misc]


def test_only_the_type_checker_keeps_its_fields_from_being_set_anew() -> None:
    pair = Pair(left=1)
    pair.left = 2  # type: ignore[misc]  # were this allowed, it would be reported as not needed
    assert pair.left == 2

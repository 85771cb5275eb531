"""The proof of the proof: every known way to break the core is noticed by a named test."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from pdd.replication.errors import StorageError
from tests.simulation.raft.mutants import MUTANTS, Mutant


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_mutant_is_killed(mutant: Mutant) -> None:
    with ExitStack() as stack:
        mutant.apply(stack)
        with pytest.raises((AssertionError, StorageError, pytest.fail.Exception)):
            mutant.killed_by()


@pytest.mark.parametrize(
    "killer",
    {m.killed_by: None for m in MUTANTS if m.killed_by.__name__ != "simulator"},
    ids=lambda killer: killer.__name__,
)
def test_its_killer_passes_on_the_unbroken_core(killer: object) -> None:
    killer()  # type: ignore[operator]

"""What a scheduler's driver needs of the state that the schedulers of a cell agree on."""

from collections.abc import Callable
from typing import Protocol

from pdd.cell.codec import decode_result, encode_operations
from pdd.cell.machine import CellMachine
from pdd.cell.operations import Operation, Status
from pdd.cell.state import CellState
from pdd.core.errors import RemoteError

Follower = Callable[[CellState], None]


class AgreementUnavailable(RemoteError):
    """Nobody could say that it is agreed. It may be, or may yet; saying it again does no harm."""


class NotSayable(AgreementUnavailable):
    """No scheduler would take it, now or later. The message says which field and its limit."""


class Agreement(Protocol):
    """The hard part of the cell's state, as far as this process has seen it."""

    @property
    def state(self) -> CellState:
        """To be read only. It may be a moment old, or older: see ``fault``."""
        ...

    @property
    def fault(self) -> str:
        """Why ``state`` does not follow what is agreed on at the moment; empty while it does."""
        ...

    async def say(self, operation: Operation) -> Status:
        """Returns when it is committed, on disk, and in ``state``.

        Raises:
            NotSayable: it is malformed: saying it again is in vain.
            AgreementUnavailable: it was not agreed on in time, or nobody here has seen that it was.
        """
        ...

    def follow(self, follower: Follower) -> None:
        """Call it now, and after each change of ``state``, on the event loop."""
        ...


class AgreementOfOne:
    """In memory, for as long as the process lives: for tests and simulations."""

    def __init__(self) -> None:
        self._machine = CellMachine()
        self._followers: list[Follower] = []

    @property
    def state(self) -> CellState:
        """See ``Agreement``."""
        return self._machine.state

    @property
    def fault(self) -> str:
        """See ``Agreement``."""
        return ""

    async def say(self, operation: Operation) -> Status:
        """See ``Agreement``."""
        index = self._machine.index + 1
        applied = decode_result(self._machine.apply(index, encode_operations(operation)))
        for follower in self._followers:
            follower(self._machine.state)
        return applied.statuses[0]

    def follow(self, follower: Follower) -> None:
        """See ``Agreement``."""
        self._followers.append(follower)
        follower(self._machine.state)

"""Says to the other schedulers where the requests are that this one holds (`pdd.cell.sequences`).

What changes with a step of the core is said some tens of milliseconds later, in batches, and waited
for by nobody. It is said again, all of it, when another scheduler asks, when this one finds a
leader, and a second after something that was said may have been lost. That may have been the word
of an end, as it may for all that a former life has said: what is not said again is adrift then, and
``HOLDER_MEMORY_S`` later it is over.
"""

import asyncio
import time
from collections.abc import Callable

from pdd.cell.sequences import (
    HolderLost,
    RowsAsked,
    SequenceEnded,
    SequenceHeld,
    SequenceTable,
    SoftOperation,
)
from pdd.core.identity import RequestId
from pdd.core.requests import GenerateRequest
from pdd.daemon.group_desk import HOLDER_MEMORY_S
from pdd.scheduler.core import SchedulerCore
from pdd.scheduler.effects import Announce, Complete, Effect, Fail, Submit
from pdd.scheduler.events import Event, OutputRecovered, RequestArrived, RequestCancelled
from pdd.scheduler.requests import Phase

_SAY_AGAIN_S = 1.0
_HOW_CHARS_MAX = 200

_Place = tuple[int, str, str]
"""Attempt, prefill node, decode node."""


class SequenceDesk:
    """Of one scheduler of a group. All calls on the event loop."""

    def __init__(
        self,
        *,
        name: str,
        core: SchedulerCore,
        table: SequenceTable,
        say: Callable[[SoftOperation], None],
    ) -> None:
        """``name``: this scheduler's. ``table``: what was said by all, itself included."""
        self._name = name
        self._core = core
        self._table = table
        self._say = say
        self._said: dict[RequestId, _Place] = {}
        self._again: asyncio.TimerHandle | None = None
        self._forgetting: asyncio.TimerHandle | None = None
        self._set_adrift()  # what a former life has said

    # --- what happens here -------------------------------------------------------------------

    def stepped(self, event: Event, effects: list[Effect]) -> None:
        """An event has been decided and obeyed."""
        if isinstance(event, RequestArrived):
            self._note(event.request.request_id, "cancelled")
        elif isinstance(event, RequestCancelled):
            self._note(event.request_id, "cancelled")
        elif isinstance(event, OutputRecovered):
            self._note_recovered(event)
        for effect in effects:
            match effect:
                case Submit():
                    self._note(effect.request.request_id, "cancelled")
                case Announce() if effect.request_id in self._core.requests:
                    self._note(effect.request_id, "cancelled")
                case Complete():
                    self._note(effect.request_id, "finished")
                case Fail():
                    how = f"failed: {effect.error}"[:_HOW_CHARS_MAX]
                    self._note(effect.request_id, how)
                case _:
                    pass
        if isinstance(event, OutputRecovered):
            self._note(event.held.request.request_id, "cancelled")

    def _note(self, request_id: RequestId, how_if_over: str) -> None:
        request = self._core.requests.get(request_id)
        if request is None or request.holder:
            if self._said.pop(request_id, None) is not None and request is None:
                self._say(
                    SequenceEnded(
                        request_id=request_id, holder=self._name, how=how_if_over, at_ms=_now_ms()
                    )
                )
            return
        is_placed = request.phase is not Phase.QUEUED
        if not is_placed and not request.request.resume_key:
            return  # it has nothing to be found by but its id, which no client knows yet
        place = (
            request.generation,
            (request.prefill or "") if is_placed else "",
            (request.decode or "") if is_placed else "",
        )
        if self._said.get(request_id) != place:
            self._said[request_id] = place
            self._say_held(request_id, place)

    def _note_recovered(self, event: OutputRecovered) -> None:
        """One that had ended before it came here is this scheduler's all the same: it keeps what
        was said, and who comes with the key elsewhere is to be sent here, not to begin anew."""
        wanted = event.held.request
        if wanted.request_id in self._core.requests or wanted.request_id in self._said:
            return
        place = (event.held.generation, event.held.prefill_node or "", event.node)
        self._say_row(wanted, place)
        self._said[wanted.request_id] = place  # until its end is said, below

    def _say_held(self, request_id: RequestId, place: _Place) -> None:
        self._say_row(self._core.requests[request_id].request, place)

    def _say_row(self, wanted: GenerateRequest, place: _Place) -> None:
        generation, prefill, decode = place
        self._say(
            SequenceHeld(
                request_id=wanted.request_id,
                holder=self._name,
                tenant=wanted.tenant,
                key=wanted.resume_key,
                generation=generation,
                prefill=prefill,
                decode=decode,
                at_ms=_now_ms(),
            )
        )

    # --- what was missed ---------------------------------------------------------------------

    def say_all(self) -> None:
        """Where everything is that this scheduler holds."""
        for request_id, place in self._said.items():
            self._say_held(request_id, place)

    def heard(self) -> None:
        """Something was said by somebody; it is in the table."""
        if any(by != self._name for by in self._table.take_asked()):
            self.say_all()
        if self._table.has_gap:
            self._table.has_gap = False
            self._say(RowsAsked(by=self._name))

    def lost(self) -> None:
        """What this scheduler has said may not have come to anybody."""
        if self._again is None:
            self._again = asyncio.get_running_loop().call_later(_SAY_AGAIN_S, self._say_again)

    def _say_again(self) -> None:
        self._again = None
        self._set_adrift()
        self.say_all()
        self._say(RowsAsked(by=self._name))

    def _set_adrift(self) -> None:
        """What this scheduler is said to have, until it says so again."""
        self.holder_lost(self._name, is_final=False)
        if self._forgetting is not None:
            self._forgetting.cancel()
        loop = asyncio.get_running_loop()
        self._forgetting = loop.call_later(HOLDER_MEMORY_S, self._forget_adrift)

    def _forget_adrift(self) -> None:
        self._forgetting = None
        self._say(HolderLost(holder=self._name, is_final=True, at_ms=_now_ms()))
        self.say_all()  # a release before this one ends all of them

    def holder_lost(self, scheduler: str, is_final: bool) -> None:
        """What is known here of a scheduler: of another one as the leader, or of its own past."""
        self._say(HolderLost(holder=scheduler, is_final=False, at_ms=_now_ms()))
        if is_final:  # the word before may have been lost
            self._say(HolderLost(holder=scheduler, is_final=True, at_ms=_now_ms()))


def _now_ms() -> int:
    return time.time_ns() // 1_000_000

"""Between a scheduler's driver and what the schedulers agree on.

What is agreed becomes events of the core; what this scheduler has to say without waiting for it is
said here.
"""

import asyncio
from collections.abc import Callable

import structlog

from pdd.cell.operations import MemberLeft, Operation
from pdd.cell.state import CellState
from pdd.config.sections import Config
from pdd.core.identity import NodeName
from pdd.core.ports import Clock
from pdd.daemon.agreed_cordons import AgreedCordons
from pdd.daemon.agreed_roles import AgreedRoles
from pdd.daemon.agreed_settings import AgreedSettings
from pdd.daemon.agreement import Agreement, AgreementUnavailable
from pdd.scheduler.core import SchedulerCore
from pdd.scheduler.events import Event

log = structlog.get_logger(__name__)

_ABSENT_MEMORY_S = 24 * 3600.0


class AgreementDesk:
    """All calls on the event loop."""

    def __init__(
        self,
        *,
        core: SchedulerCore,
        agreement: Agreement,
        clock: Clock,
        step: Callable[[Event], None],
        config: Config | None = None,
    ) -> None:
        """``step``: tells the core. ``config``: what agreed overrides are laid over; None: nobody
        looks at them, nor at quotas."""
        self._core = core
        self._agreement = agreement
        self._clock = clock
        self._step = step
        self._cordons = AgreedCordons()
        self._roles = AgreedRoles()
        self._settings = AgreedSettings(config) if config is not None else None
        self._said: set[asyncio.Task[None]] = set()
        self._absent_since_s = clock()

    def follow(self) -> None:
        """Tell the core what is agreed, now and after each change."""
        self._agreement.follow(self._on_agreed)

    def say(self, operation: Operation) -> None:
        """In the background: nobody waits for it, and it is said again if it matters."""

        async def say() -> None:
            try:
                await self._agreement.say(operation)
            except AgreementUnavailable as error:
                log.info("not_agreed_on", operation=type(operation).__name__, reason=str(error))

        task = asyncio.get_running_loop().create_task(say())
        self._said.add(task)
        task.add_done_callback(self._said.discard)

    def forget_absent(self) -> None:
        """Members that have not come back since this scheduler started, or since the last look:
        their boot epochs fence nothing that could still be under way."""
        if self._clock() - self._absent_since_s < _ABSENT_MEMORY_S:
            return
        self._absent_since_s = self._clock()
        members = self._agreement.state.members
        for name in members.names():
            if NodeName(name) not in self._core.nodes:
                member = members[name]
                self.say(MemberLeft(node=name, uuid=member.uuid, boot_epoch=member.boot_epoch))

    def _on_agreed(self, state: CellState) -> None:
        for event in self._cordons.events(state):
            self._step(event)
        for role_event in self._roles.events(state):
            self._step(role_event)
        if self._settings is not None:
            for settings_event in self._settings.events(state):
                self._step(settings_event)

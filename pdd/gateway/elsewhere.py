"""Requests of the other schedulers of a group, as the front door asks for them."""

from collections.abc import Sequence
from typing import Protocol

from pdd.core.errors import PddError
from pdd.core.identity import RequestId
from pdd.core.ports import Inference
from pdd.core.requests import GenerateRequest
from pdd.gateway.run import RunName


class Remote(Inference, Protocol):
    """A request that another scheduler has. As ``Inference`` it runs nothing: it shows what the
    other one shows. If that one is lost, its sink fails with SchedulerStopping."""

    @property
    def request(self) -> GenerateRequest:
        """What was asked for, with the note that makes its answer."""
        ...

    @property
    def holder(self) -> str:
        """The scheduler that has it."""
        ...


class Elsewhere(Protocol):
    """What ``Runs`` asks of the other schedulers. None of it is asked for a request that has no key
    and is not looked for."""

    async def claim(self, name: RunName, resume_key: bytes) -> Remote | None:
        """A key that is not known here. None: it is for this scheduler to run.

        Raises:
            PddError: nobody can tell now, or the run of that key was refused.
        """
        ...

    async def confirm(self, resume_key: bytes) -> None:
        """Right before the request of a claimed key begins: it took time to prepare, and who leads
        may have changed. Returns at once if not.

        Raises:
            NodeUnavailable: another scheduler has got the key meanwhile, or nobody can tell now.
        """
        ...

    async def find(
        self, request_id: RequestId, *, tenant: str, known_token_counts: Sequence[int] = ()
    ) -> Remote | None:
        """A request by its id; None: no other scheduler is known to have it, or it does not answer.
        ``known_token_counts``: of each choice, what is known of it already: no frame spans that.

        Raises:
            PddError: the scheduler that has or had it says that it cannot be continued.
        """
        ...

    async def end(self, request_id: RequestId, *, tenant: str, holder: str = "") -> bool:
        """Have a request cancelled by the scheduler that has it: ``holder``, or the one that is
        known to. Returns when it is over there. False: no other scheduler is known to have it.

        Raises:
            NodeUnavailable: that scheduler did not answer in time. It may be over or not.
            PddError: why it could not be ended.
        """
        ...

    def explain(self, request_id: RequestId, *, tenant: str) -> PddError | None:
        """Why it cannot be continued here; None: nobody has heard of it."""
        ...

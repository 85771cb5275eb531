"""A run that shows what another scheduler's run shows."""

from collections.abc import Callable

from pdd.core.errors import PddError, SchedulerStopping
from pdd.core.frames import Frame
from pdd.core.identity import RequestId
from pdd.core.requests import Ended, Plan
from pdd.gateway.run import Run

MIRROR_LINGER_S = 1.0
"""How long it is kept without a listener: the other scheduler keeps the request as long as it is
configured to, from then on."""


class MirrorSink:
    """Implements ``Sink``: all goes to the run, but that its scheduler was lost."""

    def __init__(self, run: Run, *, holder: str, lost: Callable[[Run, PddError], None]) -> None:
        """``holder``: the other scheduler."""
        self._run = run
        self._lost = lost
        run.holder = holder

    def planned(self, plan: Plan) -> None:
        self._run.planned(plan)

    def tokens(self, frame: Frame) -> None:
        self._run.tokens(frame)

    def token(
        self, request_id: RequestId, index: int, token_id: int, text_offset: int, text: str
    ) -> None:
        self._run.token(request_id, index, token_id, text_offset, text)

    def ended(self, ended: Ended) -> None:
        self._run.ended(ended)

    def failed(self, error: PddError) -> None:
        if isinstance(error, SchedulerStopping):
            self._lost(self._run, error)
        else:
            self._run.failed(error)

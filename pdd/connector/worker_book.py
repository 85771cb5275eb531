"""What a worker half knows of its jobs, and when vLLM is to hear of each. Pure.

A *source* is a prefill job whose blocks are read, or a loan: the cached prefix of a decode job that
waits for its blocks, which ends with that wait. A *target* is a job that waits for blocks.

Each is reported exactly once (vLLM asserts on a second time):

* *sent*, a prefill job: the transfer engine says that nothing reads its blocks any more **and**
  vLLM has announced the request as finished **and** nothing writes a pulled prefix to them.
* *received*, a decode job: every block is verified or given up, nothing can write to them any
  more, nothing reads what it lends **and** the first token is known (or the request was cancelled
  meanwhile); a prefill job that pulls: as a decode job, but there is no first token to wait for.
"""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field

from pdd.connector.metadata import TargetBlocks
from pdd.transfer.values import (
    SourceReleased,
    TargetCancelled,
    TargetCompleted,
    TargetFailed,
    TransferEvent,
)

EARLY_FIRST_TOKENS_MAX = 4096
"""First tokens whose decode job has not reserved blocks yet. At the bound the oldest is dropped;
its job then runs into its deadline and is planned anew."""

GONE_TARGETS_MAX = 4096
"""Decode jobs that are over, remembered so that a late first token is not kept for them. At the
bound the oldest is forgotten; a token that is later still counts among the early ones."""

Outcome = TargetCompleted | TargetFailed | TargetCancelled


@dataclass(slots=True)
class Target:
    """``request_id``: vLLM's. ``block_ids``: to be written, from the prompt's ``first_index``."""

    request_id: str
    first_index: int
    block_ids: tuple[int, ...]
    is_pull: bool
    opened_s: float
    outcome: Outcome | None = None
    is_cancelled: bool = False


@dataclass(slots=True)
class _Source:
    request_id: str
    is_loan: bool = False
    is_released: bool = False
    is_finished: bool = False


@dataclass(slots=True, kw_only=True)
class Received:
    """``request_ids``: to report to vLLM. ``outcomes``: to report to the daemon. ``first_tokens``:
    of those that go on, by request."""

    request_ids: set[str] = field(default_factory=set)
    outcomes: list[tuple[Target, Outcome]] = field(default_factory=list)
    first_tokens: dict[str, int] = field(default_factory=dict)


class WorkerBook:
    """Of one rank. Jobs are named by their keys. Not for several threads at once."""

    def __init__(self) -> None:
        self._sources: dict[str, _Source] = {}
        self._source_keys: dict[str, str] = {}
        self._targets: dict[str, Target] = {}
        self._first_tokens: OrderedDict[str, int] = OrderedDict()
        self._gone_targets: OrderedDict[str, None] = OrderedDict()

    # --- what happens ------------------------------------------------------------------------

    def open_source(self, key: str, request_id: str) -> None:
        """A prefill job's blocks will be read."""
        self._sources[key] = _Source(request_id=request_id)
        self._source_keys[request_id] = key

    def open_target(self, target: TargetBlocks, *, now_s: float) -> None:
        """A job waits for blocks, and may lend some meanwhile."""
        self._gone_targets.pop(target.key, None)
        self._targets[target.key] = Target(
            request_id=target.request_id,
            first_index=target.first_index,
            block_ids=target.block_ids,
            is_pull=target.is_pull,
            opened_s=now_s,
        )
        if target.lent_block_ids is not None:
            self._sources[target.key] = _Source(request_id=target.request_id, is_loan=True)

    def cancel_target(self, key: str) -> bool:
        """Nobody wants the job any more; whether it waits for blocks."""
        self._forget_first_token(key)
        target = self._targets.get(key)
        if target is None:
            return False
        target.is_cancelled = True
        return True

    def first_token(self, key: str, token_id: int) -> None:
        """Of a decode job, which may not have reserved blocks yet."""
        if key in self._gone_targets:
            return
        self._first_tokens[key] = token_id
        while len(self._first_tokens) > EARLY_FIRST_TOKENS_MAX:
            self._first_tokens.popitem(last=False)

    def finished(self, request_ids: Iterable[str]) -> None:
        """vLLM has announced these as finished."""
        for request_id in request_ids:
            key = self._source_keys.get(request_id)
            if key is not None:
                self._sources[key].is_finished = True

    def note(self, event: TransferEvent) -> str | None:
        """From the transfer engine. Returns the key of a loan that is over with it."""
        match event:
            case SourceReleased():
                source = self._sources.get(event.key)
                if source is not None:
                    source.is_released = True
            case TargetCompleted() | TargetFailed() | TargetCancelled():
                target = self._targets.get(event.key)
                if target is not None and target.outcome is None:
                    target.outcome = event
                    return event.key if self.lends(event.key) else None
        return None

    # --- what holds --------------------------------------------------------------------------

    def lends(self, key: str) -> bool:
        """Whether a decode job's loan can still be read."""
        source = self._sources.get(key)
        return source is not None and source.is_loan and not source.is_released

    @property
    def is_waiting(self) -> bool:
        """Whether anything is open whose end vLLM is to hear of."""
        return bool(self._targets or self._sources)

    def is_read(self, key: str) -> bool:
        """Whether a source's blocks may still be read."""
        source = self._sources.get(key)
        return source is not None and not source.is_released

    # --- what vLLM is to hear ----------------------------------------------------------------

    def take_sent(self) -> set[str]:
        """Requests whose blocks are free, since the last call."""
        done = [
            key
            for key, source in self._sources.items()
            if source.is_released and source.is_finished and key not in self._targets
        ]
        sent = set()
        for key in done:
            request_id = self._sources.pop(key).request_id
            del self._source_keys[request_id]
            sent.add(request_id)
        return sent

    def take_received(self) -> Received:
        """Jobs that wait no longer, since the last call."""
        received = Received()
        for key, target in list(self._targets.items()):
            if target.outcome is None:
                continue
            if target.is_pull:
                del self._targets[key]
                received.request_ids.add(target.request_id)
                if not target.is_cancelled:
                    received.outcomes.append((target, target.outcome))
                continue
            loan = self._sources.get(key)
            if loan is not None and not loan.is_released:
                continue
            # A cancelled job needs only quiescence, which every outcome means; one may have been
            # on its way when the cancellation came.
            if not target.is_cancelled and key not in self._first_tokens:
                continue
            del self._targets[key]
            if loan is not None:
                del self._sources[key]
            token = self._forget_first_token(key)
            received.request_ids.add(target.request_id)
            if token is not None and not target.is_cancelled:
                received.first_tokens[target.request_id] = token
                received.outcomes.append((target, target.outcome))
        return received

    def _forget_first_token(self, key: str) -> int | None:
        """The token, if it is known; one that comes later is not kept."""
        self._gone_targets[key] = None
        while len(self._gone_targets) > GONE_TARGETS_MAX:
            self._gone_targets.popitem(last=False)
        return self._first_tokens.pop(key, None)

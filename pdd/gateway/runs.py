"""Runs that outlive their clients: by request id, and by the key that their clients gave them.

A request with an ``Idempotency-Key`` belongs to this table, not to its client: whoever sends it
again with the same key and the same body, or asks for its stream by its id, is told everything
from where it wants, then follows (``run``).

What is kept, and for how long:

* A run whose clients have all left goes on for ``linger_s``, for one of them to come back; then it
  is cancelled like any other. (A request without a key is cancelled at once.)
* A run that has ended well is kept for ``age_s``. At ``ENDED_RUN_COUNT_MAX`` of them, or
  ``ENDED_TOKEN_COUNT_MAX`` tokens together, the oldest are forgotten: the same key runs anew then.
* A run that failed is forgotten at once: sending it again is what the key is for.
* A request that a node held for a scheduler that is gone is a run from then on, as if its clients
  had just left (``adopt``).
* A request that another scheduler has is a run here for as long as somebody looks, and shows what
  is shown there; a key is run by one scheduler of a group at a time (``Elsewhere``). If the other
  one is lost, nodes are asked for it as above, and whoever looks sees a pause.
* What became of the last ``GONE_COUNT_MAX`` runs that are not kept any more is remembered in words.
"""

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable

from pdd.core.errors import (
    InvalidRequest,
    NodeUnavailable,
    PddError,
    RequestFailed,
    RequestGone,
    UnknownRequest,
)
from pdd.core.identity import RequestId
from pdd.core.ports import Clock, Inference, Sink
from pdd.core.requests import GenerateRequest
from pdd.gateway.elsewhere import Elsewhere, Remote
from pdd.gateway.job import Job
from pdd.gateway.json_text import shorten
from pdd.gateway.mirror import MIRROR_LINGER_S, MirrorSink
from pdd.gateway.open_requests import stopping_error
from pdd.gateway.run import Run, RunName
from pdd.gateway.takeover import from_note, resume_key

ENDED_RUN_COUNT_MAX = 1000
ENDED_TOKEN_COUNT_MAX = 1_000_000
"""Counts prompt and output tokens and log probabilities; some 50 to 100 bytes each."""
GONE_COUNT_MAX = 10_000
_KEY_WAIT_S = 0.3
_SEEK_AGAIN_S = 0.2

Seek = Callable[[RequestId, bytes], bool]


class Runs:
    """The table of one process, for HTTP and gRPC. Keys are apart for each endpoint and tenant."""

    def __init__(
        self,
        *,
        inference: Inference,
        clock: Clock,
        age_s: float,
        linger_s: float,
        wait_s: float = 0.0,
        seek: Seek | None = None,
        elsewhere: Elsewhere | None = None,
    ) -> None:
        """
        Args:
            wait_s: how long what is not known is waited for: nodes may be about to tell it.
            seek: asks nodes for what another scheduler, which is gone, has left there, by id or
                else by key; whether any is asked. None: there is no other scheduler.
            elsewhere: the other schedulers. None: there is none.
        """
        self._seek = seek
        self._elsewhere = elsewhere
        self._settling: dict[tuple[str, str, str], asyncio.Event] = {}
        """Keys of which it is being found out whose they are; told when it is."""
        self._adrift: set[asyncio.Task[None]] = set()
        self._wait_s = wait_s
        self._settled_s = clock() + wait_s
        self._adopted = asyncio.Event()
        self._inference = inference
        self._clock = clock
        self._age_s = age_s
        self._linger_s = linger_s
        self._by_key: dict[tuple[str, str, str], Run] = {}
        self._by_id: dict[RequestId, Run] = {}
        self._ended: OrderedDict[RequestId, float] = OrderedDict()  # and when, oldest first
        self._ended_token_count = 0
        self._gone: OrderedDict[RequestId, tuple[str, str]] = OrderedDict()  # tenant, why

    def __len__(self) -> int:
        return len(self._by_id)

    def join(
        self, name: RunName, request_id: RequestId, *, prepare: Callable[[], Awaitable[Job]]
    ) -> Run:
        """The run of this name's key; if there is none, begun with ``prepare`` as ``request_id``.

        Raises:
            InvalidRequest: the key is known, for a request with another body.
        """
        self._forget_old()
        run = self._by_key.get((name.path, name.tenant, name.key))
        if run is None:
            run = Run(
                name,
                request_id,
                inference=self._inference,
                linger_s=self._linger_s,
                over=self._over,
            )
            self._by_key[name.path, name.tenant, name.key] = run
            self._by_id[request_id] = run
            run.begin(self._confirmed(name, prepare))
        elif run.name.digest != name.digest:
            raise InvalidRequest(
                f"idempotency-key {shorten(name.key)} was used for a request with another body "
                f"within the last {self._age_s:g} s; use a new key for a new request",
                field="idempotency-key",
                code="idempotency_key_reused",
            )
        return run

    def _confirmed(
        self, name: RunName, prepare: Callable[[], Awaitable[Job]]
    ) -> Callable[[], Awaitable[Job]]:
        elsewhere = self._elsewhere
        if elsewhere is None or not name.key:
            return prepare

        async def confirmed() -> Job:
            job = await prepare()
            await elsewhere.confirm(resume_key(name))
            return job

        return confirmed

    def opened(self) -> None:
        """From now on nodes and clients can come."""
        self._settled_s = self._clock() + self._wait_s

    async def settle(self, name: RunName) -> None:
        """Right before ``join``. A key that is not known here may be that of a request which a node
        holds, or another scheduler runs; a scheduler that has just started holds it back a while.

        Raises:
            PddError: see ``Elsewhere.claim``.
        """
        key = name.path, name.tenant, name.key
        if self._seek is None or not name.key:
            await self._wait(lambda: key in self._by_key, until_s=self._settled_s)
            return
        while (other := self._settling.get(key)) is not None:
            await other.wait()
        if key in self._by_key:
            return
        self._settling[key] = settled = asyncio.Event()
        try:
            await self._settle(name, key)
        finally:
            del self._settling[key]
            # Whoever waits goes on in a later turn, and finds what ``join`` has begun in this one.
            settled.set()

    async def _settle(self, name: RunName, key: tuple[str, str, str]) -> None:
        if self._elsewhere is None:
            await self._seek_key(name, key)
            return
        claiming = asyncio.create_task(self._elsewhere.claim(name, resume_key(name)))
        try:
            await self._until_claimed(claiming, name, key)
        except asyncio.CancelledError:
            claiming.add_done_callback(_let_go)
            raise
        finally:
            claiming.cancel()
            await asyncio.wait({claiming})
        if claiming.cancelled():
            return  # a node was quicker
        if (remote := claiming.result()) is not None:
            self._mirror(remote)
        else:
            await self._seek_key(name, key)

    async def _until_claimed(
        self, claiming: asyncio.Task[Remote | None], name: RunName, key: tuple[str, str, str]
    ) -> None:
        """While no scheduler leads, a node may tell what the lost one had."""
        while not claiming.done() and key not in self._by_key:
            if self._seek is not None:
                self._seek(RequestId(""), resume_key(name))
            adopted = asyncio.create_task(self._adopted.wait())
            try:
                await asyncio.wait(
                    {claiming, adopted},
                    timeout=_SEEK_AGAIN_S,
                    return_when=asyncio.FIRST_COMPLETED,
                )
            finally:
                adopted.cancel()

    async def _seek_key(self, name: RunName, key: tuple[str, str, str]) -> None:
        if self._seek is not None and self._seek(RequestId(""), resume_key(name)):
            until_s = self._clock() + _KEY_WAIT_S
            await self._wait(lambda: key in self._by_key, until_s=until_s)

    async def appear(self, request_id: RequestId, *, tenant: str) -> None:
        """Before ``find``. Another scheduler may have it; or have just been lost, and its node be
        about to tell.

        Raises:
            PddError: see ``Elsewhere.find``.
        """
        until_s = self._clock() + self._wait_s

        def is_known() -> bool:
            return request_id in self._by_id or request_id in self._gone

        if self._seek is None:
            await self._wait(is_known, until_s=until_s)
            return
        while not is_known() and self._clock() < until_s:
            self._seek(request_id, b"")
            if self._elsewhere is not None:
                remote = await self._elsewhere.find(request_id, tenant=tenant)
                if remote is not None:
                    self._mirror(remote)
                    return
            turn_s = self._clock() + _SEEK_AGAIN_S  # its node may hear of the loss after its client
            await self._wait(is_known, until_s=min(until_s, turn_s))

    def _mirror(self, remote: Remote) -> None:
        """Show a request of another scheduler, unless it is here by now. Raises NodeUnavailable."""
        try:
            job, name = from_note(remote.request)
        except ValueError as error:
            remote.cancel(remote.request.request_id)
            raise NodeUnavailable(
                f"request {remote.request.request_id} cannot be followed here: {error}; ask the "
                "scheduler that has it"
            ) from error
        request_id, key = remote.request.request_id, (name.path, name.tenant, name.key)
        if request_id in self._by_id or (name.key and key in self._by_key):
            remote.cancel(request_id)
            return
        run = Run(name, request_id, inference=remote, linger_s=MIRROR_LINGER_S, over=self._over)
        self._by_id[request_id] = run
        if name.key:
            self._by_key[key] = run
        run.take_over(job)
        sink = MirrorSink(run, holder=remote.holder, lost=self._on_holder_lost)
        remote.start(job.request, sink)

    def _on_holder_lost(self, run: Run, error: PddError) -> None:
        """Its scheduler is gone. Nodes have it for a while, and one of them may give it here."""
        run.set_adrift()
        waiting = asyncio.get_running_loop().create_task(self._until_adopted(run, error))
        self._adrift.add(waiting)
        waiting.add_done_callback(self._adrift.discard)

    async def _until_adopted(self, run: Run, error: PddError) -> None:
        until_s = self._clock() + self._linger_s  # about as long as nodes hold it
        while self._clock() < until_s and self._seek is not None:
            self._seek(run.request_id, b"")
            turn_s = min(until_s, self._clock() + _SEEK_AGAIN_S)
            await self._wait(lambda: not run.is_adrift, until_s=turn_s)
            if not run.is_adrift:
                return
            if self._elsewhere is not None:
                await self._follow_anew(run, self._elsewhere)
        if run.is_adrift:
            run.failed(error)

    async def _follow_anew(self, run: Run, elsewhere: Elsewhere) -> None:
        """A third scheduler may have been quicker to take it over."""
        try:
            remote = await elsewhere.find(
                run.request_id, tenant=run.name.tenant, known_token_counts=run.token_counts
            )
        except PddError:
            return  # that of its former holder, or of one that has it no more
        if remote is not None and run.is_adrift:
            run.go_on(remote, linger_s=MIRROR_LINGER_S)
            sink = MirrorSink(run, holder=remote.holder, lost=self._on_holder_lost)
            remote.start(remote.request, sink)
        elif remote is not None:
            remote.cancel(run.request_id)

    async def known_by_key(self, path: str, tenant: str, key: str) -> Run:
        """The run of a key, for another scheduler. Raises UnknownRequest."""
        named = path, tenant, key
        while (settling := self._settling.get(named)) is not None and named not in self._by_key:
            await settling.wait()
        self._forget_old()
        run = self._by_key.get(named)
        if run is None or run.is_mirror:
            raise UnknownRequest("this scheduler has no request of that idempotency-key")
        return run

    async def _wait(self, known: Callable[[], bool], *, until_s: float) -> None:
        while not known() and (left_s := until_s - self._clock()) > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await self._adopted.wait()

    def adopt(self, request: GenerateRequest) -> tuple[GenerateRequest, Sink]:
        """A request that a node holds; see ``Adopter``."""
        job, name = from_note(request)
        key = name.path, name.tenant, name.key
        run = self._by_id.get(request.request_id)
        if run is not None and run.is_adrift:
            run.go_on(self._inference, linger_s=self._linger_s)
        elif run is not None or (name.key and key in self._by_key):
            raise ValueError("its client has sent it again, and that runs")
        else:
            run = Run(
                name,
                request.request_id,
                inference=self._inference,
                linger_s=self._linger_s,
                over=self._over,
            )
            self._by_id[request.request_id] = run
            if name.key:
                self._by_key[key] = run
            run.take_over(job)
        self._adopted.set()
        self._adopted = asyncio.Event()
        return job.request, run

    def find(self, request_id: RequestId, *, tenant: str) -> Run:
        """The run of this id.

        Raises:
            RequestGone: there was one.
            UnknownRequest: there was none, it is long ago, or it is another tenant's.
        """
        self._forget_old()
        run = self._by_id.get(request_id)
        if run is not None and run.name.tenant == tenant:
            return run
        whose, why = self._gone.get(request_id, ("", ""))
        if whose == tenant:
            raise RequestGone(f"request {request_id} cannot be continued: {why}")
        if self._elsewhere is not None:
            told = self._elsewhere.explain(request_id, tenant=tenant)
            if told is not None:
                raise told
        raise UnknownRequest(
            f"request {shorten(request_id)} is not known to this scheduler: it ended long "
            "ago, or has no Idempotency-Key and is there for the client that sent it only"
        )

    async def end(self, request_id: RequestId, *, tenant: str) -> None:
        """Nobody will come back to a request: cancel it, wherever in the group it runs. Idempotent.

        Raises:
            UnknownRequest: see ``find``.
            NodeUnavailable: the scheduler that has it has not said that it is over.
        """
        try:
            run = self.find(request_id, tenant=tenant)
        except RequestGone:
            return
        except PddError:
            if self._elsewhere is None:
                raise
            if not await self._elsewhere.end(request_id, tenant=tenant):
                raise
            return
        if not run.is_mirror or run.ended_well:
            run.close(RequestFailed("it was cancelled by a client"))
        elif run.is_adrift or self._elsewhere is None:
            raise NodeUnavailable(
                f"request {request_id} was at scheduler {run.holder}, which is lost, and no node "
                "has come with it so far; end it again in a moment"
            )
        else:
            await self._elsewhere.end(request_id, tenant=tenant, holder=run.holder)

    def end_here(self, request_id: RequestId, *, tenant: str) -> None:
        """For another scheduler. Raises UnknownRequest, RequestGone."""
        run = self.find(request_id, tenant=tenant)
        if run.is_mirror:
            raise UnknownRequest(f"request {request_id} is another scheduler's")
        run.close(RequestFailed("it was cancelled by a client"))

    def close(self) -> None:
        """The process stops. What can be continued elsewhere is left to the nodes."""
        for run in list(self._by_id.values()):
            run.abandon(stopping_error())

    def _over(self, run: Run) -> None:
        if not run.ended_well:
            self._forget(run, run.end_reason)
            return
        self._ended[run.request_id] = self._clock()
        self._ended_token_count += run.size
        self._forget_old()

    def _forget_old(self) -> None:
        now_s = self._clock()
        while self._ended:
            request_id, ended_s = next(iter(self._ended.items()))
            if now_s - ended_s >= self._age_s:
                why = f"it ended more than {self._age_s:g} s ago"
            elif (
                len(self._ended) > ENDED_RUN_COUNT_MAX
                or self._ended_token_count > ENDED_TOKEN_COUNT_MAX
            ):
                why = "it has ended, and too much ended since to keep it"
            else:
                return
            del self._ended[request_id]
            run = self._by_id[request_id]
            self._ended_token_count -= run.size
            self._forget(run, why)

    def _forget(self, run: Run, why: str) -> None:
        del self._by_id[run.request_id]
        self._by_key.pop((run.name.path, run.name.tenant, run.name.key), None)
        if run.is_mirror:
            return  # it may be there yet where it runs
        self._gone[run.request_id] = run.name.tenant, why
        if len(self._gone) > GONE_COUNT_MAX:
            self._gone.popitem(last=False)


def _let_go(claiming: asyncio.Task[Remote | None]) -> None:
    """Whoever asked has left: nobody looks at what the claim may have found."""
    if claiming.cancelled() or claiming.exception() is not None:
        return
    remote = claiming.result()
    if remote is not None:
        remote.cancel(remote.request.request_id)

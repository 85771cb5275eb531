"""What the other schedulers have: keys that they run, requests that they can show, and where.

    front door ──claim, find──► ElsewhereDesk ──claim──► the leader's ElsewhereDesk
        ▲                            │    └────follow──► the holder's front door (Runs)
        └──── a run that shows it ◄──┘

A key is claimed at the leader before its request begins: two schedulers that get the same key at
the same time are told the same holder. That is one message and no consensus, and only requests with
a key wait for it. Where the leader claims a key for itself, the message goes the other way: another
scheduler knows of it before the request begins (`KeyWitness`).

When the leader is lost, its claims are. The next one grants none before the others have told it
what they hold, keys included, as they do anyway before it gives places, and what the former leader
has told them to have; and a request that was claimed at the former one and is being prepared
(tokenised) asks again before it begins (`confirm`).

A scheduler that is cut off from the leader, or stands still, keeps its keys: its requests may well
run on. Whoever is sent such a key meanwhile waits for CLAIM_WAIT_S and then says 503; if a node
comes with the request first, it is joined there. A key goes to the next that asks for it only when

    its scheduler is asked and has nothing under it, also in its next life
    nobody listens at its scheduler's address (``RunsClient.is_gone``): that process is over
    its request waits for a place, which but the leader can give: refused when it is told of again
    its scheduler has not been heard of for as long as any request may take (``run_s_max``)

The address is that of the scheduler's gRPC server, which listens for as long as the process lives;
a firewall that refuses connections in its name would be believed. If a key was given away all the
same, whoever is back with it is told so, and its request ends there with an error
(``GroupDesk``): of two runs one is left.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence

import structlog

from pdd.cell.claims import CLAIMS_MAX, HeardClaim, KeyClaims
from pdd.cell.sequences import SequenceRow, SequenceTable
from pdd.control.leader_server import NotLeading
from pdd.control.runs_client import END_TIMEOUT_S, RunsClient, SchedulerUnreachable
from pdd.core.errors import NodeUnavailable, PddError, RequestGone, UnknownRequest
from pdd.core.identity import RequestId
from pdd.core.ports import Clock, Sink
from pdd.core.requests import GenerateRequest
from pdd.daemon.group_desk import LOST_AFTER_S, GroupDesk
from pdd.daemon.key_witness import KeyWitness
from pdd.gateway.elsewhere import Remote
from pdd.gateway.run import Run, RunName
from pdd.gateway.runs import Runs
from pdd.rpc.v1 import runs_pb2

log = structlog.get_logger(__name__)

CLAIM_WAIT_S = 5.0
"""Longer than an election."""
_AGAIN_S = 0.1
_RETRY_AFTER_S = 2.0
"""Nodes come with what a scheduler had about ten seconds after it stood still."""


class ElsewhereDesk:
    """Implements ``Elsewhere`` for the own front door and ``RunsHandler`` for the others'."""

    def __init__(
        self,
        *,
        name: str,
        group: GroupDesk,
        table: SequenceTable,
        client: RunsClient,
        clock: Clock,
        run_s_max: float,
    ) -> None:
        """``name``: this scheduler's. ``run_s_max``: how long a request may take at most."""
        self._name = name
        self._group = group
        self._table = table
        self._client = client
        self._witness = KeyWitness(client)
        self._clock = clock
        self._run_s_max = run_s_max
        self._runs: Runs | None = None
        self._claims = self._new_claims()
        self._leadership = 0
        """Counts changes of who leads."""
        self._granted: OrderedDict[bytes, int] = OrderedDict()
        """Keys of requests that are being prepared here, and when they were granted. Beyond
        CLAIMS_MAX the oldest begins without asking again."""

    def serve(self, runs: Runs) -> None:
        """Whose requests the others may follow."""
        self._runs = runs

    def leader_is(self, leader: str | None) -> None:
        """Claims are of one leadership. Call it before the group hears of it.

        What this one has granted while it led is told to the next leader all the same: whoever had
        asked for it may stand still by now, before its row was in the log."""
        self._leadership += 1
        for key, holder in self._claims.granted():
            self._group.heard_claims.note(HeardClaim(key, holder, 0.0), self._clock())
        self._claims = self._new_claims()

    def key_told(self, key: bytes, holder: str, stands: Callable[[str], bool]) -> str:
        """See ``GroupDesk.on_key_told``."""
        return self._claims.told(key, holder, stands=stands)

    def _new_claims(self) -> KeyClaims:
        heard = self._group.heard_claims.holder_of
        return KeyClaims(sources=(heard, self._table.holder_of))

    # --- for the own front door --------------------------------------------------------------

    async def claim(self, name: RunName, resume_key: bytes) -> Remote | None:
        """See ``Elsewhere``."""
        until_s = self._clock() + CLAIM_WAIT_S
        released_by = holder = why = ""
        while self._clock() < until_s:
            try:
                leadership = self._leadership
                holder = await self._ask_leader(resume_key, released_by)
                if holder == self._name:
                    self._note_granted(resume_key, leadership)
                    return None
                return await self._client.follow(
                    holder,
                    runs_pb2.FollowRequest(
                        tenant=name.tenant, path=name.path, idempotency_key=name.key
                    ),
                )
            except UnknownRequest:
                released_by = holder
            except (SchedulerUnreachable, NotLeading) as error:
                why = str(error)
                await asyncio.sleep(_AGAIN_S)
        raise _untold(why)

    async def confirm(self, resume_key: bytes) -> None:
        """See ``Elsewhere``."""
        granted = self._granted.pop(resume_key, self._leadership)
        if self._group.leads and self._claims.claimed(resume_key) not in (None, self._name):
            granted = -1  # somebody came back with it; whoever does not lead hears so when it tells
        until_s = self._clock() + CLAIM_WAIT_S
        why = ""
        while granted != self._leadership:
            if self._clock() >= until_s:
                raise _untold(why)
            leadership = self._leadership
            try:
                holder = await self._ask_leader(resume_key, "")
            except (SchedulerUnreachable, NotLeading) as error:
                why = str(error)
                await asyncio.sleep(_AGAIN_S)
                continue
            if holder != self._name:
                raise NodeUnavailable(
                    f"scheduler {holder} has got this idempotency-key while another one came to "
                    "lead; send the request again, to be told what it says",
                    retry_after_s=_RETRY_AFTER_S,
                )
            granted = leadership

    def _note_granted(self, resume_key: bytes, leadership: int) -> None:
        self._granted[resume_key] = leadership
        self._granted.move_to_end(resume_key)
        if len(self._granted) > CLAIMS_MAX:
            self._granted.popitem(last=False)

    async def _ask_leader(self, resume_key: bytes, released_by: str) -> str:
        """Raises SchedulerUnreachable, NotLeading."""
        leader = self._group.leader
        if leader is None or leader == self._name:
            return await self.claim_here(resume_key, self._name, released_by=released_by)
        try:
            return await self._client.claim(leader, resume_key, released_by=released_by)
        except SchedulerUnreachable as error:
            if error.is_older:
                return self._name  # a release that knows no claims: as if it were alone
            raise

    async def find(
        self, request_id: RequestId, *, tenant: str, known_token_counts: Sequence[int] = ()
    ) -> Remote | None:
        """See ``Elsewhere``."""
        row = self._row(request_id, tenant)
        if row is None or row.holder == self._name or row.is_adrift:
            return None
        wanted = runs_pb2.FollowRequest(
            request_id=request_id, tenant=tenant, known_token_counts=known_token_counts
        )
        try:
            return await self._client.follow(row.holder, wanted)
        except RequestGone:
            raise
        except UnknownRequest as error:
            told = self.explain(request_id, tenant=tenant)
            if told is None or isinstance(told, NodeUnavailable):  # the row outlived the holder
                told = UnknownRequest(
                    f"request {request_id} is not known to this scheduler, and scheduler "
                    f"{row.holder}, which had it, does not know it either: it is lost, unless a "
                    "node still tells of it"
                )
            raise told from error
        except PddError as error:
            log.info("request_not_followed", request_id=request_id, reason=str(error))
            return None

    async def end(self, request_id: RequestId, *, tenant: str, holder: str = "") -> bool:
        """See ``Elsewhere``."""
        if not holder:
            if self._table.get(request_id) is None:
                return await self._end_anywhere(request_id, tenant)
            row = self._row(request_id, tenant)
            if row is None or row.ended or row.is_adrift or row.holder == self._name:
                return False
            holder = row.holder
        try:
            await self._client.end(holder, request_id, tenant=tenant)
        except RequestGone:
            return True  # it was over already
        except SchedulerUnreachable as error:
            advice = (
                "it is of a release that cannot be asked to; end it there"
                if error.is_older
                else "it may have ended or not: end it again"
            )
            raise NodeUnavailable(
                f"request {request_id} is at scheduler {holder}, which has not said within "
                f"{END_TIMEOUT_S:g} s that it is over ({error}); {advice}"
            ) from error
        return True

    async def _end_anywhere(self, request_id: RequestId, tenant: str) -> bool:
        """Its row may be on its way: whoever has it knows it. One that does not answer has not.

        Raises NodeUnavailable: nobody has it, but the row has come to one who says who should.
        """
        elsewhere: list[NodeUnavailable] = []

        async def end(scheduler: str) -> bool:
            try:
                await self._client.end(scheduler, request_id, tenant=tenant)
            except RequestGone:
                return True
            except (SchedulerUnreachable, UnknownRequest) as error:
                log.debug("request_not_ended", scheduler=scheduler, reason=str(error))
                return False
            except NodeUnavailable as error:
                elsewhere.append(error)
                return False
            return True

        async with asyncio.TaskGroup() as tasks:
            asked = [tasks.create_task(end(one)) for one in self._client.others]
        if any(task.result() for task in asked):
            return True
        if elsewhere:
            raise elsewhere[0]
        return False

    def explain(self, request_id: RequestId, *, tenant: str) -> PddError | None:
        """See ``Elsewhere``."""
        row = self._row(request_id, tenant)
        if row is None:
            return None
        if row.ended:
            return RequestGone(
                f"request {request_id} cannot be continued: it ended at scheduler {row.holder} "
                f"({row.ended}), and what it has said is not kept any more"
            )
        if not row.key:
            return UnknownRequest(
                f"request {request_id} runs at scheduler {row.holder} for the client that sent it; "
                "without an Idempotency-Key only that client ends it, by leaving, and it can be "
                "continued elsewhere only when that scheduler is lost"
            )
        if row.holder == self._name:
            return None  # not told here yet, or not any more
        if row.is_adrift:
            return NodeUnavailable(
                f"request {request_id} is not known to this scheduler: scheduler {row.holder}, "
                "which had it, is lost, and no node has told of it so far; ask again, and send it "
                "anew when no node comes with it within resume.grace_s"
            )
        return NodeUnavailable(
            f"request {request_id} is at scheduler {row.holder}, not at this one; ask there, or "
            "again"
        )

    def _row(self, request_id: RequestId, tenant: str) -> SequenceRow | None:
        row = self._table.get(request_id)
        return row if row is not None and row.tenant == tenant else None

    # --- for the other schedulers ------------------------------------------------------------

    async def claim_here(self, key: bytes, scheduler: str, *, released_by: str) -> str:
        """Who has a key. Raises NotLeading, also while it cannot know yet."""
        self._check_leads()
        # Else who asks is sent to and fro between it and who is next, and neither has anything.
        self._group.heard_claims.let_go(key, released_by)
        leadership, without = self._leadership, {released_by}
        while True:
            holder = self._claims.holder(key, without=without)
            if holder is None or holder == scheduler or not await self._has_let_go(key, holder):
                break
            without.add(holder)
        self._check_still_leads(leadership)
        holder = self._claims.claim(key, scheduler, without=without)
        if holder == scheduler == self._name:
            await self._witness.tell(key)
            self._check_still_leads(leadership)
        return holder

    def _check_still_leads(self, leadership: int) -> None:
        self._check_leads()
        if leadership != self._leadership:
            raise NotLeading("who leads has changed while it was asked who has the key")

    def _check_leads(self) -> None:
        if not self._group.leads:
            raise NotLeading(
                f"{self._name} does not lead; it follows {self._group.leader or 'nobody'}"
            )
        if unheard := self._group.unheard:
            raise NotLeading(
                f"{self._name} has just come to lead, and {', '.join(unheard)} has not told yet "
                "what it has"
            )

    def remember_here(self, key: bytes, scheduler: str) -> None:
        """See ``RunsHandler``. Whoever follows another leader has told that one already what it has
        heard of, so that this would come too late."""
        if scheduler != self._group.leader:
            raise NotLeading(f"{self._name} follows {self._group.leader or 'nobody'}")
        self._group.heard_claims.note(HeardClaim(key, scheduler, 0.0), self._clock())

    async def _has_let_go(self, key: bytes, holder: str) -> bool:
        """Whether nothing of that key can run at a scheduler (any more); see the module."""
        if holder == self._name:
            return False
        silent_s = self._group.silent_s(holder)
        if silent_s is None or silent_s >= self._run_s_max:
            return True  # none of the group; or whatever it had has ended
        if silent_s < LOST_AFTER_S:
            return False
        if self._group.drop_waiting(key, holder):
            return True
        return await self._client.is_gone(holder)

    async def find_here(self, request_id: RequestId, *, tenant: str) -> "OwnRun":
        """See ``RunsHandler``."""
        run = self._own_runs().find(request_id, tenant=tenant)
        if run.is_mirror:
            raise UnknownRequest(f"request {request_id} is another scheduler's")
        return OwnRun(run, (await run.job()).request)

    async def find_by_key(self, path: str, tenant: str, key: str) -> "OwnRun":
        """See ``RunsHandler``."""
        run = await self._own_runs().known_by_key(path, tenant, key)
        return OwnRun(run, (await run.job()).request)

    def end_here(self, request_id: RequestId, *, tenant: str) -> None:
        """See ``RunsHandler``."""
        self._own_runs().end_here(request_id, tenant=tenant)

    def _own_runs(self) -> Runs:
        if self._runs is None:
            raise UnknownRequest("this scheduler is starting")
        return self._runs


def _untold(why: str) -> NodeUnavailable:
    return NodeUnavailable(
        f"whether another scheduler runs this idempotency-key could not be told within "
        f"{CLAIM_WAIT_S:g} s ({why}); send the request again",
        retry_after_s=_RETRY_AFTER_S,
    )


class OwnRun:
    """Implements ``Followed``."""

    def __init__(self, run: Run, request: GenerateRequest) -> None:
        self._run = run
        self.request = request

    def listen(self, sink: Sink, *, cuts: Sequence[int]) -> None:
        """See ``Followed``."""
        self._run.listen(sink, cuts=cuts, as_it_came=True)

    def leave(self, sink: Sink) -> None:
        """See ``Followed``."""
        self._run.leave(sink)

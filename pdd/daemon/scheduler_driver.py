"""Drives the scheduler core: RPCs and timers become events, effects become messages.

Token frames do not pass through the core; only a request's first token and its end do.
"""

import asyncio
import secrets
from collections import deque
from collections.abc import Iterable

import structlog

from pdd.cell.operations import MemberJoined, MemberLeft, Operation, Status
from pdd.cell.state import MEMBERS_MAX, CellState
from pdd.control.cluster_ports import JoinRefused
from pdd.control.convert import (
    frame_from_proto,
    frame_to_proto,
    frames_from_columns,
    identity_from_proto,
    identity_to_proto,
    logprobs_to_proto,
    sampling_to_proto,
)
from pdd.control.node_session import NodeSession
from pdd.core.frames import Frame
from pdd.core.identity import Forking, NodeIdentity, NodeName, NodeState, RequestId, Role
from pdd.core.ports import Adopter, Clock, Sink
from pdd.core.requests import Ended, GenerateRequest, RequestUsage
from pdd.daemon.agreed_cordons import AgreedCordons
from pdd.daemon.agreed_roles import AgreedRoles
from pdd.daemon.agreement import Agreement, AgreementOfOne, AgreementUnavailable
from pdd.daemon.block_locator import BlockLocator
from pdd.daemon.directory_feed import DirectoryFeed
from pdd.daemon.group_desk import GroupDesk
from pdd.daemon.operator_desk import OperatorDesk
from pdd.daemon.prompt_keys import PromptKeys, prefix_salt
from pdd.daemon.request_stream import RequestStream
from pdd.daemon.role_desk import RoleDesk, log_news
from pdd.daemon.takeovers import Takeovers
from pdd.daemon.transfer_metrics import known_counters
from pdd.rpc.v1 import cluster_pb2
from pdd.scheduler.core import SchedulerCore
from pdd.scheduler.effects import (
    Announce,
    Cancel,
    Complete,
    Disconnect,
    DismissPeer,
    Effect,
    Fail,
    ForgetNode,
    GiveFirstToken,
    IntroducePeers,
    NodeDrained,
    Submit,
)
from pdd.scheduler.events import (
    DecodeReady,
    Event,
    FailureKind,
    FirstTokenSampled,
    HeldSequence,
    JobFailed,
    NodeJoined,
    NodeLost,
    NodeReported,
    RequestArrived,
    RequestCancelled,
    SequenceFinished,
    SequenceFound,
    SequenceGrew,
    SequenceStarted,
    Tick,
)
from pdd.scheduler.frames import fault, hands_over, takes_part
from pdd.scheduler.group_events import LeadershipChanged
from pdd.scheduler.nodes import not_ready_reason
from pdd.scheduler.requests import Phase
from pdd.scheduler.roles.book import RoleNews
from pdd.scheduler.state import Counts
from pdd.tls.security import Security
from pdd.transfer.pairing import pair_faults

log = structlog.get_logger(__name__)

TICK_INTERVAL_S = 0.25
_OWN_PAUSE_S = 1.0
_ABSENT_MEMORY_S = 24 * 3600.0


class SchedulerDriver:
    """Implements ``Inference`` for the front door and ``ClusterHandler`` for the nodes."""

    def __init__(
        self,
        *,
        core: SchedulerCore,
        directory: DirectoryFeed,
        clock: Clock,
        model: str,
        tokenizer_digest: str = "",
        agreement: Agreement | None = None,
    ) -> None:
        """
        Args:
            directory: the one that the core asks.
            tokenizer_digest: nodes with another one are refused; empty compares nothing.
            agreement: with the other schedulers; None: kept in memory, for as long as this lives.
        """
        self._core = core
        self._clock = clock
        self._model = model
        self._tokenizer_digest = tokenizer_digest
        self._sessions: dict[NodeName, NodeSession] = {}
        self._prompt_keys = PromptKeys(model=model)
        self.directory = directory
        directory.on_news(self._step)
        self._agreement: Agreement = agreement or AgreementOfOne()
        self._agreed_cordons = AgreedCordons()
        self._agreed_roles = AgreedRoles()
        self.operator = OperatorDesk(core=core, clock=clock, agreement=self._agreement)
        self.role_operator = RoleDesk(core=core, clock=clock, agreement=self._agreement)
        self._hellos: dict[NodeName, cluster_pb2.Hello] = {}
        self._transfer_counters: dict[NodeName, dict[str, float]] = {}
        self._links: dict[NodeName, list[cluster_pb2.PeerLink]] = {}
        self._block_states: dict[NodeName, cluster_pb2.BlockStates] = {}
        self._held_counts: dict[NodeName, int] = {}
        self._streams: dict[RequestId, RequestStream] = {}
        self.blocks = BlockLocator(
            core=core,
            sessions=self._sessions,
            streams=self._streams,
            holders=directory.machine.holders,
            now=clock,
        )
        self._takeovers = Takeovers(
            streams=self._streams,
            keys_of=self._prompt_keys.of,
            recovered=self._step,
            overdue=self._join,
        )
        self.life = secrets.token_hex(8)
        """See ``ClusterHandler.life``."""
        self._events: deque[Event] = deque()
        self._stepping = False
        self._crash: BaseException | None = None
        self._crashed = asyncio.Event()
        self._said: set[asyncio.Task[None]] = set()
        self._absent_since_s = clock()
        self._group: GroupDesk | None = None
        self._agreement.follow(self._on_agreed)

    def join_group(self, *, name: str, addresses: dict[str, str], security: Security) -> GroupDesk:
        """Before anything is served: several schedulers rule the cluster, and until one is known to
        lead, nobody gives places. ``addresses``: of their gRPC servers, by name."""
        self._group = GroupDesk(
            name=name,
            addresses=addresses,
            core=self._core,
            clock=self._clock,
            security=security,
            step=self._step,
            output_token_count=self._output_token_count,
            crashed=self._note_crash,
        )
        self._step(LeadershipChanged(leads=False))
        return self._group

    def _output_token_count(self, request_id: RequestId) -> int:
        stream = self._streams.get(request_id)
        return 0 if stream is None else max(len(shown.token_ids) for shown in stream.choices)

    # --- for the front door ------------------------------------------------------------------

    def start(self, request: GenerateRequest, sink: Sink) -> None:
        """See ``Inference.start``."""
        self._streams[request.request_id] = RequestStream(sink, choice_count=request.choice_count)
        keys = self._prompt_keys.of(request)
        self._step(RequestArrived(request=request, keys=keys, caller_key=request.affinity_key))

    def take_over_with(self, adopter: Adopter) -> None:
        """Who answers for requests that nodes hold from a scheduler that is gone. Without one they
        are cancelled."""
        self._takeovers.adopter = adopter

    def cancel(self, request_id: RequestId) -> None:
        """See ``Inference.cancel``."""
        if self._streams.pop(request_id, None) is not None:
            self._takeovers.forget(request_id)
            self._step(RequestCancelled(request_id=request_id))

    def ready_counts(self) -> tuple[int, int]:
        """``(prefill nodes, decode nodes)`` that take work."""
        ready = [node.role for node in self._core.nodes.values() if node.takes_work]
        return ready.count(Role.PREFILL), ready.count(Role.DECODE)

    def not_ready_reason(self, role: Role) -> str:
        """Why no node of a role takes work; empty where one does."""
        return not_ready_reason(self._core.nodes.values(), role)

    @property
    def decision_counts(self) -> Counts:
        """What the scheduler decided since its start. To be read only."""
        return self._core.counts

    @property
    def queued_request_count(self) -> int:
        """Requests that wait for room."""
        return self._core.queued_request_count

    @property
    def running_request_count(self) -> int:
        """Requests that have not ended."""
        return len(self._streams)

    # --- for the nodes -----------------------------------------------------------------------

    async def node_joining(self, hello: cluster_pb2.Hello) -> None:
        """See ``ClusterHandler.node_joining``. Once in each life: a stream that broke is nothing
        to agree on."""
        self._refuse_misfit(hello)
        identity = identity_from_proto(hello.identity)
        session = self._sessions.get(identity.name)
        if session is not None:
            self._refuse_intruder(identity, session.identity)
        known = self._agreement.state.members.get(identity.name)
        if known is not None and (known.uuid, known.boot_epoch) == life_of(identity):
            return
        status = await self._agreement.say(
            MemberJoined(
                node=identity.name,
                uuid=identity.uuid,
                boot_epoch=identity.boot_epoch,
                role=hello.role,
                address=hello.address,
                block_count=hello.block_count,
            )
        )
        if status is Status.STALE:
            latest = self._agreement.state.members.get(identity.name)
            raise JoinRefused(
                f"{identity} is a former life: boot {latest.boot_epoch if latest else '?'} of it "
                "has joined before; if its identity.json was restored from an old copy, remove "
                "it, and it joins as a new node"
            )
        if status is Status.FULL:
            raise JoinRefused(f"there are {MEMBERS_MAX} nodes, the most; see 'pdd node list'")

    def node_attached(self, session: NodeSession) -> None:
        """See ``ClusterHandler.node_attached``."""
        hello = session.hello
        self._refuse_misfit(hello)
        name = session.identity.name
        former = self._sessions.get(name)
        if former is not None:
            self._refuse_intruder(session.identity, former.identity)
            reason = (
                "this node has opened another stream"
                if former.identity == session.identity
                else "a newer life of this node has joined"
            )
            former.close(reason)
            del self._sessions[name]
            self._takeovers.detached(former)
            self._step(NodeLost(identity=former.identity, reason=reason))
        self._links.pop(name, None)
        self._block_states.pop(name, None)
        self._sessions[name] = session
        self._hellos[name] = hello
        self._prompt_keys.fit(block_size_tokens=hello.block_size, fingerprint=hello.fingerprint)
        self.directory.attached(session)
        if hello.holds_requests:
            self._takeovers.expect(session)
        else:
            self._join(session)

    def _join(self, session: NodeSession) -> None:
        """It is a member, and what runs there is taken over in the same step."""
        hello, name = session.hello, session.identity.name
        running = self._takeovers.take(session)
        log.info("node_joined", node=name, role=hello.role, boot_epoch=session.identity.boot_epoch)
        self._step(
            NodeJoined(
                identity=session.identity,
                role=Role(hello.role),
                address=hello.address,
                block_count=hello.block_count,
                block_size=hello.block_size,
                max_model_len=hello.max_model_len,
                max_num_seqs=hello.max_num_seqs,
                block_bytes=hello.block_bytes,
                is_pinned=hello.role_is_pinned,
                held=running,
                forking=_forking(hello.forking),
            )
        )
        self._claim(session, running)

    def seek(self, request_id: RequestId, resume_key: bytes) -> bool:
        """Ask nodes for a request that a client has come back for, by its id or else by its key;
        whether any node was asked. What is found comes to the ``Adopter``."""
        asked = [
            session
            for name, session in self._sessions.items()
            if request_id or self._held_counts.get(name)
        ]
        for session in asked:
            session.seek(request_id, resume_key)
        return bool(asked)

    def _on_found(self, session: NodeSession, message: cluster_pb2.HeldRequest) -> None:
        held = self._takeovers.found(session, message)
        if held is not None:
            self._step(SequenceFound(node=session.identity.name, held=held))
            self._claim(session, (held,))

    def _claim(self, session: NodeSession, running: tuple[HeldSequence, ...]) -> None:
        """What the core has taken over as it runs."""
        name, requests = session.identity.name, self._core.requests
        self._takeovers.claim(
            session,
            [
                held
                for held in running
                if (request := requests.get(held.request.request_id)) is not None
                and request.runs_on() == name
                and request.generation == held.generation
            ],
        )

    def node_said(self, session: NodeSession, message: cluster_pb2.NodeMessage) -> None:
        """See ``ClusterHandler.node_said``."""
        if self._sessions.get(session.identity.name) is not session:
            return  # a former life
        match message.WhichOneof("message"):
            case "tokens":
                self._on_tokens(session, message.tokens)
            case "frames":
                self._on_frames(session, message.frames.frames)
            case "status":
                status = message.status
                self._transfer_counters[session.identity.name] = known_counters(
                    status.transfer_counters
                )
                self._links[session.identity.name] = [
                    link for link in status.links if link.peer in self._core.nodes
                ]
                self._held_counts[session.identity.name] = status.held_request_count
                if status.HasField("blocks"):
                    self._block_states[session.identity.name] = status.blocks
                self._step(
                    NodeReported(
                        node=session.identity.name,
                        free_block_count=status.free_block_count,
                        running_sequence_count=status.running_sequence_count,
                        waiting_sequence_count=status.waiting_sequence_count,
                        degraded_reason=status.degraded_reason,
                    )
                )
            case "transfer_done":
                done = message.transfer_done
                self._step(
                    DecodeReady(
                        request_id=RequestId(done.request_id),
                        generation=done.generation,
                        transferred_bytes=done.transferred_bytes,
                        transfer_s=done.transfer_s,
                    )
                )
            case "failed":
                failed = message.failed
                request_id = RequestId(failed.request_id)
                if self._takeovers.stopped(request_id, failed.generation, session):
                    return
                self._step(
                    JobFailed(
                        request_id=request_id,
                        generation=failed.generation,
                        node=session.identity.name,
                        message=failed.message,
                        kind=_failure_kind(failed.kind),
                    )
                )
            case "blocks_held":
                self.blocks.answered(session.identity.name, message.blocks_held)
            case "cache_position" | "cache_delta" | "cache_snapshot":
                self.directory.said(session, message)
            case "found":
                self._on_found(session, message.found)
            case "held":
                if self._takeovers.tell(session, message.held):
                    self._join(session)
            case other:
                log.warning("node_message_ignored", node=session.identity.name, kind=other)

    def node_detached(self, session: NodeSession, reason: str) -> None:
        """See ``ClusterHandler.node_detached``."""
        name = session.identity.name
        if self._sessions.get(name) is not session:
            return  # another stream, perhaps of the same life, has taken over, or it was cut
        del self._sessions[name]
        self.directory.detached(session)
        self._takeovers.detached(session)
        log.warning("node_lost", node=name, reason=reason)
        self._step(NodeLost(identity=session.identity, reason=reason))

    def list_nodes(self) -> list[cluster_pb2.NodeInfo]:
        """See ``ClusterHandler.list_nodes``."""
        infos = []
        for name, node in sorted(self._core.nodes.items()):
            hello = self._hellos[name]
            infos.append(
                cluster_pb2.NodeInfo(
                    identity=identity_to_proto(node.identity),
                    role=node.role,
                    state=node.state,
                    state_reason=node.state_reason,
                    address=node.address,
                    block_count=node.block_count,
                    free_block_count=node.free_block_count,
                    running_sequence_count=node.running_sequence_count,
                    waiting_sequence_count=node.waiting_sequence_count,
                    pid=hello.pid,
                    model=hello.model,
                    links=self._links.get(name, ()) if name in self._sessions else (),
                    blocks=self._block_states.get(name) if name in self._sessions else None,
                    duty=self.role_operator.duty(node),
                )
            )
        return infos + self._cordoned_absentees()

    def _cordoned_absentees(self) -> list[cluster_pb2.NodeInfo]:
        """So that a cordon on a node that does not come back can be seen, and lifted."""
        agreed = self._agreement.state
        infos = []
        for name in agreed.cordons.names():
            if NodeName(name) in self._core.nodes:
                continue
            member = agreed.members.get(name)
            info = cluster_pb2.NodeInfo(
                identity=cluster_pb2.NodeIdentity(name=name),
                state=NodeState.LOST,
                state_reason="cordoned, and not seen by this scheduler",
            )
            if member is not None:
                info.identity.uuid, info.identity.boot_epoch = member.uuid, member.boot_epoch
                info.role, info.address = member.role, member.address
            infos.append(info)
        return infos

    def transfer_counters(self) -> dict[NodeName, dict[str, float]]:
        """What each node's transfer engine counted when it last reported, by node."""
        return self._transfer_counters

    async def tick(self) -> None:
        """Feed the passing of time to the core, for ever.

        After a pause of this process itself (stopped, swapped out) the nodes' reports wait unread
        in their sockets; they are read first, or every node would look silent.
        """
        while True:
            due_s = self._clock() + TICK_INTERVAL_S
            await asyncio.sleep(TICK_INTERVAL_S)
            late_s = self._clock() - due_s
            if late_s > _OWN_PAUSE_S:
                log.warning("scheduler_was_paused", duration_s=round(late_s, 1))
                await asyncio.sleep(_OWN_PAUSE_S)
            self._step(Tick())
            self._forget_absent()

    # --- what schedulers agree on ------------------------------------------------------------

    def _on_agreed(self, state: CellState) -> None:
        for event in self._agreed_cordons.events(state):
            self._step(event)
        for role_event in self._agreed_roles.events(state):
            self._step(role_event)

    def _say(self, operation: Operation) -> None:
        """In the background: nobody waits for it, and it is said again if it matters."""

        async def say() -> None:
            try:
                await self._agreement.say(operation)
            except AgreementUnavailable as error:
                log.info("not_agreed_on", operation=type(operation).__name__, reason=str(error))

        task = asyncio.get_running_loop().create_task(say())
        self._said.add(task)
        task.add_done_callback(self._said.discard)

    def _forget_absent(self) -> None:
        """Members that have not come back since this scheduler started, or since the last look:
        their boot epochs fence nothing that could still be under way."""
        if self._clock() - self._absent_since_s < _ABSENT_MEMORY_S:
            return
        self._absent_since_s = self._clock()
        members = self._agreement.state.members
        for name in members.names():
            if NodeName(name) not in self._core.nodes:
                member = members[name]
                self._say(MemberLeft(node=name, uuid=member.uuid, boot_epoch=member.boot_epoch))

    # --- events in, effects out --------------------------------------------------------------

    async def wait_crashed(self) -> None:
        """Raises what a bug raised in a decision; the daemon ends with it.

        Decisions are made inside streams and requests, whose servers would only log the error and
        go on with a core that is half way through an event.
        """
        await self._crashed.wait()
        assert self._crash is not None
        raise self._crash

    def _step(self, event: Event) -> None:
        """Decide and act. A sink that cancels in the middle of an event's effects is heard after
        them: their order means something to the nodes."""
        self._events.append(event)
        if self._stepping:
            return
        self._stepping = True
        try:
            while self._events:
                event = self._events.popleft()
                effects = self._core.step(event, now_s=self._clock())
                for effect in effects:
                    self._obey(effect)
                if self._group is not None:
                    self._group.stepped(event, effects)
        except Exception as error:
            self._note_crash(error)
            raise
        finally:
            self._stepping = False

    def _note_crash(self, error: BaseException) -> None:
        self._crash = error
        self._crashed.set()

    def _obey(self, effect: Effect) -> None:
        if self._group is not None and self._group.takes(effect):
            return
        match effect:
            case Submit():
                self._submit(effect)
            case Cancel():
                session = self._sessions.get(effect.node)
                if session is not None:
                    session.cancel(effect.request_id)
            case GiveFirstToken():
                session = self._sessions.get(effect.node)
                if session is not None:
                    self._give_first_token(session, effect)
            case Announce():
                stream = self._streams.get(effect.request_id)
                if stream is not None:
                    stream.plan(effect.plan)
            case Complete():
                self._complete(effect)
            case Fail():
                stream = self._streams.pop(effect.request_id, None)
                if stream is not None:
                    log.warning(
                        "request_failed",
                        request_id=effect.request_id,
                        error=type(effect.error).__name__,
                        why=str(effect.error),
                    )
                    stream.fail(effect.error)
            case Disconnect():
                self._disconnect(effect.identity, effect.reason)
            case NodeDrained():
                log.info(
                    "node_drained",
                    node=effect.identity.name,
                    duration_s=round(effect.drained_s, 1),
                )
            case RoleNews():
                log_news(effect)
                if (role_set := self.role_operator.agreed_on(effect)) is not None:
                    self._say(role_set)
            case ForgetNode():
                log.info("node_forgotten", node=effect.node)
                del self._hellos[effect.node]
                self.directory.forget(effect.node)
                self._transfer_counters.pop(effect.node, None)
                self._held_counts.pop(effect.node, None)
                self._links.pop(effect.node, None)
                self._block_states.pop(effect.node, None)
                if (released := self.role_operator.forgotten(effect.node)) is not None:
                    self._say(released)
            case IntroducePeers():
                session = self._sessions.get(effect.node)
                if session is not None:
                    peers = [self._peer(peer.name) for peer in effect.peers]
                    session.introduce(peers, complete=effect.complete)
            case DismissPeer():
                session = self._sessions.get(effect.node)
                if session is not None:
                    session.dismiss(effect.peer)

    def _give_first_token(self, session: NodeSession, effect: GiveFirstToken) -> None:
        stream = self._streams.get(effect.request_id)
        if stream is None:
            return  # its client left in this very step; the cancellation is on its way as an event
        first = stream.first_frame
        session.first_token(
            effect.request_id,
            effect.generation,
            effect.token_ids,
            has_choices=len(stream.choices) > 1,
            frame=None if first is None else frame_to_proto(first, generation=effect.generation),
        )

    def _peer(self, name: NodeName) -> cluster_pb2.PeerNode:
        """A node as its join told."""
        hello = self._hellos[name]
        return cluster_pb2.PeerNode(
            identity=hello.identity,
            address=hello.address,
            ucx_worker_addresses=hello.ucx_worker_addresses,
            fingerprint=hello.fingerprint,
        )

    def _submit(self, effect: Submit) -> None:
        session = self._sessions.get(effect.node)
        if session is None:
            return  # its loss is on its way as an event
        request = effect.request
        sampling = request.sampling
        stream = self._streams.get(request.request_id)
        if stream is None:
            return  # its client left in this very step; the cancellation is on its way as an event
        assert effect.kind == "local" or not stream.token_count, "a shown token cannot travel"
        submit = cluster_pb2.Submit(
            request_id=request.request_id,
            generation=effect.generation,
            kind=effect.kind,
            prompt_token_ids=request.prompt_token_ids,
            sampling=sampling_to_proto(sampling),
            cache_salt=prefix_salt(request),
            priority=request.priority,
            deadline_s=effect.deadline_s,
            grammar_kind=sampling.grammar.kind if sampling.grammar else "",
            grammar_value=sampling.grammar.value if sampling.grammar else "",
            allowed_token_ids=sampling.allowed_token_ids,
            resume=request.resume,
            resume_key=request.resume_key,
        )
        if request.choice_count == 1:
            submit.emitted_token_ids.extend(stream.choices[0].token_ids)
        else:
            submit.choices.extend(
                cluster_pb2.SubmitChoice(
                    index=index, emitted_token_ids=stream.choices[index].token_ids
                )
                for index in effect.choices
            )
        if request.resume:
            self._add_history(submit, stream)
        if effect.source is not None:
            source = self._hellos[effect.source]
            submit.source.identity.CopyFrom(source.identity)
            submit.source.address = source.address
            submit.source.ucx_worker_addresses.extend(source.ucx_worker_addresses)
        session.submit(submit)

    def _add_history(self, submit: cluster_pb2.Submit, stream: RequestStream) -> None:
        """What a scheduler that takes over cannot ask anybody any more."""
        if not submit.choices:
            submit.emitted_logprobs.extend(map(logprobs_to_proto, stream.choices[0].logprobs))
        request = self._core.requests.get(RequestId(submit.request_id))
        if request is None:
            return  # it has ended in this very step
        now_s = self._clock()
        submit.arrived_age_s = now_s - request.arrived_s
        submit.placed_age_s = 0.0 if request.placed_s is None else now_s - request.placed_s
        if request.first_token_s is not None:
            submit.first_token_age_s = now_s - request.first_token_s

    def _on_tokens(self, session: NodeSession, columns: cluster_pb2.TokenColumns) -> None:
        """One engine step of a node. What is done here, every token of the cluster pays for."""
        node = session.identity.name
        requests, streams = self._core.requests, self._streams
        for generation, frame in frames_from_columns(columns):
            request = requests.get(frame.request_id)
            stream = streams.get(frame.request_id)
            if request is None or stream is None or request.generation != generation:
                if request is None and stream is not None:
                    self._read_held(frame, generation, session)
                continue
            if (
                request.phase is Phase.DECODING
                and frame.first_token_index + 1 < request.grows_at_tokens
                and (request.decode or request.prefill) == node  # ``runs_on``
            ):  # nearly always: nothing is left to check, and to the core it means nothing
                try:
                    stream.show(frame)
                except ValueError as error:
                    self._refuse(frame, generation, node, error)
            else:
                self._on_frame(frame, generation, session)

    def _on_frames(self, session: NodeSession, messages: Iterable[cluster_pb2.TokenFrame]) -> None:
        for message in messages:
            try:
                frame = frame_from_proto(message)
            except ValueError as error:  # a newer node's kind of finish: another one may do better
                self._fail_attempt(
                    RequestId(message.request_id),
                    message.generation,
                    session.identity.name,
                    f"this scheduler cannot read a frame: {error}",
                )
            else:
                self._on_frame(frame, message.generation, session)

    def _read_held(self, frame: Frame, generation: int, session: NodeSession) -> None:
        try:
            self._takeovers.show(frame, generation, session)
        except ValueError as error:
            self._refuse(frame, generation, session.identity.name, error)

    def _on_frame(self, frame: Frame, generation: int, session: NodeSession) -> None:
        """Checked first, shown then, told to the core last: what is shown cannot be taken back."""
        request = self._core.requests.get(frame.request_id)
        stream = self._streams.get(frame.request_id)
        if request is None or stream is None or request.generation != generation:
            if request is None and stream is not None:
                self._read_held(frame, generation, session)
            return
        node = session.identity.name
        if not takes_part(request, node):
            log.debug("frame_ignored", request_id=frame.request_id, node=node)
            return
        if (why := fault(frame, request, node)) is not None:
            self._fail_attempt(frame.request_id, generation, node, why)
            return
        try:
            stream.show(frame)
        except ValueError as error:
            self._refuse(frame, generation, node, error)
            return
        if request.phase is Phase.FINISHED:
            return  # its client had no room for it and has cancelled
        output_token_count = len(stream.choices[frame.choice_index].token_ids)
        if hands_over(request, node):
            assert frame.finish is not None, "checked by fault()"
            if request.request.resume:
                stream.first_frame = frame
            self._step(
                FirstTokenSampled(
                    request_id=frame.request_id,
                    generation=generation,
                    node=node,
                    token_id=frame.token_ids[0],
                    finish=frame.finish,
                    choice_index=frame.choice_index,
                )
            )
            return
        # The core plans a retry as a resume from here on: exactly when the client has a token.
        if request.phase is Phase.PREFILLING and output_token_count:
            self._step(SequenceStarted(request_id=frame.request_id, generation=generation))
        if frame.finish is None and output_token_count >= request.grows_at_tokens:
            self._step(
                SequenceGrew(
                    request_id=frame.request_id,
                    generation=generation,
                    output_token_count=output_token_count,
                )
            )
        if frame.finish is not None:
            self._step(
                SequenceFinished(
                    request_id=frame.request_id,
                    generation=generation,
                    node=node,
                    finish=frame.finish,
                    output_token_count=output_token_count,
                    choice_index=frame.choice_index,
                )
            )

    def _refuse(self, frame: Frame, generation: int, node: NodeName, error: ValueError) -> None:
        self._fail_attempt(frame.request_id, generation, node, f"frames do not join: {error}")

    def _fail_attempt(
        self, request_id: RequestId, generation: int, node: NodeName, why: str
    ) -> None:
        log.warning("frame_refused", request_id=request_id, node=node, why=why)
        self._step(
            JobFailed(
                request_id=request_id,
                generation=generation,
                node=node,
                message=why,
                kind=FailureKind.ENGINE,
            )
        )

    def _complete(self, effect: Complete) -> None:
        stream = self._streams.pop(effect.request_id, None)
        if stream is None:
            return
        usage = RequestUsage(
            prompt_tokens=effect.prompt_token_count,
            completion_tokens=stream.token_count,
            cached_tokens=effect.cached_tokens,
            path=effect.plan.path,
            prefill_node=effect.plan.prefill_node,
            decode_node=effect.plan.decode_node,
            queue_ms=effect.times.queue_s * 1e3,
            prefill_ms=effect.times.prefill_s * 1e3,
            transfer_ms=effect.times.transfer_s * 1e3,
            decode_ms=effect.times.decode_s * 1e3,
            transferred_bytes=effect.transferred_bytes,
            decode_computed_prompt_tokens=effect.decode_computed_prompt_tokens,
        )
        stream.end(Ended(finish=effect.finish, usage=usage))
        if effect.prompt_recomputed:
            log.warning(
                "prompt_recomputed_on_decode_node",
                request_id=effect.request_id,
                decode_node=usage.decode_node,
                computed_prompt_tokens=usage.decode_computed_prompt_tokens,
            )

    def _disconnect(self, identity: NodeIdentity, reason: str) -> None:
        session = self._sessions.get(identity.name)
        if session is not None and session.identity == identity:
            log.warning("node_lost", node=identity.name, reason=reason)
            session.close(reason)
            del self._sessions[identity.name]
            self.directory.detached(session)
            self._takeovers.detached(session)

    def _refuse_intruder(self, identity: NodeIdentity, present: NodeIdentity) -> None:
        """A name belongs to the node that is attached, and to its later lives."""
        if identity.uuid != present.uuid:
            raise JoinRefused(
                f"the name {identity.name} is in use by {present}; this is {identity}: give one "
                "of the two nodes another node.name"
            )
        if identity.boot_epoch < present.boot_epoch:
            raise JoinRefused(f"{identity} is a former life of {present}")

    def _refuse_misfit(self, hello: cluster_pb2.Hello) -> None:
        """Compare a node with the cluster, key by key."""
        name = hello.identity.name
        if hello.role not in (Role.PREFILL, Role.DECODE):
            raise JoinRefused(f"node {name} has role {hello.role!r}; only nodes attach")
        for field, least in (("block_size", 1), ("block_count", 2), ("max_num_seqs", 1)):
            if (value := getattr(hello, field)) < least:
                raise JoinRefused(f"node {name} has {field} = {value}, the least is {least}")
        if hello.model != self._model:
            raise JoinRefused(
                f"node {name} serves model {hello.model!r}, this cluster {self._model!r}"
            )
        tokenizer = hello.fingerprint.get("tokenizer", "")
        if self._tokenizer_digest and tokenizer != self._tokenizer_digest:
            raise JoinRefused(
                f"node {name} has tokenizer = {tokenizer or '-'}, this scheduler has "
                f"{self._tokenizer_digest}: give both the same model folder"
            )
        for other_name, node in sorted(self._core.nodes.items()):
            if other_name == name or node.state is NodeState.LOST:
                continue
            faults = pair_faults(
                hello.fingerprint,
                self._hellos[other_name].fingerprint,
                here=f"at node {name}",
                peer=f"node {other_name}",
            )
            if faults:
                raise JoinRefused(f"blocks could not be exchanged: {'; '.join(faults)}")


def life_of(identity: NodeIdentity) -> tuple[str, int]:
    """What tells one life of a name from another."""
    return identity.uuid, identity.boot_epoch


def _forking(name: str) -> Forking:
    """A newer node's way of it is not counted upon."""
    try:
        return Forking(name)
    except ValueError:
        log.warning("forking_unknown", forking=name)
        return Forking.NONE


def _failure_kind(name: str) -> FailureKind:
    """A newer node's kind counts as the engine's fault: that request is tried elsewhere."""
    try:
        return FailureKind(name)
    except ValueError:
        log.warning("failure_kind_unknown", kind=name)
        return FailureKind.ENGINE

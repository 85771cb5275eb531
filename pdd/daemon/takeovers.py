"""What nodes hold of a scheduler that is gone, on its way into this one.

A node tells it before it joins; then, in one step, it is a member whose blocks are in use. What
runs is claimed and goes on. What does not is claimed and read first: the core hears of it when all
that it has said is known (``OutputRecovered``).

Of a request that has no output at its decode node, the first token may be known to its prefill node
alone, and its client may have it: where one of the two has told, the other one is waited for, and
the token counts. After ``FIRST_TOKEN_WAIT_S`` what was told will do.

A node that has not told all after ``TELL_WITHIN_S`` is a member without the rest, which it forgets
by itself. Output that is being read, and of which nothing comes for ``READ_SILENCE_S``, is computed
anew from there. Beyond ``TOLD_SIZE_BYTES_MAX`` of one node, requests are cancelled there: whoever
comes back for one is answered as if no node had held it.
"""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

import structlog

from pdd.control.convert import finish_from_proto, request_from_submit
from pdd.control.node_session import NodeSession
from pdd.core.frames import EngineFacts, Finish, Frame
from pdd.core.identity import NodeName, RequestId
from pdd.core.ports import Adopter, Sink
from pdd.core.requests import GenerateRequest
from pdd.daemon.request_stream import RequestStream
from pdd.rpc.v1 import cluster_pb2
from pdd.scheduler.events import HeldSequence, OutputRecovered

log = structlog.get_logger(__name__)

_PREFILL, _DECODE = _KINDS = ("prefill", "decode")
TELL_WITHIN_S = 10.0
READ_SILENCE_S = 10.0
FIRST_TOKEN_WAIT_S = 1.0
"""As long as a node that lost its scheduler may pause before it attaches again."""
TOLD_SIZE_BYTES_MAX = 64 << 20
"""About 16 million tokens of prompts; a node holds a million (``resume.tokens_max``)."""


@dataclass(slots=True)
class _Telling:
    """A node that says what it holds."""

    deadline: asyncio.TimerHandle
    requests: list[cluster_pb2.HeldRequest] = field(default_factory=list)
    size_bytes: int = 0


@dataclass(slots=True, kw_only=True)
class _Reading:
    session: NodeSession
    held: HeldSequence
    deadline: asyncio.TimerHandle


@dataclass(frozen=True, slots=True, kw_only=True)
class _Word:
    """What one node has told of a request."""

    session: NodeSession
    message: cluster_pb2.HeldRequest
    held: HeldSequence


@dataclass(slots=True, kw_only=True)
class _Unsure:
    """A request whose first token may be known to a node that has not told yet. ``words``: by kind
    of job, of one attempt; never empty."""

    timer: asyncio.TimerHandle
    words: dict[str, _Word] = field(default_factory=dict)


class Takeovers:
    """All calls on the event loop."""

    def __init__(
        self,
        *,
        streams: dict[RequestId, RequestStream],
        keys_of: Callable[[GenerateRequest], bytes],
        recovered: Callable[[OutputRecovered], None],
        overdue: Callable[[NodeSession], None],
        tell_within_s: float = TELL_WITHIN_S,
        read_silence_s: float = READ_SILENCE_S,
        first_token_wait_s: float = FIRST_TOKEN_WAIT_S,
    ) -> None:
        """``streams``: the driver's; who is taken over gets one. ``recovered``: see the module.
        ``overdue``: this node has not told all in time."""
        self.adopter: Adopter = _nobody
        self._streams = streams
        self._keys_of = keys_of
        self._recovered = recovered
        self._overdue = overdue
        self._tell_within_s = tell_within_s
        self._read_silence_s = read_silence_s
        self._first_token_wait_s = first_token_wait_s
        self._told: dict[NodeSession, _Telling] = {}
        self._reading: dict[RequestId, _Reading] = {}
        self._unsure: dict[RequestId, _Unsure] = {}

    def expect(self, session: NodeSession) -> None:
        """This node will tell what it holds; it is no member before it has, or is overdue."""
        loop = asyncio.get_running_loop()
        deadline = loop.call_later(self._tell_within_s, self._give_up, session)
        self._told[session] = _Telling(deadline=deadline)

    def _give_up(self, session: NodeSession) -> None:
        log.warning(
            "held_requests_untold",
            node=session.identity.name,
            why=f"it has announced what it holds and has not told all in {self._tell_within_s:g} s",
        )
        self._overdue(session)

    def tell(self, session: NodeSession, message: cluster_pb2.HeldRequests) -> bool:
        """It does; True when that was all."""
        told = self._told.get(session)
        if told is None:
            return False  # it had nothing to tell, or is overdue
        for one in message.requests:
            told.size_bytes += one.ByteSize()
            if told.size_bytes <= TOLD_SIZE_BYTES_MAX:
                told.requests.append(one)
            else:
                log.warning("takeover_refused", request_id=one.submit.request_id, why="too many")
                session.cancel(one.submit.request_id)
        return message.complete

    def take(self, session: NodeSession) -> tuple[HeldSequence, ...]:
        """Take over what it holds, and begin to read what does not run any more. Returns what runs:
        to be claimed with ``claim`` when the core has it."""
        running = []
        for message in self._told_by(session):
            held = self._adopted(session, message)
            if held is None:
                if message.submit.kind != _PREFILL:  # whose blocks may be on their way
                    session.cancel(message.submit.request_id)
            elif self._begin(session, message, held) is not None:
                running.append(held)
        return tuple(running)

    def _told_by(self, session: NodeSession) -> list[cluster_pb2.HeldRequest]:
        """It is not waited for any more."""
        told = self._told.pop(session, None)
        if told is None:
            return []
        told.deadline.cancel()
        return told.requests

    def found(self, session: NodeSession, message: cluster_pb2.HeldRequest) -> HeldSequence | None:
        """One that a client has come back for. Returns it if it runs, as ``take`` does."""
        held = self._adopted(session, message)
        running = None if held is None else self._begin(session, message, held)
        self._decide_told()
        return running

    def _begin(
        self, session: NodeSession, message: cluster_pb2.HeldRequest, held: HeldSequence
    ) -> HeldSequence | None:
        word = _Word(session=session, message=message, held=held)
        if not _is_unsure(message):
            self._settle(held.request.request_id)
            return self._follow(word)
        unsure = self._unsure.get(held.request.request_id)
        if unsure is None:
            loop = asyncio.get_running_loop()
            timer = loop.call_later(self._first_token_wait_s, self._decide, held.request.request_id)
            unsure = self._unsure[held.request.request_id] = _Unsure(timer=timer)
        unsure.words.setdefault(message.submit.kind, word)
        return None

    def _decide_told(self) -> None:
        """Where both have told, nobody is left to wait for."""
        for request_id, unsure in list(self._unsure.items()):
            if len(unsure.words) == len(_KINDS):
                self._decide(request_id)

    def _decide(self, request_id: RequestId) -> None:
        """Nobody else is waited for: a first token counts; else only the request is known."""
        words = self._settle(request_id)
        chosen = words.get(_PREFILL) or words[_DECODE]
        for word in words.values():
            if word is not chosen:
                word.session.cancel(request_id)
        self._follow(chosen)

    def _settle(self, request_id: RequestId) -> dict[str, _Word]:
        """What was told so far; nothing is waited for any more."""
        unsure = self._unsure.pop(request_id, None)
        if unsure is None:
            return {}
        unsure.timer.cancel()
        return unsure.words

    def _follow(self, word: _Word) -> HeldSequence | None:
        """Returns it if it runs."""
        session, held = word.session, word.held
        if word.message.is_running:
            return held
        if held.output_token_count == 0:
            session.cancel(held.request.request_id)
            self._recovered(OutputRecovered(node=session.identity.name, held=held, finish=None))
        else:
            request_id = held.request.request_id
            deadline = self._silence_ends(request_id)
            self._reading[request_id] = _Reading(session=session, held=held, deadline=deadline)
            _claim(session, held)
        return None

    def _silence_ends(self, request_id: RequestId) -> asyncio.TimerHandle:
        loop = asyncio.get_running_loop()
        return loop.call_later(self._read_silence_s, self._read_no_longer, request_id)

    def _read_no_longer(self, request_id: RequestId) -> None:
        log.warning(
            "held_output_untold",
            request_id=request_id,
            node=self._reading[request_id].session.identity.name,
            why=f"nothing of it came for {self._read_silence_s:g} s; the rest is computed anew",
        )
        self._read(request_id, None)

    def claim(self, session: NodeSession, running: Iterable[HeldSequence]) -> None:
        """What the core has taken over: its tokens come from the first one on."""
        for held in running:
            _claim(session, held)
        self._decide_told()

    def show(self, frame: Frame, generation: int, session: NodeSession) -> None:
        """A frame of a request that the core does not know; ignored unless it is read here.

        Raises:
            ValueError: the frame does not join the ones before.
        """
        reading = self._read_from(frame.request_id, generation, session)
        if reading is None:
            return
        reading.deadline.cancel()
        reading.deadline = self._silence_ends(frame.request_id)
        self._streams[frame.request_id].show(frame)
        if frame.finish is not None:
            self._read(frame.request_id, frame.finish)

    def stopped(self, request_id: RequestId, generation: int, session: NodeSession) -> bool:
        """A node has told all that it holds of a request that did not end; False: it is not read
        from there."""
        if self._read_from(request_id, generation, session) is None:
            return False
        self._read(request_id, None)
        return True

    def _read_from(
        self, request_id: RequestId, generation: int, session: NodeSession
    ) -> _Reading | None:
        """None: another node, or nobody, is asked for that attempt."""
        reading = self._reading.get(request_id)
        if reading is None or reading.session is not session:
            return None
        return reading if reading.held.generation == generation else None

    def forget(self, request_id: RequestId) -> None:
        """Its client is gone."""
        reading = self._reading.pop(request_id, None)
        if reading is not None:
            reading.deadline.cancel()
            reading.session.cancel(request_id)
        for word in self._settle(request_id).values():
            word.session.cancel(request_id)

    def detached(self, session: NodeSession) -> None:
        """What was not read from this node yet is to be computed anew."""
        self._told_by(session)
        lost = [name for name, one in self._reading.items() if one.session is session]
        for request_id in lost:
            self._read(request_id, None)
        for request_id, unsure in list(self._unsure.items()):
            self._forget_word(request_id, unsure, session)

    def _forget_word(self, request_id: RequestId, unsure: _Unsure, session: NodeSession) -> None:
        """A node is gone: what it had told cannot be read there any more."""
        for kind, word in list(unsure.words.items()):
            if word.session is not session:
                continue
            del unsure.words[kind]
            if not unsure.words:
                self._settle(request_id)
                held = replace(word.held, output_token_count=0)
                name = session.identity.name
                self._recovered(OutputRecovered(node=name, held=held, finish=None))

    def _read(self, request_id: RequestId, finish: Finish | None) -> None:
        reading = self._reading.pop(request_id)
        reading.deadline.cancel()
        held = replace(reading.held, output_token_count=self._streams[request_id].token_count)
        node = reading.session.identity.name
        if finish is None:
            reading.session.cancel(request_id)  # blocks of a prefill job, which nobody fetches now
        self._recovered(OutputRecovered(node=node, held=held, finish=finish))

    def _adopted(
        self, session: NodeSession, message: cluster_pb2.HeldRequest
    ) -> HeldSequence | None:
        """Give it a client's place at the front door; None where that cannot be."""
        submit = message.submit
        request_id = RequestId(submit.request_id)
        unsure = self._unsure.get(request_id)
        if unsure is not None:
            known = next(iter(unsure.words.values()))
            if submit.generation != known.held.generation:
                return None  # of another attempt
            return _sequence(session, message, known.held.request, known.held.keys)
        if request_id in self._streams:
            return None  # it was planned anew, or another node has given it
        try:
            request, sink = self.adopter(request_from_submit(submit))
        except ValueError as error:
            log.warning("takeover_refused", request_id=request_id, why=str(error))
            return None
        self._streams[request_id] = RequestStream(sink, choice_count=request.choice_count)
        log.info(
            "request_taken_over",
            request_id=request_id,
            node=session.identity.name,
            is_running=message.is_running,
            output_tokens=message.output_token_count,
        )
        return _sequence(session, message, request, self._keys_of(request))


def _sequence(
    session: NodeSession,
    message: cluster_pb2.HeldRequest,
    request: GenerateRequest,
    keys: bytes,
) -> HeldSequence:
    """``request``: the whole one, of which the message has but what nodes are told."""
    submit = message.submit
    prefill_node = None
    if submit.kind == _PREFILL:
        prefill_node = session.identity.name
    elif submit.HasField("source"):
        prefill_node = NodeName(submit.source.identity.name)
    return HeldSequence(
        request=request,
        keys=keys,
        generation=submit.generation,
        output_token_count=message.output_token_count,
        prefill_node=prefill_node,
        first_facts=_first_facts(message),
        arrived_age_s=submit.arrived_age_s + message.age_s,
        placed_age_s=submit.placed_age_s + message.age_s,
        first_token_age_s=_first_token_age_s(message),
        ready_age_s=message.ready_age_s if message.HasField("ready_age_s") else None,
        ended_age_s=message.ended_age_s if message.HasField("ended_age_s") else None,
    )


def _is_unsure(message: cluster_pb2.HeldRequest) -> bool:
    """Whether the request's other node may know its first token, or more than that."""
    submit = message.submit
    if submit.kind == _PREFILL:
        return True
    is_empty = not message.is_running and message.output_token_count == 0
    return submit.kind == _DECODE and is_empty and not submit.choices


def _nobody(request: GenerateRequest) -> tuple[GenerateRequest, Sink]:
    raise ValueError(f"this scheduler has no front door for {request.request_id}")


def _claim(session: NodeSession, held: HeldSequence) -> None:
    session.claim(held.request.request_id, held.generation)


def _first_facts(message: cluster_pb2.HeldRequest) -> EngineFacts:
    """What the prefill node counted, if there was one."""
    if not message.first_token.frame.HasField("finish"):
        return EngineFacts()
    return finish_from_proto(message.first_token.frame.finish).facts


def _first_token_age_s(message: cluster_pb2.HeldRequest) -> float | None:
    if message.submit.HasField("first_token_age_s"):  # an earlier attempt had it
        return message.submit.first_token_age_s + message.age_s
    return message.first_token_age_s if message.HasField("first_token_age_s") else None

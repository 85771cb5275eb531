"""Frames of nodes, on their way to clients and, where they mean something to it, to the core.

Most tokens go from a node's message to the client's stream at once: only a request's first token,
its end, and an output that outgrows its lease are events of the core.
"""

from collections.abc import Callable, Iterable, Mapping

import structlog

from pdd.control.convert import frame_from_proto, rows_from_columns
from pdd.control.node_session import NodeSession
from pdd.core.frames import Frame, token_frame
from pdd.core.identity import NodeName, RequestId
from pdd.daemon.request_stream import RequestStream
from pdd.daemon.takeovers import Takeovers
from pdd.rpc.v1 import cluster_pb2
from pdd.scheduler.core import SchedulerCore
from pdd.scheduler.events import (
    Event,
    FailureKind,
    FirstTokenSampled,
    JobFailed,
    SequenceFinished,
    SequenceGrew,
    SequenceStarted,
)
from pdd.scheduler.frames import fault, hands_over, takes_part
from pdd.scheduler.requests import Phase

log = structlog.get_logger(__name__)


class FrameIntake:
    """A frame of a former attempt is ignored; one that is out of place fails its attempt."""

    def __init__(
        self,
        *,
        core: SchedulerCore,
        streams: Mapping[RequestId, RequestStream],
        takeovers: Takeovers,
        step: Callable[[Event], None],
    ) -> None:
        """``takeovers``: reads frames of requests that the core does not know. ``step``: tells the
        core."""
        self._core = core
        self._streams = streams
        self._takeovers = takeovers
        self._step = step

    def on_tokens(self, session: NodeSession, columns: cluster_pb2.TokenColumns) -> None:
        """One engine step of a node. What is done here, every token of the cluster pays for."""
        node = session.identity.name
        requests, streams, decoding = self._core.requests, self._streams, Phase.DECODING
        for row in rows_from_columns(columns):
            request_id, generation, index, token_id, offset, text, choice = row
            request = requests.get(request_id)
            stream = streams.get(request_id)
            if (
                request is not None
                and stream is not None
                and request.phase is decoding
                and request.generation == generation
                and index + 1 < request.grows_at_tokens
                and (request.decode or request.prefill) == node  # ``runs_on``
                and not request.holder
            ):  # nearly always: nothing is left to check, and to the core it means nothing
                if choice or not stream.show_token(request_id, index, token_id, offset, text):
                    frame = token_frame(request_id, index, token_id, offset, text, choice)
                    self._show(stream, frame, generation, node)
            else:
                frame = token_frame(request_id, index, token_id, offset, text, choice)
                self._on_frame(frame, generation, session)

    def on_frames(self, session: NodeSession, messages: Iterable[cluster_pb2.TokenFrame]) -> None:
        """Frames that no columns can hold."""
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
            log.warning(
                "held_output_refused",
                request_id=frame.request_id,
                node=session.identity.name,
                why=f"frames do not join: {error}",
            )
            self._takeovers.stopped(frame.request_id, generation, session)  # the rest: anew

    def _on_frame(self, frame: Frame, generation: int, session: NodeSession) -> None:
        """Checked first, shown then, told to the core last: what is shown cannot be taken back."""
        request = self._core.requests.get(frame.request_id)
        stream = self._streams.get(frame.request_id)
        if request is None or stream is None or request.generation != generation or request.holder:
            if stream is not None and (request is None or request.holder):
                self._read_held(frame, generation, session)
            return
        node = session.identity.name
        if not takes_part(request, node):
            log.debug("frame_ignored", request_id=frame.request_id, node=node)
            return
        if (why := fault(frame, request, node)) is not None:
            self._fail_attempt(frame.request_id, generation, node, why)
            return
        if not self._show(stream, frame, generation, node):
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

    def _show(self, stream: RequestStream, frame: Frame, generation: int, node: NodeName) -> bool:
        try:
            stream.show(frame)
        except ValueError as error:
            self._refuse(frame, generation, node, error)
            return False
        return True

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

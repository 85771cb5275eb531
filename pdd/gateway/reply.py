"""How an answer grows: what both endpoints' replies have in common. Pure; no sockets.

A reply is used in one of two ways: ``opening``, ``event`` per frame, ``closing`` make a stream;
``collect`` per frame and ``document`` make a whole answer.

Of several choices each ends with its own event, in the frame that ends it; an only choice ends with
``closing``, beside the usage.

Every event has an id (``event_ids``). A reply for a client that has seen some of the stream is
given all frames like any other, and shows nothing up to that client's position.

Invariant, checked for every frame: it begins at the token and the character after the last one of
its choice, and at the end as many tokens were shown as were generated. A gap or an overlap would be
text that is wrong although the status is 200, so it is an error.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

from pdd.core.errors import RequestFailed
from pdd.core.frames import Finish, FinishReason, Frame, TokenLogprobs
from pdd.core.requests import Ended
from pdd.gateway import sse
from pdd.gateway.event_ids import (
    START,
    UNSEEN,
    ChoicePosition,
    Position,
    check_told,
    choice_id,
    invalid_position,
)
from pdd.gateway.job import Job
from pdd.gateway.json_text import json_bytes, json_string
from pdd.gateway.text_events import Progress, TextEvents
from pdd.gateway.usage import token_counts, usage_object

# A word that no id and no model name contains, to cut a prebuilt event at.
_HOLE = "\x00text\x00"

_ALL = 1 << 62


def check_end(choices: Sequence[Progress], ended: Ended) -> None:
    """Compare with what the engines counted.

    Raises:
        RequestFailed: they generated another number of tokens than were shown, or one of several
            choices has not ended.
    """
    shown = sum(choice.token_count for choice in choices)
    if ended.usage.completion_tokens != shown:
        raise RequestFailed(
            f"output lost or doubled: {ended.usage.completion_tokens} tokens were generated, "
            f"{shown} were shown"
        )
    if len(choices) > 1:
        open_count = sum(choice.finish is None for choice in choices)
        if open_count:
            raise RequestFailed(f"{open_count} of {len(choices)} choices have not ended")


def finish_reason_of(finish: Finish) -> str:
    """OpenAI's word for the end.

    Raises:
        RequestFailed: the sequence was cancelled by the cluster, which is no way to end well.
    """
    if finish.reason is FinishReason.ABORT:
        raise RequestFailed("the request was cancelled by the cluster before it was finished")
    return finish.reason.value


@dataclass(slots=True)
class _Choice:
    """One output on its way. ``before`` and ``after`` make a plain event of a text.

    ``seen``: what of it its client has seen before; ``skipped_count``: tokens that are passed over
    for that. ``is_opened``, ``is_finished``: its first and its last event were told.
    """

    seen: ChoicePosition = UNSEEN
    skipped_count: int = 0
    is_opened: bool = False
    is_finished: bool = False
    progress: Progress = field(default_factory=Progress)
    before: bytes = b""
    after: bytes = b""
    texts: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)


class Reply(ABC):
    """The shape of one answer. Subclasses say where text, logprobs and ids stand in it."""

    __slots__ = (
        "_choices",
        "_flows",
        "_has_usage",
        "_id_before",
        "_is_only",
        "_is_plain",
        "_model_name",
        "_prompt_ids_shown",
        "_request_id",
        "job",
    )

    def __init__(self, job: Job, *, model_name: str, position: Position = START) -> None:
        """``position``: what of the stream its client has seen already."""
        self.job = job
        self._choices = [
            _Choice(
                seen=seen,
                skipped_count=_ALL if seen.is_finished else seen.token_count,
                is_opened=seen.is_opened,
                is_finished=seen.is_finished,
            )
            for seen in position.choices or [UNSEEN] * job.request.choice_count
        ]
        self._is_only = len(self._choices) == 1
        self._model_name = model_name
        self._has_usage = position.has_usage
        self._request_id = job.request.request_id.encode()
        self._prompt_ids_shown = position is not START or not job.return_token_ids
        # Only text changes from event to event unless the client asked for more.
        self._is_plain = (
            job.request.sampling.logprobs is None
            and not job.return_token_ids
            and not job.running_usage
        )
        self._flows = self._is_plain and self._is_only and position is START
        self._id_before = b"id: %b:" % self._request_id
        if job.stream and self._is_plain:
            for index, choice in enumerate(self._choices):
                choice.before, choice.after = sse.template(
                    self.chunk([self.text_choice(_HOLE, index)]), hole=_HOLE
                )

    @property
    def completion_tokens(self) -> int:
        return sum(choice.progress.token_count for choice in self._choices)

    # A stream.

    def opening(self) -> bytes:
        """Events before the first token."""
        events = b""
        for index, choice in enumerate(self._choices):
            shown = None if choice.is_opened else self.opening_choice(index)
            choice.is_opened = True
            if shown is not None:
                events += self._choice_event(shown)
        return events

    def event(self, frame: Frame) -> bytes:
        """What the client gets for one frame; b"" when its text is held back, or was seen."""
        choice = self._choices[frame.choice_index]
        choice.progress.advance(frame)
        events = b""
        if frame.first_token_index < choice.skipped_count or choice.is_finished:
            self._pass_over(choice, frame)
        elif frame.finish is None or frame.token_ids or frame.text:
            events = self._text_event(choice, frame)
        if frame.finish is not None and not choice.is_finished:
            choice.is_finished = True
            events += self._choice_event(self.end_choice(frame.finish, frame.choice_index))
        return events

    def flow(self) -> TextEvents | None:
        """After the first event: what is the same as ``event`` for all but the last one. None: the
        client is told more than text, or other choices, or has seen some of it before."""
        if not self._flows:
            return None
        only = self._choices[0]
        return TextEvents(
            progress=only.progress,
            id_before=self._id_before,
            before=only.before,
            after=only.after,
        )

    def _text_event(self, choice: _Choice, frame: Frame) -> bytes:
        if self._is_plain:
            if not frame.text:
                return b""
            text = json_string(frame.text)
            parts = (self._id_before, self._place(), choice.before, text, choice.after)
            return b"".join(parts)
        shown = self.text_choice(frame.text, frame.choice_index)
        if self.job.request.sampling.logprobs is not None:
            shown["logprobs"] = self.logprobs_of(frame.logprobs, frame.choice_index)
        if self.job.return_token_ids:
            shown["token_ids"] = list(frame.token_ids)
        return self._choice_event(shown)

    def closing(self, ended: Ended) -> bytes:
        """The events after the last token: the reason, the usage if asked for, and DONE."""
        only = self.end_choice(ended.finish, 0) if self._is_only else None
        check_end([choice.progress for choice in self._choices], ended)
        counts = [choice.progress.token_count for choice in self._choices]
        cuts = [choice.seen.token_count for choice in self._choices]
        check_told(counts, cuts, what="all of it")
        events = b""
        if only is not None and not self._choices[0].is_finished:
            self._choices[0].is_finished = True
            events += self._choice_event(only)
        if self.job.usage_chunk and not self._has_usage:
            self._has_usage = True
            usage = {**self.chunk([]), "usage": self.usage(ended)}
            events += sse.event(usage, event_id=self._event_id())
        return events + sse.done(event_id=self._event_id())

    def error(self, body: dict[str, object]) -> bytes:
        """The event after which nothing comes any more."""
        return sse.event(body, event_id=self._event_id())

    # A whole answer.

    def collect(self, frame: Frame) -> None:
        """Keep a frame for the document."""
        choice = self._choices[frame.choice_index]
        choice.progress.advance(frame)
        choice.texts.append(frame.text)
        if self.job.return_token_ids:
            choice.token_ids.extend(frame.token_ids)
        choice.logprobs.extend(frame.logprobs)

    def document(self, ended: Ended) -> bytes:
        """The answer as one JSON document."""
        choices = [
            self._whole(choice, choice.progress.finish or ended.finish, index)
            for index, choice in enumerate(self._choices)
        ]
        check_end([choice.progress for choice in self._choices], ended)
        answer = self._with_prompt_ids({**self._frame(self.whole_object), "choices": choices})
        return json_bytes({**answer, "usage": self.usage(ended)})

    def _whole(self, choice: _Choice, finish: Finish, index: int) -> dict[str, object]:
        shown = self.whole_choice("".join(choice.texts), index, finish=finish)
        if self.job.request.sampling.logprobs is not None:
            shown["logprobs"] = self.logprobs_of(choice.logprobs, index)
        if self.job.return_token_ids:
            shown["token_ids"] = choice.token_ids
        return shown

    # The parts.

    @property
    @abstractmethod
    def answer_id(self) -> str:
        """OpenAI's ``id``."""

    @property
    @abstractmethod
    def chunk_object(self) -> str:
        """``object`` of a stream's documents."""

    @property
    @abstractmethod
    def whole_object(self) -> str:
        """``object`` of a whole answer."""

    @abstractmethod
    def opening_choice(self, index: int) -> dict[str, object] | None:
        """A stream's first choice of that index, if it has one before the first token."""

    @abstractmethod
    def text_choice(self, text: str, index: int) -> dict[str, object]:
        """A stream's choice with some text and no end."""

    @abstractmethod
    def end_choice(self, finish: Finish, index: int) -> dict[str, object]:
        """A stream's last choice."""

    @abstractmethod
    def whole_choice(self, text: str, index: int, *, finish: Finish) -> dict[str, object]:
        """The choice of a whole answer."""

    @abstractmethod
    def logprobs_of(
        self, tokens: tuple[TokenLogprobs, ...] | list[TokenLogprobs], index: int
    ) -> dict[str, object]:
        """The endpoint's shape of logprobs for the next tokens of a choice."""

    @abstractmethod
    def put_prompt_ids(self, document: dict[str, object], prompt_ids: list[int]) -> None:
        """Put ``prompt_token_ids`` where the endpoint has them."""

    def chunk(self, choices: list[dict[str, object]]) -> dict[str, object]:
        """A stream's document."""
        return {**self._frame(self.chunk_object), "choices": choices}

    def usage(self, ended: Ended) -> dict[str, object]:
        return usage_object(ended.usage, request_id=self.job.request.request_id)

    def _frame(self, kind: str) -> dict[str, object]:
        return {
            "id": self.answer_id,
            "object": kind,
            "created": self.job.created_s,
            "model": self._model_name,
        }

    def _choice_event(self, choice: dict[str, object]) -> bytes:
        document = self._with_running_usage(self._with_prompt_ids(self.chunk([choice])))
        return sse.event(document, event_id=self._event_id())

    def _event_id(self) -> bytes:
        return b"%b:%b" % (self._request_id, self._place())

    def _place(self) -> bytes:
        """Where a client is that has seen all that was told by now."""
        choices = b",".join(
            choice_id(
                max(choice.progress.token_count, choice.seen.token_count),
                is_opened=choice.is_opened,
                is_finished=choice.is_finished,
            )
            for choice in self._choices
        )
        return choices + b"u" if self._has_usage else choices

    def _pass_over(self, choice: _Choice, frame: Frame) -> None:
        """What its client has seen: only what runs on over the events is taken from it.

        Raises:
            InvalidRequest: the client's position is in the middle of the frame.
        """
        if choice.progress.token_count > choice.seen.token_count:
            why = "no event ended there"
            raise invalid_position(frame.choice_index, choice.seen.token_count, why)
        if self.job.request.sampling.logprobs is not None:
            self.logprobs_of(frame.logprobs, frame.choice_index)

    def _with_prompt_ids(self, document: dict[str, object]) -> dict[str, object]:
        """The prompt's ids go with the first document that has a choice, once."""
        if not self._prompt_ids_shown:
            self._prompt_ids_shown = True
            self.put_prompt_ids(document, list(self.job.request.prompt_token_ids))
        return document

    def _with_running_usage(self, document: dict[str, object]) -> dict[str, object]:
        if self.job.running_usage:
            document["usage"] = token_counts(
                prompt_tokens=len(self.job.request.prompt_token_ids),
                completion_tokens=self.completion_tokens,
            )
        return document

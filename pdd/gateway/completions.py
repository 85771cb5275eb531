"""The answer of ``POST /v1/completions``."""

from typing import Any, cast

from pdd.core.frames import Finish, TokenLogprobs
from pdd.gateway.event_ids import START, Position
from pdd.gateway.job import Job
from pdd.gateway.logprobs import completion_logprobs
from pdd.gateway.reply import Reply, finish_reason_of


class CompletionReply(Reply):
    """``text_completion`` objects. With ``echo`` the prompt's text comes first."""

    __slots__ = ("_next_text_offsets",)

    def __init__(self, job: Job, *, model_name: str, position: Position = START) -> None:
        super().__init__(job, model_name=model_name, position=position)
        self._next_text_offsets = [0] * job.request.choice_count

    @property
    def answer_id(self) -> str:
        return f"cmpl-{self.job.request.request_id}"

    @property
    def chunk_object(self) -> str:
        return "text_completion"

    @property
    def whole_object(self) -> str:
        return "text_completion"

    def opening_choice(self, index: int) -> dict[str, object] | None:
        if not self.job.echo_text:
            return None
        choice = self.text_choice(self.job.echo_text, index)
        if self.job.return_token_ids:
            choice["token_ids"] = []
        return choice

    def text_choice(self, text: str, index: int) -> dict[str, object]:
        return {
            "index": index,
            "text": text,
            "logprobs": None,
            "finish_reason": None,
            "stop_reason": None,
        }

    def end_choice(self, finish: Finish, index: int) -> dict[str, object]:
        choice = self.text_choice("", index)
        choice["finish_reason"] = finish_reason_of(finish)
        choice["stop_reason"] = finish.stop_reason
        if self.job.return_token_ids:
            choice["token_ids"] = []
        return choice

    def whole_choice(self, text: str, index: int, *, finish: Finish) -> dict[str, object]:
        return {**self.end_choice(finish, index), "text": self.job.echo_text + text}

    def logprobs_of(
        self, tokens: tuple[TokenLogprobs, ...] | list[TokenLogprobs], index: int
    ) -> dict[str, object]:
        lists, self._next_text_offsets[index] = completion_logprobs(
            tokens,
            text_offset=self._next_text_offsets[index],
            as_token_ids=self.job.tokens_as_ids,
        )
        return lists

    def put_prompt_ids(self, document: dict[str, object], prompt_ids: list[int]) -> None:
        """In the choices, as vLLM has it for this endpoint."""
        for choice in cast("list[dict[str, Any]]", document["choices"]):
            choice["prompt_token_ids"] = prompt_ids

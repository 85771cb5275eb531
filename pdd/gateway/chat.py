"""The answer of ``POST /v1/chat/completions``."""

from pdd.core.frames import Finish, TokenLogprobs
from pdd.gateway.logprobs import chat_logprobs
from pdd.gateway.reply import Reply, finish_reason_of


class ChatReply(Reply):
    """``chat.completion`` objects. A stream opens with the role and ends with an empty delta."""

    __slots__ = ()

    @property
    def answer_id(self) -> str:
        return f"chatcmpl-{self.job.request.request_id}"

    @property
    def chunk_object(self) -> str:
        return "chat.completion.chunk"

    @property
    def whole_object(self) -> str:
        return "chat.completion"

    def opening_choice(self, index: int) -> dict[str, object] | None:
        return _choice({"role": self.job.role, "content": ""}, index)

    def text_choice(self, text: str, index: int) -> dict[str, object]:
        return _choice({"content": text}, index)

    def end_choice(self, finish: Finish, index: int) -> dict[str, object]:
        choice = _choice({}, index)
        choice["finish_reason"] = finish_reason_of(finish)
        choice["stop_reason"] = finish.stop_reason
        return choice

    def whole_choice(self, text: str, index: int, *, finish: Finish) -> dict[str, object]:
        return {
            "index": index,
            "message": {"role": self.job.role, "content": text, "refusal": None},
            "logprobs": None,
            "finish_reason": finish_reason_of(finish),
            "stop_reason": finish.stop_reason,
        }

    def logprobs_of(
        self, tokens: tuple[TokenLogprobs, ...] | list[TokenLogprobs], index: int
    ) -> dict[str, object]:
        return chat_logprobs(tokens, as_token_ids=self.job.tokens_as_ids)

    def put_prompt_ids(self, document: dict[str, object], prompt_ids: list[int]) -> None:
        """Beside the choices, as vLLM has it for this endpoint."""
        document["prompt_token_ids"] = prompt_ids


def _choice(delta: dict[str, object], index: int) -> dict[str, object]:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}

"""One request's way from engine steps to frames, the same on every node.

    prefill node   OutputStream(...)                              push([t0])
    decode node    OutputStream(...), replay([t0])                push([t1]), push([t2]) ...
    after a loss   OutputStream(...), replay([t0, t1, ... t9])    push([t10]) ...

Every stream starts from the same prompt and tokens, so it holds the same text back and numbers
tokens and characters alike: the frames of all nodes together are those of one engine.
Behaviour is that of vLLM's frontend (v1/engine/output_processor.py and detokenizer.py, 0.32.0).
"""

from collections.abc import Sequence

from tokenizers import Tokenizer

from pdd.core.frames import Finish, FinishReason, Frame, TokenLogprobs
from pdd.core.identity import RequestId
from pdd.core.sampling import Sampling
from pdd.engine.output_text import Detokenizer, HeldText


class OutputStream:
    """Turns what an engine made into frames; finds stop strings; holds text back.

    Args:
        prompt_token_ids: the client's prompt, without any output token.
        first_output_index: where given, ``push`` insists that exactly so many tokens were
            replayed: the index of the first token that this node's engine makes.
        choice_index: which of the request's choices this is.
    """

    def __init__(
        self,
        *,
        request_id: RequestId,
        prompt_token_ids: Sequence[int],
        sampling: Sampling,
        tokenizer: Tokenizer,
        first_output_index: int | None = None,
        choice_index: int = 0,
    ) -> None:
        self._request_id = request_id
        self._choice_index = choice_index
        self._first_output_index = first_output_index
        self._min_tokens = sampling.min_tokens
        self._include_stop = sampling.include_stop_str_in_output
        self._detokenizer = Detokenizer(
            tokenizer,
            prompt_token_ids=prompt_token_ids,
            skip_special_tokens=sampling.skip_special_tokens,
        )
        self._text = HeldText(stop=sampling.stop, include_stop=self._include_stop)
        self._token_count = 0
        self._pushed = False
        self._finished = False
        self._must_abort = False

    @property
    def token_count(self) -> int:
        """Output tokens so far, replayed ones included: the usage's completion tokens.

        A token that ends the request counts: the EOS, and the one that completes a stop string.
        """
        return self._token_count

    @property
    def finished(self) -> bool:
        """True once a frame with a finish was made; there is no push after it."""
        return self._finished

    @property
    def must_abort(self) -> bool:
        """True where a stop string ended the request but the engine goes on: abort it there."""
        return self._must_abort

    def replay(self, token_ids: Sequence[int]) -> None:
        """Take in tokens whose frames another node has sent already.

        Raises:
            ValueError: they contain a stop string, so the request had ended there.
        """
        assert not self._pushed, "replay comes before the first push"
        for token_id in token_ids:
            stop_string = self._add(token_id, hidden=False)
            if stop_string is not None:
                raise ValueError(
                    f"request {self._request_id}: replayed token {self._token_count - 1} completes "
                    f"stop string {stop_string!r}, so the request had ended; do not continue it"
                )
        self._text.take(everything=False)

    def push(
        self,
        token_ids: Sequence[int],
        logprobs: Sequence[TokenLogprobs],
        finish: Finish | None,
    ) -> Frame:
        """The frame of one engine step.

        Args:
            token_ids: new tokens, in order; may be empty.
            logprobs: one per token, or empty where none were asked for.
            finish: the engine's end of the request, if this step ended it. On a prefill node whose
                engine was asked for one token of several, its LENGTH is no end: pass None.

        If a stop string is completed, the frame's finish is STOP with that string as its reason,
        and tokens after the completing one are dropped, as vLLM does: they are neither in the
        frame nor in the usage. The completing token stays, although its text may be cut. The
        facts are those of ``finish``; without one they are still to be filled in by the caller.

        The text of a stop token (EOS or ``stop_token_ids``) is shown only with
        ``include_stop_str_in_output``; its id is always in the frame.
        """
        assert not self._finished, f"request {self._request_id} has ended"
        if self._first_output_index is not None and not self._pushed:
            assert self._token_count == self._first_output_index, (
                f"request {self._request_id}: {self._token_count} tokens were replayed, but the "
                f"engine begins at index {self._first_output_index}"
            )
        if logprobs and len(logprobs) != len(token_ids):
            raise ValueError(
                f"request {self._request_id}: {len(token_ids)} tokens came with "
                f"{len(logprobs)} logprobs; there must be one each, or none"
            )
        self._pushed = True
        first_token_index = self._token_count
        stop_token_ends = finish is not None and finish.reason is FinishReason.STOP
        last = len(token_ids) - 1
        stop_string: str | None = None
        for position, token_id in enumerate(token_ids):
            hidden = stop_token_ends and position == last and not self._include_stop
            stop_string = self._add(token_id, hidden=hidden)
            if stop_string is not None:
                self._must_abort = finish is None
                finish = _stopped_by(stop_string, finish)
                break
        self._finished = finish is not None
        kept_count = self._token_count - first_token_index
        text_offset, text = self._text.take(everything=self._finished)
        return Frame(
            request_id=self._request_id,
            first_token_index=first_token_index,
            token_ids=tuple(token_ids[:kept_count]),
            text_offset=text_offset,
            text=text,
            logprobs=tuple(logprobs[:kept_count]),
            finish=finish,
            choice_index=self._choice_index,
        )

    def _add(self, token_id: int, *, hidden: bool) -> str | None:
        """Take one token in; the stop string that it completes, if any."""
        self._token_count += 1
        if hidden:
            return None
        text = self._detokenizer.step(token_id)
        # vLLM looks for stop strings from the first token after min_tokens on; one that is
        # complete before that is output like any other text.
        if self._token_count > self._min_tokens:
            return self._text.append_until_stop(text)
        self._text.append(text)
        return None


def _stopped_by(stop_string: str, finish: Finish | None) -> Finish:
    if finish is None:
        return Finish(reason=FinishReason.STOP, stop_reason=stop_string)
    return Finish(reason=FinishReason.STOP, stop_reason=stop_string, facts=finish.facts)

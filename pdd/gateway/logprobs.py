"""Log probabilities in the two shapes that OpenAI's API has."""

from collections.abc import Sequence

from pdd.core.frames import Logprob, TokenLogprobs
from pdd.gateway.json_text import finite_logprob


def chat_logprobs(tokens: Sequence[TokenLogprobs], *, as_token_ids: bool) -> dict[str, object]:
    """``{"content": [...]}``: one entry per token, with the most likely candidates."""
    return {
        "content": [
            {
                **_chat_entry(token.chosen, as_token_ids=as_token_ids),
                "top_logprobs": [
                    _chat_entry(candidate, as_token_ids=as_token_ids) for candidate in token.top
                ],
            }
            for token in tokens
        ]
    }


def completion_logprobs(
    tokens: Sequence[TokenLogprobs], *, text_offset: int, as_token_ids: bool
) -> tuple[dict[str, object], int]:
    """The four parallel lists of the older API, and the offset of the token after them.

    Offsets count the characters of the tokens' own texts, as vLLM's do: text that is held back
    for a stop string lags behind its tokens, their offsets do not. ``top_logprobs`` holds the
    chosen token too, though it be none of the most likely ones.
    """
    names: list[str] = []
    offsets: list[int] = []
    for token in tokens:
        name = _name(token.chosen, as_token_ids=as_token_ids)
        names.append(name)
        offsets.append(text_offset)
        text_offset += len(name)
    lists: dict[str, object] = {
        "text_offset": offsets,
        "token_logprobs": [finite_logprob(token.chosen.logprob) for token in tokens],
        "tokens": names,
        "top_logprobs": [
            {
                _name(candidate, as_token_ids=as_token_ids): finite_logprob(candidate.logprob)
                for candidate in (token.chosen, *token.top)
            }
            for token in tokens
        ],
    }
    return lists, text_offset


def _chat_entry(candidate: Logprob, *, as_token_ids: bool) -> dict[str, object]:
    return {
        "token": _name(candidate, as_token_ids=as_token_ids),
        "logprob": finite_logprob(candidate.logprob),
        "bytes": list(candidate.token_bytes),
    }


def _name(candidate: Logprob, *, as_token_ids: bool) -> str:
    return f"token_id:{candidate.token_id}" if as_token_ids else candidate.text

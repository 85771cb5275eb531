"""Logprobs as vLLM gives them (token ids and numbers) to logprobs that a client can read.

The engine runs with ``detokenize=False``, so text and bytes are added here, in OpenAI's sense:
``token_bytes`` are the token's own bytes, which may be part of a character, and joined over the
output give its text; ``text`` is those bytes with U+FFFD for what is no character.
"""

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Protocol

from tokenizers import Tokenizer

from pdd.core.frames import Logprob, TokenLogprobs


class EngineLogprob(Protocol):
    """One candidate as vLLM gives it (vllm/logprobs.py). ``rank`` is 1 for the most likely."""

    @property
    def logprob(self) -> float: ...

    @property
    def rank(self) -> int | None: ...


def token_logprobs(
    token_id: int,
    candidates: Mapping[int, EngineLogprob],
    tokenizer: Tokenizer,
    *,
    top_count: int,
) -> TokenLogprobs:
    """One token's logprobs.

    Args:
        token_id: the chosen token; always among ``candidates``.
        candidates: the chosen token and the ``top_count`` most likely ones.
        top_count: ``Sampling.logprobs``. Without it, a chosen token of rank 2 beside one of rank 1
            could be one of the two most likely, or extra.
    """

    def readable(candidate_id: int) -> Logprob:
        candidate = candidates[candidate_id]
        assert candidate.rank is not None, "vLLM ranks every sampled token and every candidate"
        token_bytes, text = token_bytes_and_text(candidate_id, tokenizer)
        return Logprob(
            token_id=candidate_id,
            logprob=candidate.logprob,
            rank=candidate.rank,
            text=text,
            token_bytes=token_bytes,
        )

    # vLLM ranks the most likely ones 1, 2, 3 ... without gaps. A chosen token that is not one of
    # them ranks behind: its rank counts all tokens at least as likely, itself included.
    by_rank = sorted((readable(one) for one in candidates), key=lambda one: one.rank)
    top = tuple(one for one in by_rank if one.rank <= top_count)
    return TokenLogprobs(chosen=readable(token_id), top=top)


def token_bytes_and_text(token_id: int, tokenizer: Tokenizer) -> tuple[bytes, str]:
    """A token decoded alone. Ids that the vocabulary lacks (padding of the model's output
    layer) have no bytes."""
    token = tokenizer.id_to_token(token_id)
    if token is None:
        return b"", ""
    # The tokenizer's decoder is asked each time: it costs 2 us, and any tokenizer may come.
    decoder: Any = tokenizer.decoder
    style = _decoder_style(b"" if decoder is None else decoder.__getstate__())
    match style:
        case "byte_level":
            token_bytes = _byte_level_bytes(token)
        case "byte_fallback":
            token_bytes = _byte_fallback_bytes(token)
        case _:
            text = tokenizer.decode([token_id], skip_special_tokens=False)
            return text.encode(), text
    return token_bytes, token_bytes.decode("utf-8", errors="replace")


@lru_cache(maxsize=8)
def _decoder_style(state: bytes) -> str:
    """How a tokenizer writes bytes into its tokens, from its decoder's own description (JSON)."""
    if not state:
        return "other"
    description = json.loads(state)
    parts = description.get("decoders", [description])
    kinds = {part["type"] for part in parts}
    if "ByteLevel" in kinds:
        return "byte_level"
    if "ByteFallback" in kinds or "Metaspace" in kinds:
        return "byte_fallback"
    return "other"


def _byte_level_alphabet() -> dict[str, int]:
    """The character for each byte in byte-level BPE (GPT-2): printable Latin-1 stands for itself,
    the other 68 bytes, in order, for U+0100 onwards."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    alphabet = {chr(byte): byte for byte in printable}
    alphabet.update({chr(0x100 + position): byte for position, byte in enumerate(others)})
    return alphabet


_BYTE_OF_CHARACTER = _byte_level_alphabet()
_SPACE_MARK = "\u2581"  # SentencePiece writes a space so


def _byte_level_bytes(token: str) -> bytes:
    try:
        return bytes(_BYTE_OF_CHARACTER[character] for character in token)
    except KeyError:
        return token.encode()  # an added token, written as it is


def _byte_fallback_bytes(token: str) -> bytes:
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        return bytes.fromhex(token[3:5])
    return token.replace(_SPACE_MARK, " ").encode()

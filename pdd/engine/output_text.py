"""From token ids to text that may be shown: detokenising, stop strings, hold-back.

Two values per request, both without any I/O. ``output_stream`` drives them token by token, so
their result does not depend on how an engine groups tokens into steps.

Behaviour is that of vLLM's frontend (v1/engine/detokenizer.py, 0.32.0), because pdd's output must
equal that of one vLLM engine.
"""

import sys
from collections.abc import Sequence

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

# What tokenizers says when its stream can no longer match old and new text (tokenizer/mod.rs).
_INVALID_PREFIX = "Invalid prefix encountered"


class Detokenizer:
    """Text of each token in its context; nothing until a character is complete.

    The prompt's tokens are the first context: they decide about a leading space and may end in
    the middle of a character. Bytes that never become a character are never shown.
    Known and kept, since vLLM shows the same: after a prompt whose text ends in U+FFFD (or in the
    middle of a character) tokenizers has no context yet, and the first text is the prompt's too.
    """

    def __init__(
        self, tokenizer: Tokenizer, *, prompt_token_ids: Sequence[int], skip_special_tokens: bool
    ) -> None:
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        self._stream = DecodeStream(
            ids=list(prompt_token_ids), skip_special_tokens=skip_special_tokens
        )

    def step(self, token_id: int) -> str:
        """The text that ``token_id`` completes, often "" in the middle of a character.

        The first call decodes the whole prompt (30 ms for 64,000 tokens).
        """
        try:
            return self._stream.step(self._tokenizer, token_id) or ""
        except Exception as error:
            if not str(error).startswith(_INVALID_PREFIX):
                raise
        # Some byte sequences decode to text that later bytes change. Only a new stream gets over
        # that; as in vLLM it starts without context, so both show the same text from here on.
        self._stream = DecodeStream(skip_special_tokens=self._skip_special_tokens)
        return self._stream.step(self._tokenizer, token_id) or ""


class HeldText:
    """The output text of one request: it grows, is searched for stop strings, is handed out.

        0 ........................ sent ................ length
        |      handed out           |     held back        |
                        | kept: all that a match can need  |

    A stop string of n characters that will end in the next token can have begun n - 1 characters
    ago. So that many of the latest characters (of the longest stop string) are held back, until
    the end. Nothing is held back where the stop string belongs to the output anyway.
    Offsets count characters from the beginning of the output.
    """

    def __init__(self, *, stop: Sequence[str], include_stop: bool) -> None:
        assert all(stop), "an empty stop string is refused at the front door"
        self._stop = tuple(stop)
        self._include_stop = include_stop
        self._context_length = max((len(one) - 1 for one in stop), default=0)
        self._held_length = 0 if include_stop else self._context_length
        self._kept = ""
        self._kept_offset = 0
        self._sent_offset = 0

    @property
    def length(self) -> int:
        """Characters so far, held back or not."""
        return self._kept_offset + len(self._kept)

    def append(self, text: str) -> None:
        """Add text that can end no stop string (min_tokens, replay)."""
        self._kept += text

    def append_until_stop(self, text: str) -> str | None:
        """Add text; if a stop string ends in it, cut the text there and return the stop string.

        Of several, the one that ends first counts; of those, the one listed first.
        """
        self._kept += text
        new_start = len(self._kept) - len(text)
        found: str | None = None
        found_end = sys.maxsize
        for one in self._stop if text else ():
            start = self._kept.find(one, max(new_start - len(one) + 1, 0))
            if start >= 0 and start + len(one) < found_end:
                found, found_end = one, start + len(one)
        if found is not None:
            self._kept = self._kept[: found_end - (0 if self._include_stop else len(found))]
        return found

    def take(self, *, everything: bool) -> tuple[int, str]:
        """Hand out what may be shown now: its offset and the text. ``everything``: at the end."""
        sent_from = self._sent_offset
        sent_to = self.length if everything else self.length - self._held_length
        if sent_to <= sent_from:
            return sent_from, ""
        text = self._kept[sent_from - self._kept_offset : sent_to - self._kept_offset]
        self._sent_offset = sent_to
        forget_to = min(sent_to, self.length - self._context_length)
        if forget_to > self._kept_offset:
            self._kept = self._kept[forget_to - self._kept_offset :]
            self._kept_offset = forget_to
        return sent_from, text

"""Prompts of a wished length in tokens for a tokenizer that is not known. Pure.

A prompt is made of *pieces*. A piece is a number and a count of tokens: equal numbers give equal
text, different numbers differ in their first four words. So two prompts share exactly the prefix
that their leading equal pieces make, and a cache on the server sees what the trace or preset means.

How many words make a token is learned from the server's own ``usage`` (``Calibration``), with two
small requests before the run. Words are plain lower-case English: most are one token in most
vocabularies.
"""

import random
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from pdd.engine.synthetic.words import words

_POOL_WORDS = 1 << 17
_MARK_WORDS = 4  # enough digits for every number that workload makes
_WORD_LETTERS_MAX = 9


@dataclass(frozen=True, slots=True)
class Piece:
    """``number``: equal numbers, equal text. ``token_count``: wished length."""

    number: int
    token_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """How the server counts: ``overhead_tokens`` of a prompt (its template) and each word's."""

    tokens_per_word: float
    overhead_tokens: float
    measured: bool

    def word_count(self, token_count: float) -> int:
        """Words that make about ``token_count`` tokens; at least one."""
        return max(1, round(token_count / self.tokens_per_word))


UNMEASURED = Calibration(tokens_per_word=1.3, overhead_tokens=0.0, measured=False)
"""For servers that give no usage: what English usually takes."""


def calibration_of(
    *, words_short: int, tokens_short: int, words_long: int, tokens_long: int
) -> Calibration:
    """From two prompts of ``words_*`` words that the server counted as ``tokens_*`` tokens."""
    assert words_long > words_short
    per_word = (tokens_long - tokens_short) / (words_long - words_short)
    if per_word <= 0:  # it counts something else
        return UNMEASURED
    overhead = max(0.0, tokens_short - per_word * words_short)
    return Calibration(tokens_per_word=per_word, overhead_tokens=overhead, measured=True)


class TextPool:
    """A long text of random words; a piece is a stretch of it behind its own four words."""

    def __init__(self, *, seed: int) -> None:
        vocabulary = [word for word in words() if 2 < len(word) <= _WORD_LETTERS_MAX]
        self._vocabulary = vocabulary
        chosen = random.Random(seed).choices(vocabulary, k=_POOL_WORDS)  # noqa: S311  # no secret
        self._text = " ".join(chosen) + " "
        self._offsets = array("L", [0])
        for word in chosen:
            self._offsets.append(self._offsets[-1] + len(word) + 1)

    def text(self, number: int, word_count: int) -> str:
        """The ``word_count`` words of piece ``number``, without a space at either end."""
        marks, rest = [], number
        for _ in range(min(_MARK_WORDS, word_count)):
            rest, digit = divmod(rest, len(self._vocabulary))
            marks.append(self._vocabulary[digit])
        parts = [" ".join(marks)]
        left = word_count - len(marks)
        at = (number * 2_654_435_761) % _POOL_WORDS
        while left > 0:
            count = min(left, _POOL_WORDS - at)
            parts.append(self._text[self._offsets[at] : self._offsets[at + count] - 1])
            left -= count
            at = 0
        return " ".join(parts)

    def prompt(self, pieces: Sequence[Piece], calibration: Calibration) -> str:
        """The pieces after one another."""
        return " ".join(
            self.text(piece.number, calibration.word_count(piece.token_count)) for piece in pieces
        )

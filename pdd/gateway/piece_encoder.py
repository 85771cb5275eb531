"""Token ids of long texts, piece by piece: what many prompts begin with is encoded once.

Most of a prompt was here before: a system prompt, examples, a conversation's earlier turns. A text
is cut from its beginning on, wherever it next may be after ``PIECE_CHARS`` characters, so that
texts which begin alike have the same pieces up to where they part. The ids of a piece are kept, and
what is left is encoded in one go.

A cut is allowed between a letter and a space with a letter behind it, all of them ASCII. There a
word ends for every tokenizer that is known here, and none of them looks across: neither to split
(``_WORD_PATTERNS``), nor to normalise, nor to find added tokens, nor in its model, which sees one
word at a time. So the ids are the same as in one go, and a tokenizer of any other kind is used in
one go always.
"""

import json
import os
import re
from array import array
from collections import OrderedDict
from collections.abc import Iterator
from threading import Lock
from typing import Any

from tokenizers import Tokenizer, models

PIECE_CHARS = 512
"""At least. Shorter ones would find a little more, and cost more to look up."""
KEPT_PIECES_MAX = 8192
"""Some 2 KB each. At the bound the one that was used longest ago is forgotten."""
KEPT_BYTES_MAX = 32 * 2**20
"""Likewise: a piece is as long as its text goes on without a cut, which may be all of a body."""
_PIECE_BYTES_MAX = 64 * 2**10
"""A larger one is not kept: it would push out many that are used more, and is rare."""

_CUT = re.compile(r"[A-Za-z](?= [A-Za-z])")
_NO_BACKEND_THREADS = "TOKENIZERS_PARALLELISM"

# What one match can be, by those who made the models; in none of them can a space follow a letter.
_WORD_PATTERNS = frozenset(
    (
        # Llama 3, and cl100k
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        # Qwen 2 and 3
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        # GPT-2
        r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    )
)


class PieceEncoder:
    """For one tokenizer, which must neither truncate nor pad. May be called in several threads."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        piece_chars: int = PIECE_CHARS,
        kept_pieces_max: int = KEPT_PIECES_MAX,
        kept_bytes_max: int = KEPT_BYTES_MAX,
    ) -> None:
        # Batches would be spread over as many threads as there are cores, with a hand-over each;
        # here whole prompts are, by who calls. It is asked for at each batch, in this way only.
        os.environ[_NO_BACKEND_THREADS] = "false"
        self._tokenizer = tokenizer
        self._piece_chars = piece_chars
        self._kept_pieces_max = kept_pieces_max
        self._kept_bytes_max = kept_bytes_max
        self._kept: OrderedDict[str, array[int]] = OrderedDict()  # used longest ago first
        self._kept_bytes = 0
        self._lock = Lock()
        self._around = _special_ids_around(tokenizer) if _may_be_cut(tokenizer) else None

    @property
    def cuts(self) -> bool:
        """Whether this tokenizer is of a kind that may be used on pieces."""
        return self._around is not None

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """What the tokenizer makes of it."""
        if self._around is None or len(text) <= self._piece_chars:
            return self._encode([text], add_special_tokens=add_special_tokens)[0]
        pieces = list(self._pieces(text))
        if len(pieces) == 1:
            return self._encode(pieces, add_special_tokens=add_special_tokens)[0]
        before, after = self._around if add_special_tokens else ([], [])
        ids = list(before)
        for piece_ids in self._ids_of(pieces):
            ids.extend(piece_ids)
        ids.extend(after)
        return ids

    def _pieces(self, text: str) -> Iterator[str]:
        begin = 0
        while (cut := _CUT.search(text, begin + self._piece_chars - 1)) is not None:
            yield text[begin : cut.end()]
            begin = cut.end()
        yield text[begin:]

    def _ids_of(self, pieces: list[str]) -> "list[array[int] | list[int]]":
        """In order. The last one is a piece that ends where its text does: it is not kept."""
        found: dict[str, array[int]] = {}
        with self._lock:
            for piece in pieces[:-1]:
                if (ids := self._kept.get(piece)) is not None:
                    self._kept.move_to_end(piece)
                    found[piece] = ids
        missing = list(dict.fromkeys(piece for piece in pieces[:-1] if piece not in found))
        *made, last = self._encode([*missing, pieces[-1]], add_special_tokens=False)
        fresh = {piece: array("I", ids) for piece, ids in zip(missing, made, strict=True)}
        with self._lock:
            self._keep(fresh)
        found |= fresh
        return [*(found[piece] for piece in pieces[:-1]), last]

    def _keep(self, fresh: "dict[str, array[int]]") -> None:
        for piece, ids in fresh.items():
            size_bytes = _size_bytes(piece, ids)
            if size_bytes > _PIECE_BYTES_MAX or piece in self._kept:  # by another thread, by now
                continue
            self._kept[piece] = ids
            self._kept_bytes += size_bytes
        while len(self._kept) > self._kept_pieces_max or self._kept_bytes > self._kept_bytes_max:
            self._kept_bytes -= _size_bytes(*self._kept.popitem(last=False))

    def _encode(self, texts: list[str], *, add_special_tokens: bool) -> list[list[int]]:
        """ "Fast": without the place of each token in its text, which takes a quarter of the time.
        The interpreter lock is let go once for all of them."""
        made = self._tokenizer.encode_batch_fast(texts, add_special_tokens=add_special_tokens)
        return [encoding.ids for encoding in made]


def _size_bytes(piece: str, ids: "array[int]") -> int:
    """What keeping them takes, about, and the same at any time: other than ASCII a text has up to
    four bytes per character, and its UTF-8 beside it once it was encoded."""
    return 256 + len(piece) * (1 if piece.isascii() else 7) + len(ids) * ids.itemsize


def _may_be_cut(tokenizer: Tokenizer) -> bool:
    """Whether nothing in it looks across a cut."""
    return (
        _state(tokenizer.normalizer).get("type") in (None, "NFC")
        and _splits_at_words(_state(tokenizer.pre_tokenizer))
        and isinstance(tokenizer.model, (models.BPE, models.Unigram))
        and not getattr(tokenizer.model, "dropout", None)
        and not any(
            token.lstrip or token.rstrip or token.single_word or _CUT.search(token.content)
            for token in tokenizer.get_added_tokens_decoder().values()
        )
    )


def _splits_at_words(splitter: dict[str, Any]) -> bool:
    """Whether a pre-tokenizer ends a word at a cut, and makes words of one side without the other.

    Of several in a row one has to; the others must not look further than to a neighbour.
    """
    match splitter.get("type"):
        case "Sequence":
            parts = splitter["pretokenizers"]
            return any(map(_splits_at_words, parts)) and all(map(_is_local, parts))
        case "ByteLevel":
            return splitter["use_regex"] is True and _is_local(splitter)
        case "Split":
            return splitter["pattern"].get("Regex") in _WORD_PATTERNS and _is_local(splitter)
        case _:
            return False


def _is_local(splitter: dict[str, Any]) -> bool:
    match splitter.get("type"):
        case "ByteLevel":
            return splitter["add_prefix_space"] is False  # else one more at the begin of a piece
        case "Split":
            is_known = splitter["pattern"].get("Regex") in _WORD_PATTERNS
            return is_known and splitter["behavior"] == "Isolated" and not splitter["invert"]
        case "Digits":
            return True
        case _:
            return False


def _state(part: Any) -> dict[str, Any]:
    """A part of a tokenizer, as its file has it; nothing for one that is not there."""
    if part is None:
        return {}
    state: dict[str, Any] = json.loads(part.__getstate__())
    return state


def _special_ids_around(tokenizer: Tokenizer) -> tuple[list[int], list[int]] | None:
    """What special tokens add before and behind a text. None: something else, or it depends."""
    found = []
    for text in ("a", "b c"):
        bare = tokenizer.encode(text, add_special_tokens=False).ids
        whole = tokenizer.encode(text, add_special_tokens=True).ids
        places = [
            index
            for index in range(len(whole) - len(bare) + 1)
            if whole[index : index + len(bare)] == bare
        ]
        if not bare or len(places) != 1:
            return None
        found.append((whole[: places[0]], whole[places[0] + len(bare) :]))
    return found[0] if found[0] == found[1] else None

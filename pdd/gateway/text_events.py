"""The events of a plain stream between its first and its last one: a text each, nothing else.

A class of its own, with no more in it than it takes: every token goes through here, and with
hundreds of streams most of what a token costs is how much memory it touches.
"""

from pdd.core.errors import RequestFailed
from pdd.core.frames import Finish, Frame
from pdd.gateway.json_text import json_string


class Progress:
    """What of a choice's output has been shown. ``finish``: told by its last frame."""

    __slots__ = ("char_count", "finish", "token_count")

    def __init__(self) -> None:
        self.token_count = 0
        self.char_count = 0
        self.finish: Finish | None = None

    def advance(self, frame: Frame) -> None:
        """Take note of a frame.

        Raises:
            RequestFailed: the frame does not continue where the last one ended.
        """
        if frame.first_token_index != self.token_count or frame.text_offset != self.char_count:
            raise self.lost(frame.first_token_index, frame.text_offset)
        self.token_count += len(frame.token_ids)
        self.char_count += len(frame.text)
        self.finish = frame.finish

    def lost(self, token_index: int, text_offset: int) -> RequestFailed:
        """What is raised where output does not begin there."""
        return RequestFailed(
            f"output lost or doubled: expected token {self.token_count} at character "
            f"{self.char_count}, got token {token_index} at character {text_offset}"
        )


class TextEvents:
    """Prebuilt: an event is ``id_before``, the count of tokens, ``before``, the text, ``after``.

    ``progress``: of the only choice.
    """

    __slots__ = ("_after", "_before", "_id_before", "_progress")

    def __init__(
        self, progress: Progress, *, id_before: bytes, before: bytes, after: bytes
    ) -> None:
        self._progress = progress
        self._id_before = id_before
        self._before = before
        self._after = after

    def event(self, index: int, text_offset: int, text: str) -> bytes:
        """For one more token; b"" when its text is held back.

        Raises:
            RequestFailed: it is not the next token.
        """
        progress = self._progress
        if index != progress.token_count or text_offset != progress.char_count:
            raise progress.lost(index, text_offset)
        progress.token_count = count = index + 1
        if not text:
            return b""
        progress.char_count = text_offset + len(text)
        return b"".join(
            (self._id_before, b"%d" % count, self._before, json_string(text), self._after)
        )

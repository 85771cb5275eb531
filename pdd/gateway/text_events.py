"""How far a choice's output has been shown, and what a plain stream's events have in common."""

from dataclasses import dataclass

from pdd.core.errors import RequestFailed
from pdd.core.frames import Finish, Frame


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


@dataclass(frozen=True, slots=True, kw_only=True)
class TextEvents:
    """What the events of a plain stream have in common between its first and its last one: each is
    ``id_before``, the count of tokens, ``before``, the text, ``after`` (see ``text_flow``).

    ``progress``: of the only choice.
    """

    progress: Progress
    id_before: bytes
    before: bytes
    after: bytes

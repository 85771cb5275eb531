"""Tokens in columns, from a node's stream to a scheduler's: both ends of it. Pure.

Nearly all that a node says are frames of one token. They are told as rows, and as long as the same
sequences run the rows of a message belong to whom those before belonged to: then that is not said
again (``TokenColumns.same_rows``), which is three quarters of the bytes and most of the strings.
"""

from collections.abc import Iterable, Iterator
from itertools import repeat

from pdd.control.convert import frame_to_proto
from pdd.core.frames import Frame
from pdd.core.identity import RequestId
from pdd.rpc.v1 import cluster_pb2

Said = tuple[Frame, int]
"""A frame, and the generation of the submit that it belongs to."""

TokenRow = tuple[RequestId, int, int, int, int, str, int]
"""Request id, generation, index of the token, token id, text offset, text, index of the choice."""

_ROW_COUNT_MAX = 2048
"""Rows of one message. A row has at most as much text as a stop string may hold back, so that it
stays below ``MESSAGE_BYTES_MAX``."""


class ColumnWriter:
    """A node's end of one stream; another stream begins with another one. Every message that it
    gives must be sent, in order."""

    def __init__(self) -> None:
        self._told: tuple[list[RequestId], list[int], list[int]] = ([], [], [])

    def messages(
        self, said: Iterable[cluster_pb2.NodeMessage | Said]
    ) -> Iterator[cluster_pb2.NodeMessage]:
        """What a node says, in order. Neighbouring frames of one token share columns, which are
        filled in one go here: made one by one and merged they cost several times as much."""
        rows: list[Said] = []
        for one in said:
            is_row = isinstance(one, tuple) and _is_row(one[0])
            if rows and (not is_row or len(rows) >= _ROW_COUNT_MAX):
                yield self._columns(rows)
                rows = []
            if isinstance(one, cluster_pb2.NodeMessage):
                yield one
            elif is_row:
                rows.append(one)
            else:
                frame, generation = one
                message = frame_to_proto(frame, generation=generation)
                yield cluster_pb2.NodeMessage(frames=cluster_pb2.FrameBatch(frames=[message]))
        if rows:
            yield self._columns(rows)

    def _columns(self, rows: list[Said]) -> cluster_pb2.NodeMessage:
        request_ids = [frame.request_id for frame, _ in rows]
        generations = [generation for _, generation in rows]
        choices = [frame.choice_index for frame, _ in rows]
        columns = cluster_pb2.TokenColumns(
            token_indexes=[frame.first_token_index for frame, _ in rows],
            token_ids=[frame.token_ids[0] for frame, _ in rows],
            text_offsets=[frame.text_offset for frame, _ in rows],
            texts=[frame.text for frame, _ in rows],
        )
        if (request_ids, generations, choices) == self._told:
            columns.same_rows = True
        else:
            self._told = request_ids, generations, choices
            columns.request_ids.extend(request_ids)
            columns.generations.extend(generations)
            if any(choices):
                columns.choice_indexes.extend(choices)
        return cluster_pb2.NodeMessage(tokens=columns)


class ColumnReader:
    """A scheduler's end of one stream; to be given all of its columns, in order. Keeps the ids of
    one message."""

    def __init__(self) -> None:
        self._request_ids: list[RequestId] = []
        self._generations: list[int] = []
        self._choices: list[int] = []

    def rows(self, columns: cluster_pb2.TokenColumns) -> Iterator[TokenRow]:
        """The rows, in order.

        Raises:
            ValueError: the columns differ in length.
        """
        # Slices are copied in one go; iterating over the columns themselves is slower.
        if not columns.same_rows:
            self._request_ids = columns.request_ids[:]
            self._generations = columns.generations[:]
            self._choices = columns.choice_indexes[:]
        return zip(
            self._request_ids,
            self._generations,
            columns.token_indexes[:],
            columns.token_ids[:],
            columns.text_offsets[:],
            columns.texts[:],
            self._choices or repeat(0, len(self._request_ids)),
            strict=True,
        )


def _is_row(frame: Frame) -> bool:
    return len(frame.token_ids) == 1 and not frame.logprobs and frame.finish is None

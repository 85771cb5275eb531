"""What a node says in rows is what its scheduler reads, whoever runs in which step."""

from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdd.control import token_columns
from pdd.control.convert import frame_from_proto
from pdd.control.outbox import coalesce
from pdd.control.token_columns import ColumnReader, ColumnWriter, Said
from pdd.core.frames import Finish, FinishReason, Frame, token_frame
from pdd.core.identity import RequestId
from pdd.rpc.v1 import cluster_pb2

counts = st.integers(0, 2**31 - 1)
texts = st.text(max_size=8)
rows = st.builds(
    token_frame, st.just(RequestId("")), counts, counts, counts, texts, st.integers(0, 1)
)
others = st.builds(
    Frame,
    request_id=st.sampled_from("abc").map(RequestId),
    first_token_index=counts,
    token_ids=st.lists(counts, max_size=2).map(tuple),
    text_offset=counts,
    text=texts,
    finish=st.just(Finish(reason=FinishReason.STOP)),
)


@st.composite
def steps(draw: st.DrawFn) -> list[list[Said]]:
    """What is said in some turns. Who runs changes now and then: that is what is left out."""
    running: list[tuple[str, int, int]] = []
    said: list[list[Said]] = []
    for _ in range(draw(st.integers(1, 6))):
        if not running or draw(st.booleans()):
            who = st.tuples(st.sampled_from("abc"), st.integers(0, 1), st.integers(0, 1))
            running = draw(st.lists(who, max_size=4))
        turn: list[Said] = []
        for name, generation, choice in running:
            made = draw(rows)
            frame = token_frame(
                RequestId(name),
                made.first_token_index,
                made.token_ids[0],
                made.text_offset,
                made.text,
                choice,
            )
            turn.append((frame, generation))
            if draw(st.integers(0, 9)) == 0:
                turn.append((draw(others), generation))
        said.append(turn)
    return said


def heard_by(reader: ColumnReader, message: cluster_pb2.NodeMessage) -> list[Said]:
    if message.WhichOneof("message") == "tokens":
        return [
            (token_frame(request_id, *row), generation)
            for request_id, generation, *row in reader.rows(message.tokens)
        ]
    return [(frame_from_proto(one), one.generation) for one in message.frames.frames]


@given(steps(), st.integers(1, 5))
def test_every_frame_arrives_in_order(turns: list[list[Said]], row_count_max: int) -> None:
    writer, reader = ColumnWriter(), ColumnReader()
    heard: list[Said] = []
    with patch.object(token_columns, "_ROW_COUNT_MAX", row_count_max):
        for said in turns:
            for merged in coalesce(writer.messages(said), kinds=("frames",)):
                message = cluster_pb2.NodeMessage.FromString(merged.SerializeToString())
                assert len(message.tokens.token_ids) <= row_count_max
                heard += heard_by(reader, message)
    assert heard == [one for said in turns for one in said]


def step(index: int, *names: str, choice: int = 0, generation: int = 3) -> list[Said]:
    return [
        (token_frame(RequestId(name), index, 7, 2 * index, "xy", choice), generation)
        for name in names
    ]


@pytest.mark.parametrize(
    ("said", "is_left_out"),
    [
        (step(1, "a", "b"), True),
        (step(1, "b", "a"), False),
        (step(1, "a"), False),
        (step(1, "a", "b", "c"), False),
        (step(1, "a", "b", choice=1), False),
        (step(1, "a", "b", generation=4), False),
    ],
)
def test_whose_tokens_they_are_is_left_out_only_where_it_is_the_same(
    said: list[Said], is_left_out: bool
) -> None:
    writer = ColumnWriter()
    list(writer.messages(step(0, "a", "b")))
    (message,) = writer.messages(said)
    columns = message.tokens
    assert columns.same_rows is is_left_out
    assert (not columns.request_ids, not columns.generations) == (is_left_out, is_left_out)


def test_a_frame_between_two_steps_changes_nothing() -> None:
    writer, reader = ColumnWriter(), ColumnReader()
    end: Said = (
        Frame(
            request_id=RequestId("c"),
            first_token_index=9,
            token_ids=(),
            text_offset=30,
            text="",
            finish=Finish(reason=FinishReason.STOP),
        ),
        3,
    )
    turns = [step(0, "a", "b"), [end], step(1, "a", "b")]
    messages = [message for said in turns for message in writer.messages(said)]
    assert [message.tokens.same_rows for message in messages] == [False, False, True]
    assert [one for message in messages for one in heard_by(reader, message)] == [
        one for said in turns for one in said
    ]


@pytest.mark.parametrize(
    "columns",
    [
        cluster_pb2.TokenColumns(request_ids=["a", "b"], generations=[0]),
        cluster_pb2.TokenColumns(
            same_rows=True, token_indexes=[1], token_ids=[1], text_offsets=[0], texts=["x"]
        ),
    ],
    ids=["one-is-shorter", "the-same-as-nothing"],
)
def test_columns_of_different_length_are_refused(columns: cluster_pb2.TokenColumns) -> None:
    with pytest.raises(ValueError, match=r"shorter|longer"):
        list(ColumnReader().rows(columns))

"""Every field of a value survives the way through protobuf, whatever the value."""

import dataclasses
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdd.control import convert
from pdd.control.convert import (
    frame_from_proto,
    frame_to_proto,
    identity_from_proto,
    identity_to_proto,
    messages_of,
    rows_from_columns,
    sampling_from_submit,
    sampling_to_proto,
)
from pdd.control.outbox import coalesce
from pdd.core.frames import (
    EngineFacts,
    Finish,
    FinishReason,
    Frame,
    Logprob,
    TokenLogprobs,
    token_frame,
)
from pdd.core.identity import NodeIdentity, RequestId
from pdd.core.sampling import Grammar, Sampling
from pdd.rpc.v1 import cluster_pb2

counts = st.integers(0, 2**31 - 1)
tokens = st.integers(0, 2**31 - 1)
texts = st.text(max_size=8)
numbers = st.floats(allow_nan=False)

sampling_values = st.builds(
    Sampling,
    max_tokens=counts,
    min_tokens=counts,
    temperature=numbers,
    top_p=numbers,
    top_k=counts,
    min_p=numbers,
    presence_penalty=numbers,
    frequency_penalty=numbers,
    repetition_penalty=numbers,
    seed=st.integers(-(2**63), 2**63 - 1),
    stop=st.lists(texts, max_size=3).map(tuple),
    stop_token_ids=st.lists(tokens, max_size=3).map(tuple),
    include_stop_str_in_output=st.booleans(),
    ignore_eos=st.booleans(),
    skip_special_tokens=st.booleans(),
    bad_words=st.lists(texts, max_size=3).map(tuple),
    logit_bias=st.dictionaries(tokens, st.sampled_from([-100.0, -0.5, 0.0, 1.25, 100.0])).map(
        lambda bias: tuple(sorted(bias.items()))
    ),
    allowed_token_ids=st.lists(tokens, max_size=3).map(tuple),
    logprobs=st.none() | st.integers(0, 20),
    grammar=st.none() | st.builds(Grammar, kind=st.sampled_from(["regex", "choice"]), value=texts),
)
logprob_values = st.builds(
    Logprob,
    token_id=tokens,
    logprob=numbers,
    rank=counts,
    text=texts,
    token_bytes=st.binary(max_size=4),
)
finishes = st.builds(
    Finish,
    reason=st.sampled_from(FinishReason),
    stop_reason=st.none() | texts | tokens,
    facts=st.builds(
        EngineFacts,
        cached_tokens=counts,
        computed_prompt_tokens=counts,
        transferred_bytes=st.integers(0, 2**63 - 1),
        queue_s=numbers,
        prefill_s=numbers,
        transfer_s=numbers,
        decode_s=numbers,
    ),
)
frames = st.builds(
    Frame,
    request_id=texts.map(RequestId),
    first_token_index=counts,
    token_ids=st.lists(tokens, max_size=4).map(tuple),
    text_offset=counts,
    text=texts,
    logprobs=st.lists(
        st.builds(
            TokenLogprobs,
            chosen=logprob_values,
            top=st.lists(logprob_values, max_size=2).map(tuple),
        ),
        max_size=2,
    ).map(tuple),
    finish=st.none() | finishes,
)


@given(sampling_values)
def test_sampling(sampling: Sampling) -> None:
    grammar = sampling.grammar
    submit = cluster_pb2.Submit(
        sampling=sampling_to_proto(sampling),
        allowed_token_ids=sampling.allowed_token_ids,
        grammar_kind=grammar.kind if grammar else "",
        grammar_value=grammar.value if grammar else "",
    )
    assert sampling_from_submit(cluster_pb2.Submit.FromString(submit.SerializeToString())) == (
        sampling
    )


@given(frames, counts)
def test_frames(frame: Frame, generation: int) -> None:
    message = cluster_pb2.TokenFrame.FromString(
        frame_to_proto(frame, generation=generation).SerializeToString()
    )
    assert message.generation == generation
    assert frame_from_proto(message) == frame


@given(st.lists(st.tuples(frames, counts), max_size=6), st.integers(1, 3))
def test_what_a_node_says_in_one_step(said: list[tuple[Frame, int]], row_count_max: int) -> None:
    """Columns and messages together carry every frame, in order among their neighbours."""
    heard: list[tuple[int, Frame]] = []
    with patch.object(convert, "_ROW_COUNT_MAX", row_count_max):
        messages = list(messages_of(said))
    for merged in coalesce(messages, kinds=("frames",)):
        message = cluster_pb2.NodeMessage.FromString(merged.SerializeToString())
        if message.WhichOneof("message") == "tokens":
            assert 1 <= len(message.tokens.request_ids) <= row_count_max
            heard += [
                (generation, token_frame(request_id, *row))
                for request_id, generation, *row in rows_from_columns(message.tokens)
            ]
        else:
            heard += [(one.generation, frame_from_proto(one)) for one in message.frames.frames]
    assert heard == [(generation, frame) for frame, generation in said]


def test_columns_of_different_length_are_refused() -> None:
    columns = cluster_pb2.TokenColumns(request_ids=["a", "b"], generations=[0])
    with pytest.raises(ValueError, match="shorter"):
        list(rows_from_columns(columns))


@given(st.builds(NodeIdentity, name=texts, uuid=texts, boot_epoch=st.integers(0, 2**63 - 1)))
def test_identities(identity: NodeIdentity) -> None:
    message = identity_to_proto(identity)
    again = cluster_pb2.NodeIdentity.FromString(message.SerializeToString())
    assert identity_from_proto(again) == identity


def test_the_strategies_above_know_every_field_of_a_sampling_value() -> None:
    # A new field must be carried too; this names it.
    known = {
        *["max_tokens", "min_tokens", "temperature", "top_p", "top_k", "min_p", "presence_penalty"],
        *["frequency_penalty", "repetition_penalty", "seed", "stop", "stop_token_ids"],
        *["include_stop_str_in_output", "ignore_eos", "skip_special_tokens", "bad_words"],
        *["logit_bias", "allowed_token_ids", "logprobs", "grammar"],
    }
    assert {field.name for field in dataclasses.fields(Sampling)} == known

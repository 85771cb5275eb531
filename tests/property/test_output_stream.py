"""Frames do not depend on how tokens are grouped into steps or shared between engines."""

from dataclasses import dataclass, replace

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from pdd.core.frames import Finish, FinishReason, Frame, Logprob, TokenLogprobs
from pdd.core.identity import RequestId
from pdd.core.sampling import Sampling
from pdd.engine.output_stream import OutputStream
from pdd.engine.output_text import Detokenizer

WORDS = ["ab", "abc", "ca", "\u0120a", "\u0120the"]  # "\u0120" is a space in byte-level BPE


def make_tokenizer() -> Tokenizer:
    """Byte-level: every byte, some words, and the first two bytes of an emoji as one token."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    emoji = "".join(piece for piece, _ in pre_tokenizers.ByteLevel(False).pre_tokenize_str("😀"))
    names = dict.fromkeys([*alphabet, *WORDS, emoji[:2], emoji])
    vocabulary = {name: token_id for token_id, name in enumerate(names)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<end>", special=True)])
    return tokenizer


TOKENIZER = make_tokenizer()
EOS = TOKENIZER.token_to_id("<end>")
# Few different tokens, so that stop strings are often met and characters often completed.
EMOJI_BYTES = [
    TOKENIZER.token_to_id(character)
    for character in pre_tokenizers.ByteLevel(False).pre_tokenize_str("😀")[0][0]
]
COMMON = [*(TOKENIZER.token_to_id(name) for name in [*"abc", *WORDS]), *EMOJI_BYTES, EOS]
PROMPT = [TOKENIZER.token_to_id(character) for character in "Hi"]

tokens = st.lists(
    st.one_of(
        st.sampled_from(COMMON),
        st.sampled_from(COMMON[:3]),
        st.integers(0, TOKENIZER.get_vocab_size() + 2),
    ),
    min_size=1,
    max_size=24,
)
stop_strings = st.lists(
    st.one_of(
        st.text(alphabet="abc the😀", min_size=1, max_size=4),
        st.text(alphabet="abc", min_size=1, max_size=3),
        st.sampled_from(["ca", "bab", "😀", "\ufffd", " the"]),
    ),
    max_size=3,
).map(tuple)


@dataclass(frozen=True)
class Case:
    """One request: what its engines make and how it ends by itself (None: it is lost first)."""

    token_ids: list[int]
    sampling: Sampling
    finish: Finish | None


cases = st.builds(
    Case,
    token_ids=tokens,
    sampling=st.builds(
        Sampling,
        max_tokens=st.just(100),
        min_tokens=st.integers(0, 6),
        stop=stop_strings,
        include_stop_str_in_output=st.booleans(),
        skip_special_tokens=st.booleans(),
    ),
    finish=st.sampled_from(
        [Finish(reason=reason) for reason in (FinishReason.LENGTH, FinishReason.STOP)]
    ),
)


def make_stream(case: Case, *, first_output_index: int = 0) -> OutputStream:
    return OutputStream(
        request_id=RequestId("r"),
        prompt_token_ids=PROMPT,
        sampling=case.sampling,
        tokenizer=TOKENIZER,
        first_output_index=first_output_index,
    )


def logprobs_of(token_ids: list[int]) -> list[TokenLogprobs]:
    return [
        TokenLogprobs(
            chosen=Logprob(token_id=one, logprob=-1.0, rank=1, text="", token_bytes=b""), top=()
        )
        for one in token_ids
    ]


def push_in_groups(
    stream: OutputStream, case: Case, *, start: int, sizes: list[int]
) -> list[Frame]:
    """All tokens from index ``start`` on, in steps of ``sizes`` (then of one), to the end."""
    frames: list[Frame] = []
    position = start
    steps = iter(sizes)
    while position < len(case.token_ids) and not stream.finished:
        group = case.token_ids[position : position + next(steps, 1)]
        position += len(group)
        finish = case.finish if position == len(case.token_ids) else None
        frames.append(stream.push(group, logprobs_of(group), finish))
    return frames


def joined(frames: list[Frame]) -> Frame:
    """The frames as one; asserts that their offsets leave no gap and no overlap."""
    whole = frames[0]
    for frame in frames[1:]:
        assert whole.finish is None
        assert frame.first_token_index == whole.first_token_index + len(whole.token_ids)
        assert frame.text_offset == whole.text_offset + len(whole.text)
        whole = replace(
            whole,
            token_ids=whole.token_ids + frame.token_ids,
            text=whole.text + frame.text,
            logprobs=whole.logprobs + frame.logprobs,
            finish=frame.finish,
        )
    return whole


def one_shot(case: Case) -> Frame:
    return make_stream(case).push(case.token_ids, logprobs_of(case.token_ids), case.finish)


def expected_end(case: Case) -> tuple[int, str, str | None]:
    """The slow and plain way: (tokens, text, stop string), from the text after each token."""
    detokenizer = Detokenizer(
        TOKENIZER,
        prompt_token_ids=PROMPT,
        skip_special_tokens=case.sampling.skip_special_tokens,
    )
    sampling = case.sampling
    finish_reason = case.finish and case.finish.reason
    text = ""
    for count, token_id in enumerate(case.token_ids, start=1):
        last = count == len(case.token_ids)
        if last and finish_reason is FinishReason.STOP and not sampling.include_stop_str_in_output:
            return count, text, None
        before, text = text, text + detokenizer.step(token_id)
        if count <= sampling.min_tokens:
            continue
        ends = [
            (end, position)
            for position, stop in enumerate(sampling.stop)
            for end in range(len(before) + 1, len(text) + 1)
            if text[:end].endswith(stop)
        ]
        if ends:
            end, position = min(ends)
            stop = sampling.stop[position]
            kept = end if sampling.include_stop_str_in_output else end - len(stop)
            return count, text[:kept], stop
    return len(case.token_ids), text, None


FAST = settings(deadline=None, derandomize=True, max_examples=1000)


@FAST
@given(case=cases)
def test_the_end_is_where_a_plain_search_after_each_token_puts_it(case: Case) -> None:
    count, text, stop = expected_end(case)
    frame = one_shot(case)
    assert frame.finish is not None
    assert case.finish is not None
    assert (len(frame.token_ids), frame.text) == (count, text)
    assert frame.finish.stop_reason == stop
    assert frame.finish.reason is (FinishReason.STOP if stop else case.finish.reason)
    event(f"ended by a stop string: {stop is not None}")


@FAST
@given(case=cases, sizes=st.lists(st.integers(1, 5), max_size=24))
def test_any_grouping_into_steps_gives_the_one_shot_result(case: Case, sizes: list[int]) -> None:
    stream = make_stream(case)
    frames = push_in_groups(stream, case, start=0, sizes=sizes)
    assert joined(frames) == one_shot(case)
    assert stream.token_count == len(one_shot(case).token_ids)


@FAST
@given(
    case=cases,
    sizes=st.lists(st.integers(1, 5), max_size=24),
    moves=st.lists(st.integers(1, 24), max_size=3),
)
def test_any_sharing_between_engines_gives_the_one_shot_result(
    case: Case, sizes: list[int], moves: list[int]
) -> None:
    """The sequence changes engines at each of ``moves``: prefill to decode, or after a loss."""
    frames: list[Frame] = []
    start = 0
    moved_count = 0
    for end in [*sorted(set(moves)), len(case.token_ids)]:
        if end > len(case.token_ids) or end <= start:
            continue
        last = end == len(case.token_ids)
        stream = make_stream(case, first_output_index=start)
        stream.replay(case.token_ids[:start])
        part = replace(case, token_ids=case.token_ids[:end], finish=case.finish if last else None)
        frames += push_in_groups(stream, part, start=start, sizes=sizes)
        if stream.finished:
            break
        start = end
        moved_count += 1
    assert joined(frames) == one_shot(case)
    event(f"engines: {moved_count + 1}")


@FAST
@given(case=cases, resumed_at=st.integers(0, 24), sizes=st.lists(st.integers(1, 5), max_size=24))
def test_frames_repeated_by_another_engine_say_the_same_at_the_same_offsets(
    case: Case, resumed_at: int, sizes: list[int]
) -> None:
    """So a reader may drop by offset what it has shown already."""
    whole = one_shot(case)
    resumed_at = min(resumed_at, len(whole.token_ids) - 1)
    stream = make_stream(case, first_output_index=resumed_at)
    stream.replay(case.token_ids[:resumed_at])
    for frame in push_in_groups(stream, case, start=resumed_at, sizes=sizes):
        text_end = frame.text_offset + len(frame.text)
        assert whole.text[frame.text_offset : text_end] == frame.text
        token_end = frame.first_token_index + len(frame.token_ids)
        assert whole.token_ids[frame.first_token_index : token_end] == frame.token_ids
    assert frame.finish == whole.finish
    assert text_end == len(whole.text)


@pytest.mark.parametrize("text", ["😀", "a😀b", "漢字 é"])
def test_the_tokenizer_made_here_is_a_byte_level_one(text: str) -> None:
    byte_tokens = [
        TOKENIZER.token_to_id(character)
        for piece, _ in pre_tokenizers.ByteLevel(False).pre_tokenize_str(text)
        for character in piece
    ]
    assert TOKENIZER.decode(byte_tokens) == text

"""Frames of one request, on one engine and over several."""

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from pdd.core.frames import EngineFacts, Finish, FinishReason, Frame, Logprob, TokenLogprobs
from pdd.core.identity import RequestId
from pdd.core.sampling import Sampling
from pdd.engine.output_stream import OutputStream

REQUEST_ID = RequestId("r-1")
LENGTH = Finish(reason=FinishReason.LENGTH)
STOP = Finish(reason=FinishReason.STOP)


def make_tokenizer() -> Tokenizer:
    """Byte-level, one token per byte, and one special token."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {character: token_id for token_id, character in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<end>", special=True)])
    return tokenizer


TOKENIZER = make_tokenizer()
EOS = TOKENIZER.token_to_id("<end>")


def ids(text: str) -> list[int]:
    found: list[int] = TOKENIZER.encode(text).ids
    return found


def make_stream(
    *,
    first_output_index: int | None = None,
    stop: tuple[str, ...] = (),
    min_tokens: int = 0,
    include_stop: bool = False,
    skip_special_tokens: bool = True,
) -> OutputStream:
    sampling = Sampling(
        max_tokens=100,
        min_tokens=min_tokens,
        stop=stop,
        include_stop_str_in_output=include_stop,
        skip_special_tokens=skip_special_tokens,
    )
    return OutputStream(
        request_id=REQUEST_ID,
        prompt_token_ids=ids("Prompt:"),
        sampling=sampling,
        tokenizer=TOKENIZER,
        first_output_index=first_output_index,
    )


def numbered_logprobs(count: int) -> list[TokenLogprobs]:
    return [
        TokenLogprobs(
            chosen=Logprob(token_id=i, logprob=-1.0, rank=1, text="", token_bytes=b""), top=()
        )
        for i in range(count)
    ]


def test_a_frame_carries_the_tokens_their_text_and_both_offsets() -> None:
    stream = make_stream()
    assert stream.push(ids("ab"), [], None) == Frame(
        request_id=REQUEST_ID,
        first_token_index=0,
        token_ids=tuple(ids("ab")),
        text_offset=0,
        text="ab",
    )
    assert stream.push(ids("c"), [], LENGTH) == Frame(
        request_id=REQUEST_ID,
        first_token_index=2,
        token_ids=tuple(ids("c")),
        text_offset=2,
        text="c",
        finish=LENGTH,
    )
    assert stream.finished
    assert not stream.must_abort


def test_the_decode_node_goes_on_where_the_prefill_node_ended() -> None:
    prefill, decode = make_stream(first_output_index=0), make_stream(first_output_index=1)
    first = prefill.push(ids("a"), [], None)
    decode.replay(first.token_ids)
    second = decode.push(ids("b"), [], None)
    assert (first.first_token_index, first.text_offset, first.text) == (0, 0, "a")
    assert (second.first_token_index, second.text_offset, second.text) == (1, 1, "b")


def test_a_stop_string_over_two_engines_is_found_and_none_of_it_is_shown() -> None:
    prefill, decode = make_stream(stop=("bcd",)), make_stream(stop=("bcd",))
    first = prefill.push(ids("ab"), [], None)
    decode.replay(first.token_ids)
    frames = [first, decode.push(ids("c"), [], None), decode.push(ids("d"), [], None)]
    assert "".join(frame.text for frame in frames) == "a"
    assert frames[-1].finish == Finish(reason=FinishReason.STOP, stop_reason="bcd")
    assert decode.must_abort


def test_a_character_over_two_engines_is_shown_whole_by_the_second() -> None:
    first_byte, *rest = ids("é")
    prefill, decode = make_stream(), make_stream()
    assert prefill.push([first_byte], [], None).text == ""
    decode.replay([first_byte])
    assert decode.push(rest, [], None).text == "é"


def test_tokens_after_a_stop_string_are_in_neither_frame_nor_usage() -> None:
    stream = make_stream(stop=("c",))
    frame = stream.push(ids("abcdef"), numbered_logprobs(6), None)
    assert frame.token_ids == tuple(ids("abc"))
    assert len(frame.logprobs) == 3
    assert frame.text == "ab"
    assert stream.token_count == 3
    assert stream.must_abort


def test_an_engine_that_ended_by_itself_need_not_be_aborted() -> None:
    stream = make_stream(stop=("c",))
    facts = EngineFacts(cached_tokens=5)
    frame = stream.push(ids("abc"), [], Finish(reason=FinishReason.LENGTH, facts=facts))
    assert frame.finish == Finish(reason=FinishReason.STOP, stop_reason="c", facts=facts)
    assert not stream.must_abort


def test_held_back_text_is_shown_at_the_end() -> None:
    stream = make_stream(stop=("bcX",))
    assert stream.push(ids("abc"), [], None).text == "a"
    assert stream.push([], [], Finish(reason=FinishReason.ABORT)).text == "bc"


def test_an_end_token_is_counted_and_sent_but_has_no_text() -> None:
    stream = make_stream(skip_special_tokens=False)
    frame = stream.push([*ids("a"), EOS], [], STOP)
    assert frame.token_ids == (*ids("a"), EOS)
    assert frame.text == "a"
    assert stream.token_count == 2


def test_an_end_token_as_the_first_token_ends_the_request_on_the_prefill_node() -> None:
    stream = make_stream(first_output_index=0)
    frame = stream.push([EOS], [], STOP)
    assert (frame.token_ids, frame.text, frame.finish) == ((EOS,), "", STOP)


def test_a_stop_token_is_shown_when_stop_strings_are_included() -> None:
    stream = make_stream(include_stop=True)
    stop_token = ids("z")
    finish = Finish(reason=FinishReason.STOP, stop_reason=stop_token[0])
    assert stream.push([*ids("a"), *stop_token], [], finish).text == "az"


def test_an_end_token_that_is_ignored_is_text_only_when_special_tokens_are_not_skipped() -> None:
    assert make_stream().push([*ids("a"), EOS, *ids("b")], [], None).text == "ab"
    shown = make_stream(skip_special_tokens=False).push([*ids("a"), EOS, *ids("b")], [], None)
    assert shown.text == "a<end>b"


def test_min_tokens_counts_the_tokens_of_all_engines() -> None:
    stream = make_stream(stop=("b",), min_tokens=3)
    stream.replay(ids("ab"))
    assert stream.push(ids("b"), [], None).finish is None
    frame = stream.push(ids("b"), [], None)
    assert frame.finish == Finish(reason=FinishReason.STOP, stop_reason="b")


def test_an_included_stop_string_ends_the_text() -> None:
    stream = make_stream(stop=("bc",), include_stop=True)
    frames = [stream.push(ids("ab"), [], None), stream.push(ids("cd"), [], None)]
    assert [frame.text for frame in frames] == ["ab", "c"]
    assert frames[1].token_ids == tuple(ids("c"))


def test_tokens_that_ended_the_request_elsewhere_cannot_be_continued() -> None:
    with pytest.raises(ValueError, match="completes stop string 'b'"):
        make_stream(stop=("b",)).replay(ids("ab"))


def test_logprobs_must_match_the_tokens() -> None:
    with pytest.raises(ValueError, match="2 tokens came with 1 logprobs"):
        make_stream().push(ids("ab"), numbered_logprobs(1), None)


def test_a_missing_replay_is_noticed() -> None:
    with pytest.raises(AssertionError, match="0 tokens were replayed"):
        make_stream(first_output_index=1).push(ids("b"), [], None)


def test_nothing_follows_the_end() -> None:
    stream = make_stream()
    stream.push(ids("a"), [], LENGTH)
    with pytest.raises(AssertionError, match="has ended"):
        stream.push(ids("b"), [], None)

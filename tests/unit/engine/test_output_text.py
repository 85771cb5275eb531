"""Stop strings and hold-back on plain text; detokenising on a tokenizer made here."""

import pytest
from tokenizers import Tokenizer, decoders, models

from pdd.engine.output_text import Detokenizer, HeldText


def held(*stop: str, include_stop: bool = False) -> HeldText:
    return HeldText(stop=stop, include_stop=include_stop)


def test_text_without_stop_strings_is_handed_out_at_once() -> None:
    text = held()
    assert text.append_until_stop("abc") is None
    assert text.take(everything=False) == (0, "abc")
    assert text.append_until_stop("de") is None
    assert text.take(everything=False) == (3, "de")
    assert text.take(everything=True) == (5, "")


def test_one_character_less_than_the_longest_stop_string_is_held_back() -> None:
    text = held("xy", "END!")
    text.append_until_stop("abcdef")
    assert text.take(everything=False) == (0, "abc")
    text.append_until_stop("g")
    assert text.take(everything=False) == (3, "d")
    assert text.take(everything=True) == (4, "efg")


def test_text_shorter_than_the_hold_back_is_not_handed_out_until_the_end() -> None:
    text = held("END!")
    text.append_until_stop("ab")
    assert text.take(everything=False) == (0, "")
    assert text.take(everything=True) == (0, "ab")


@pytest.mark.parametrize("pieces", [["aEND!b"], ["aE", "ND!b"], ["a", "E", "N", "D", "!", "b"]])
def test_a_stop_string_cuts_the_text_before_it_however_it_arrives(pieces: list[str]) -> None:
    text = held("END!")
    shown = ""
    for piece in pieces:
        found = text.append_until_stop(piece)
        shown += text.take(everything=found is not None)[1]
        if found is not None:
            break
    assert (found, shown) == ("END!", "a")


def test_an_included_stop_string_is_the_last_of_the_text_and_nothing_is_held_back() -> None:
    text = held("END", include_stop=True)
    text.append_until_stop("abE")
    assert text.take(everything=False) == (0, "abE")
    assert text.append_until_stop("NDcd") == "END"
    assert text.take(everything=True) == (3, "ND")


def test_the_stop_string_that_ends_first_wins_and_among_those_the_one_listed_first() -> None:
    assert held("bcd", "bc").append_until_stop("abcd") == "bc"
    assert held("c", "bc").append_until_stop("abcd") == "c"
    assert held("bc", "c").append_until_stop("abcd") == "bc"


def test_a_stop_string_that_was_complete_before_it_counted_is_not_found_later() -> None:
    text = held("END")
    text.append("aEND")
    assert text.append_until_stop("b") is None
    assert text.append_until_stop("END") == "END"
    assert text.take(everything=True) == (0, "aENDb")


def test_a_stop_string_may_begin_before_it_counts() -> None:
    text = held("END")
    text.append("aEN")
    assert text.append_until_stop("D") == "END"
    assert text.take(everything=True) == (0, "a")


def test_length_counts_what_is_held_back() -> None:
    text = held("END!")
    text.append_until_stop("ab")
    assert text.length == 2
    text.append_until_stop("cdefgh" * 10)
    text.take(everything=False)
    assert text.length == 62


def byte_tokenizer() -> Tokenizer:
    """Token b is byte b, written as SentencePiece's byte fallback does; 256 is a space mark."""
    vocabulary = {f"<0x{byte:02X}>": byte for byte in range(256)} | {"\u2581": 256}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return tokenizer


def make_detokenizer(prompt_token_ids: list[int]) -> Detokenizer:
    return Detokenizer(
        byte_tokenizer(), prompt_token_ids=prompt_token_ids, skip_special_tokens=True
    )


def test_a_character_appears_with_its_last_byte() -> None:
    detokenizer = make_detokenizer([65])
    assert [detokenizer.step(byte) for byte in "a€😀".encode()] == [
        "a",
        "",
        "",
        "€",
        *3 * [""],
        "😀",
    ]


def test_a_character_that_began_in_the_prompt_waits_for_its_last_byte() -> None:
    first, second, third = "€".encode()
    detokenizer = make_detokenizer([65, first])
    assert detokenizer.step(second) == ""
    assert detokenizer.step(third).endswith("€")


def test_text_that_later_bytes_change_does_not_end_the_request() -> None:
    """Byte fallback turns a run with one bad byte into marks for every byte of the run, also for
    those shown as characters already: tokenizers calls that an invalid prefix."""
    detokenizer = make_detokenizer([65])
    space = 256
    assert [detokenizer.step(one) for one in [0x42, 0xC3, space, 0x44]] == ["B", "", " ", "D"]


def test_an_id_that_is_none_is_an_error() -> None:
    with pytest.raises(TypeError):
        make_detokenizer([65]).step(-1)

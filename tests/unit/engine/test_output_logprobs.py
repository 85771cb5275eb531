"""Logprobs as clients see them: which are the top ones, and a token's exact bytes."""

from dataclasses import dataclass

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from pdd.engine.output_logprobs import token_bytes_and_text, token_logprobs


@dataclass
class Candidate:
    """As vLLM's ``Logprob``."""

    logprob: float
    rank: int | None
    decoded_token: str | None = None


def byte_level_tokenizer() -> Tokenizer:
    """Byte-level BPE: one token per byte, and one for each merge below; one special token."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {character: token_id for token_id, character in enumerate(alphabet)}
    merges = [("\u0120", "a"), ("\u00c3", "\u00a9")]  # " a", "é"
    for left, right in merges:
        vocabulary[left + right] = len(vocabulary)
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|end of text|>", special=True)])
    return tokenizer


def metaspace_tokenizer() -> Tokenizer:
    vocabulary = {"<unk>": 0, "\u2581the": 1, "<0xE2>": 2, "cat": 3}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>"))
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("\u2581", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return tokenizer


def test_every_byte_of_a_byte_level_vocabulary_is_itself() -> None:
    tokenizer = byte_level_tokenizer()
    found = {token_bytes_and_text(token_id, tokenizer)[0] for token_id in range(256)}
    assert found == {bytes([byte]) for byte in range(256)}


@pytest.mark.parametrize("text", ["a é", "naïve 😀 漢字", "tab\tnew\nline", ""])
def test_bytes_of_all_tokens_joined_are_the_bytes_of_the_text(text: str) -> None:
    tokenizer = byte_level_tokenizer()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    ids = tokenizer.encode(text).ids
    assert b"".join(token_bytes_and_text(one, tokenizer)[0] for one in ids) == text.encode()


def test_part_of_a_character_has_exact_bytes_and_a_replacement_mark_as_text() -> None:
    tokenizer = byte_level_tokenizer()
    part = tokenizer.token_to_id("\u00c3")
    assert token_bytes_and_text(part, tokenizer) == (b"\xc3", "\ufffd")


def test_text_of_a_byte_level_token_is_what_the_tokenizer_decodes_it_to() -> None:
    tokenizer = byte_level_tokenizer()
    for token_id in range(tokenizer.get_vocab_size()):
        decoded = tokenizer.decode([token_id], skip_special_tokens=False)
        assert token_bytes_and_text(token_id, tokenizer)[1] == decoded


def test_a_special_token_is_written_as_it_is() -> None:
    tokenizer = byte_level_tokenizer()
    special = tokenizer.token_to_id("<|end of text|>")
    assert token_bytes_and_text(special, tokenizer) == (b"<|end of text|>", "<|end of text|>")


def test_sentencepiece_tokens_keep_their_space_and_their_raw_bytes() -> None:
    tokenizer = metaspace_tokenizer()
    assert token_bytes_and_text(1, tokenizer) == (b" the", " the")
    assert token_bytes_and_text(2, tokenizer) == (b"\xe2", "\ufffd")
    assert token_bytes_and_text(3, tokenizer) == (b"cat", "cat")


def test_other_tokenizers_are_asked_to_decode() -> None:
    tokenizer = Tokenizer(models.WordPiece(vocab={"[UNK]": 0, "##ing": 1}, unk_token="[UNK]"))
    tokenizer.decoder = decoders.WordPiece()
    text = tokenizer.decode([1])
    assert token_bytes_and_text(1, tokenizer) == (text.encode(), text)
    tokenizer.decoder = None
    assert token_bytes_and_text(1, tokenizer) == (b"##ing", "##ing")


def test_an_id_beyond_the_vocabulary_has_no_bytes() -> None:
    assert token_bytes_and_text(10**6, byte_level_tokenizer()) == (b"", "")


def test_a_chosen_token_among_the_most_likely_is_listed_once_more_in_its_place() -> None:
    tokenizer = byte_level_tokenizer()
    candidates = {5: Candidate(-1.5, 2), 9: Candidate(-0.5, 1), 7: Candidate(-2.5, 3)}
    result = token_logprobs(5, candidates, tokenizer, top_count=3)
    assert (result.chosen.token_id, result.chosen.logprob, result.chosen.rank) == (5, -1.5, 2)
    assert [one.token_id for one in result.top] == [9, 5, 7]


def test_a_chosen_token_that_is_less_likely_is_not_among_the_top() -> None:
    candidates = {5: Candidate(-4.0, 3), 9: Candidate(-0.5, 1), 7: Candidate(-2.5, 2)}
    result = token_logprobs(5, candidates, byte_level_tokenizer(), top_count=2)
    assert result.chosen.rank == 3
    assert [one.rank for one in result.top] == [1, 2]


def test_the_runner_up_is_extra_where_only_the_most_likely_was_asked_for() -> None:
    candidates = {5: Candidate(-1.0, 2), 9: Candidate(-0.5, 1)}
    result = token_logprobs(5, candidates, byte_level_tokenizer(), top_count=1)
    assert [one.token_id for one in result.top] == [9]


def test_zero_top_logprobs_leave_only_the_chosen_token() -> None:
    result = token_logprobs(5, {5: Candidate(-0.1, 1)}, byte_level_tokenizer(), top_count=0)
    assert result.chosen.token_id == 5
    assert result.top == ()


def test_bytes_and_text_are_filled_in() -> None:
    tokenizer = byte_level_tokenizer()
    token_id = tokenizer.token_to_id("\u0120a")
    result = token_logprobs(token_id, {token_id: Candidate(-0.1, 1)}, tokenizer, top_count=1)
    assert (result.chosen.token_bytes, result.chosen.text) == (b" a", " a")

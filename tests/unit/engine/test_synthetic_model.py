"""The model folder that is made in code."""

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models

from pdd.config.sections import EngineSection
from pdd.core.errors import ConfigError
from pdd.daemon.served_model import served_model
from pdd.engine.synthetic.model import (
    TURN_END,
    make_tokenizer,
    resolve_synthetic_model,
    words_of,
    write_model,
)
from pdd.engine.synthetic.words import spellings, words
from pdd.gateway.tokenizer import ChatPrompt, HFTokenizer

TOKENIZER = make_tokenizer()


@given(st.text())
def test_any_text_comes_back_as_it_was(text: str):
    ids = TOKENIZER.encode(text, add_special_tokens=False).ids
    assert TOKENIZER.decode(ids, skip_special_tokens=False) == text


def test_a_known_word_is_one_token_in_every_spelling():
    for text in spellings():
        assert len(TOKENIZER.encode(text, add_special_tokens=False).ids) == 1, text


def test_there_are_thousands_of_words_without_spaces_or_capitals():
    known = words()
    assert len(known) > 2000
    assert len(set(known)) == len(known)
    assert all(word.isascii() and word.isalpha() and word.islower() for word in known)


def test_the_engine_says_words_and_punctuation_only():
    size = TOKENIZER.get_vocab_size()
    said = words_of(TOKENIZER, eos_token_ids=(TOKENIZER.token_to_id(TURN_END),), size=size)
    texts = [TOKENIZER.decode([token_id]) for token_id in said.words]
    assert len(texts) > 2000
    for text in texts:
        assert text in ",.!?;:" or (text[0] == " " and text[1:].isalpha())


def test_a_foreign_tokenizer_without_words_still_speaks():
    plain = Tokenizer(models.WordLevel({f"t{i}": i for i in range(60)}, unk_token="t0"))
    assert len(words_of(plain, eos_token_ids=(3,), size=60).words) == 59
    few = Tokenizer(models.WordLevel({f"t{i}": i for i in range(10)}, unk_token="t0"))
    with pytest.raises(ConfigError, match="the synthetic engine has 9 tokens"):
        words_of(few, eos_token_ids=(3,), size=10)


def test_the_folder_is_one_that_every_other_part_can_read(tmp_path: Path):
    folder, name = resolve_synthetic_model(None, state_dir=tmp_path)
    model = served_model(EngineSection(model=str(folder), max_model_len=0))
    assert (name, model.max_model_len) == ("synthetic", 131_072)
    assert model.vocab_size == TOKENIZER.get_vocab_size()
    front = HFTokenizer(folder)
    assert front.vocab_size == model.vocab_size
    assert (front.eos_token_id,) == model.eos_token_ids
    chat = ChatPrompt(messages=[{"role": "user", "content": "the quick fox"}])
    rendered = front.render_now(chat)
    assert rendered == "<|im_start|>user\nthe quick fox<|im_end|>\n<|im_start|>assistant\n"
    ids = asyncio.run(front.encode_chat(chat))
    assert ids == Tokenizer.from_file(str(folder / "tokenizer.json")).encode(rendered).ids
    front.close()


def test_writing_again_leaves_the_files_alone(tmp_path: Path):
    write_model(tmp_path)
    before = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    write_model(tmp_path)
    assert {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == before


def test_another_folder_needs_a_tokenizer_and_no_weights(tmp_path: Path):
    write_model(tmp_path / "mine")
    found = resolve_synthetic_model(str(tmp_path / "mine"), state_dir=tmp_path / "state")
    assert found == (tmp_path / "mine", "mine")
    assert not (tmp_path / "state").exists()
    with pytest.raises(ConfigError, match="does not exist"):
        resolve_synthetic_model(str(tmp_path / "other"), state_dir=tmp_path)


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot write the synthetic model to"):
        write_model(tmp_path / "file" / "model")

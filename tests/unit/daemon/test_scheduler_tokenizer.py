"""The scheduler's tokenizer for synthetic clusters says what transformers says."""

from pathlib import Path

import pytest

from pdd.config.sections import EngineKind, EngineSection
from pdd.core.errors import ConfigError, InvalidRequest
from pdd.daemon.scheduler_tokenizer import PlainTokenizer, make_tokenizer
from pdd.engine.synthetic.model import write_model
from pdd.gateway.tokenizer import ChatPrompt, HFTokenizer

TALK = [
    {"role": "system", "content": "Be kind."},
    {"role": "user", "content": "Größe 東京 🙂\n\n  two  spaces"},
    {"role": "assistant", "content": "<|im_end|> the quick fox"},
    {"role": "user", "content": ""},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("model")
    write_model(made)
    return made


async def test_texts_and_conversations_become_the_same_tokens(folder: Path):
    plain, reference = PlainTokenizer(folder), HFTokenizer(folder)
    for message in TALK:
        text = message["content"]
        ids = await plain.encode(text, add_special_tokens=False)
        assert ids == await reference.encode(text, add_special_tokens=False)
        assert await plain.decode(ids) == await reference.decode(ids) == text
        for one in ids:
            assert await plain.decode([one]) == await reference.decode([one])
    for generation in (True, False):
        chat = ChatPrompt(messages=TALK, add_generation_prompt=generation)
        assert await plain.encode_chat(chat) == await reference.encode_chat(chat)
    plain.close()
    reference.close()


def test_the_kind_of_engine_decides(folder: Path):
    for kind, expected in ((EngineKind.SYNTHETIC, PlainTokenizer), (EngineKind.VLLM, HFTokenizer)):
        made = make_tokenizer(EngineSection(kind=kind, model=str(folder)))
        assert type(made) is expected
        made.close()


@pytest.mark.parametrize(
    ("chat", "says"),
    [
        (ChatPrompt(messages=[{"role": "user"}]), "refuses this conversation"),
        (ChatPrompt(messages=TALK, continue_final_message=True), "not available"),
    ],
)
def test_what_the_template_cannot_do_is_the_client_s_fault(
    folder: Path, chat: ChatPrompt, says: str
):
    plain = PlainTokenizer(folder)
    with pytest.raises(InvalidRequest, match=says):
        plain.render_now(chat)
    plain.close()


def test_a_folder_without_a_template_serves_completions_only(folder: Path, tmp_path: Path):
    (tmp_path / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes())
    (tmp_path / "tokenizer_config.json").write_text("{}")
    plain = PlainTokenizer(tmp_path)
    with pytest.raises(InvalidRequest, match="no chat template"):
        plain.render_now(ChatPrompt(messages=TALK))
    plain.close()


def test_a_missing_file_is_named(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"tokenizer\.json is missing"):
        PlainTokenizer(tmp_path)

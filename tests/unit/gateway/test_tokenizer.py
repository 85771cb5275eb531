"""A real Hugging Face tokenizer, trained here on a few lines, with a chat template."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from pdd.core.errors import AdmissionRejected, ConfigError, InvalidRequest
from pdd.gateway.tokenizer import INLINE_CHARS_MAX, ChatPrompt, HFTokenizer
from tests.unit.gateway.builders import LetterTokenizer

TEMPLATE = (
    "{% for message in messages %}"
    "{% if message.role == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}"
    "<|start|>{{ message.role }}\n{{ message.content }}{{ suffix }}<|end|>"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A byte-level BPE with two special tokens, laid out as from_pretrained expects it."""
    path = tmp_path_factory.mktemp("tokenizer")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<|start|>", "<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["the cat sat on the mat", "user assistant system"], trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|start|> $A", special_tokens=[("<|start|>", 0)]
    )
    tokenizer.save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "eos_token": "<|end|>",
                "chat_template": TEMPLATE,
                "model_max_length": 8,
            }
        )
    )
    return path


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> HFTokenizer:
    return HFTokenizer(folder)


async def test_special_tokens_are_added_when_wanted_and_text_survives(
    tokenizer: HFTokenizer,
) -> None:
    bare = await tokenizer.encode("the cat \U0001f408", add_special_tokens=False)
    assert await tokenizer.encode("the cat \U0001f408", add_special_tokens=True) == [0, *bare]
    assert await tokenizer.decode(bare) == "the cat \U0001f408"
    assert await tokenizer.decode(bare[:2]) == "the cat"
    assert tokenizer.eos_token_id == 1


async def test_a_long_prompt_is_not_cut_at_the_tokenizer_s_own_limit(
    tokenizer: HFTokenizer,
) -> None:
    ids = await tokenizer.encode("cat " * 100, add_special_tokens=False)
    assert await tokenizer.decode(ids) == "cat " * 100


async def test_a_conversation_is_rendered_with_the_model_s_template(
    tokenizer: HFTokenizer,
) -> None:
    chat = ChatPrompt(messages=[{"role": "user", "content": "the cat"}])
    ids = await tokenizer.encode_chat(chat)
    text = "<|start|>user\nthe cat<|end|><|start|>assistant\n"
    assert await tokenizer.decode(ids) == text
    assert ids == await tokenizer.encode(text, add_special_tokens=False)
    shouted = ChatPrompt(messages=chat.messages, template_kwargs={"suffix": "!"})
    assert "the cat!<|end|>" in await tokenizer.decode(await tokenizer.encode_chat(shouted))


async def test_the_final_message_is_continued_without_an_end(tokenizer: HFTokenizer) -> None:
    chat = ChatPrompt(
        messages=[{"role": "user", "content": "a"}, {"role": "assistant", "content": "the"}],
        add_generation_prompt=False,
        continue_final_message=True,
    )
    assert (await tokenizer.decode(await tokenizer.encode_chat(chat))).endswith("assistant\nthe")


@pytest.mark.parametrize(
    "chat",
    [
        ChatPrompt(messages=[{"role": "tool", "content": "a"}]),
        ChatPrompt(messages=[{"role": "user", "content": "a"}], template_kwargs={"self": 1}),
        ChatPrompt(messages=[{"role": "user", "content": "a"}], continue_final_message=True),
    ],
    ids=["the template raises", "impossible arguments", "contradicting flags"],
)
async def test_what_the_template_refuses_is_the_client_s_fault(
    tokenizer: HFTokenizer, chat: ChatPrompt
) -> None:
    with pytest.raises(InvalidRequest, match="chat template refuses") as caught:
        await tokenizer.encode_chat(chat)
    assert caught.value.field == "messages"


async def test_many_at_once_give_the_same_ids_as_one_after_another(
    tokenizer: HFTokenizer,
) -> None:
    texts = [f"the cat sat {n} times on the mat" for n in range(64)]
    alone = [
        await tokenizer.encode(text, add_special_tokens=n % 2 == 0) for n, text in enumerate(texts)
    ]
    async with asyncio.TaskGroup() as tasks:
        together = [
            tasks.create_task(tokenizer.encode(text, add_special_tokens=n % 2 == 0))
            for n, text in enumerate(texts)
        ]
    assert [task.result() for task in together] == alone


async def test_more_waiting_prompts_than_the_limit_are_rejected() -> None:
    letters = LetterTokenizer(max_waiting=0)
    with pytest.raises(AdmissionRejected, match="which is the limit"):
        await letters.encode("x" * (INLINE_CHARS_MAX + 1), add_special_tokens=False)
    letters.close()


async def test_a_short_text_waits_for_nobody() -> None:
    letters = LetterTokenizer(max_waiting=0)
    text = "x" * INLINE_CHARS_MAX
    ids = letters.encode_now(text, add_special_tokens=False)
    assert await letters.encode(text, add_special_tokens=False) == ids
    letters.close()


def test_a_folder_without_a_tokenizer_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        HFTokenizer(tmp_path / "missing")
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ConfigError, match="no tokenizer can be loaded"):
        HFTokenizer(tmp_path)


def test_torch_is_not_loaded_for_a_tokenizer(folder: Path) -> None:
    code = (
        "import sys; from pdd.gateway.tokenizer import HFTokenizer; "
        f"assert 'transformers' not in sys.modules; HFTokenizer({str(folder)!r}); "
        "sys.exit('torch' in sys.modules)"
    )
    root = Path(__file__).parents[3]
    assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode == 0

"""What the real conversion wrote, where it has run: tokens, template and end tokens.

Read with ``tokenizers`` and ``jinja2`` alone: transformers would import torch for seconds.

Expected token ids were taken from llama.cpp reading the same GGUF file (3,009 texts agreed;
the ones here are where transformers' own conversion differed or might).
"""

import json
from pathlib import Path
from typing import Any

import jinja2
import pytest
import tokenizers

from pdd.model.default import default_model_folder

PROMPT = (
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
    "<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
)


@pytest.fixture(scope="module")
def folder() -> Path:
    found = default_model_folder()
    if not (found / "tokenizer.json").exists():
        pytest.skip(f"no default model at {found}; `bin/pdd setup` makes it")
    return found


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Any:
    return tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))


@pytest.mark.parametrize(
    ("text", "token_ids"),
    [
        ("In 2026, 1,234 cats", [788, 216, 34, 32, 34, 38, 28, 216, 33, 28, 34, 35, 36, 7680]),
        ("a  12\n\n34", [81, 256, 33, 34, 1116, 35, 36]),
        ("  7", [256, 39]),
        ("²³ ٣", [19133, 39050, 216, 164, 113]),
    ],
)
def test_digits_are_cut_apart_as_the_model_was_trained(
    tokenizer: Any, text: str, token_ids: list[int]
) -> None:
    assert tokenizer.encode(text).ids == token_ids
    assert tokenizer.decode(token_ids) == text


def test_chat_template_adds_the_models_own_system_prompt(folder: Path, tokenizer: Any) -> None:
    template = jinja2.Template((folder / "chat_template.jinja").read_text())
    messages = [{"role": "user", "content": "Hello"}]
    assert template.render(messages=messages, add_generation_prompt=True) == PROMPT
    assert tokenizer.encode(PROMPT).ids[:2] == [1, 9690], "<|im_start|> must be one token"


def test_generation_ends_at_the_end_of_turn(folder: Path, tokenizer: Any) -> None:
    assert json.loads((folder / "tokenizer_config.json").read_text())["eos_token"] == "<|im_end|>"
    assert tokenizer.token_to_id("<|im_end|>") == 2
    assert json.loads((folder / "generation_config.json").read_text())["eos_token_id"] == 2


def test_config_ties_the_embeddings_and_stores_bf16(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    assert config["tie_word_embeddings"] is True
    assert config["dtype"] == "bfloat16"
    assert config["architectures"] == ["LlamaForCausalLM"]

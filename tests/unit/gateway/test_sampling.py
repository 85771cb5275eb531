"""What a good body becomes for the scheduler."""

import json
from typing import Any

import pytest

from pdd.core.identity import RequestId
from pdd.core.requests import GenerateRequest
from pdd.core.sampling import Grammar, Sampling
from pdd.gateway.door import Door
from tests.unit.gateway.builders import MODEL, LetterTokenizer


async def request_of(body: dict[str, Any]) -> GenerateRequest:
    tokenizer = LetterTokenizer()
    door = Door(model=MODEL, tokenizer=tokenizer, seed_source=lambda: 42)
    check = door.chat if "messages" in body else door.completion
    try:
        job = await check(body, request_id=RequestId("r-1"), deadline_s=9.0)
    finally:
        tokenizer.close()
    return job.request


async def test_defaults_are_openai_s_and_a_seed_is_always_drawn() -> None:
    request = await request_of({"prompt": [5, 6]})
    assert request == GenerateRequest(
        request_id=RequestId("r-1"),
        prompt_token_ids=(5, 6),
        sampling=Sampling(max_tokens=16, seed=42),
        deadline_s=9.0,
    )


async def test_a_chat_may_use_all_the_room_its_prompt_leaves() -> None:
    request = await request_of({"messages": [{"role": "user", "content": "x"}]})
    assert len(request.prompt_token_ids) + request.sampling.max_tokens == MODEL.max_model_len


async def test_the_default_of_completions_shrinks_to_the_room_there_is() -> None:
    assert (await request_of({"prompt": [1] * 95})).sampling.max_tokens == 5


async def test_a_prompt_and_its_output_may_fill_the_model_exactly() -> None:
    request = await request_of({"prompt": [1] * 60, "max_tokens": 40})
    assert request.sampling.max_tokens == 40


async def test_the_newer_name_of_max_tokens_wins() -> None:
    body = {"messages": [{"role": "user", "content": "x"}]}
    request = await request_of({**body, "max_tokens": 3, "max_completion_tokens": 4})
    assert request.sampling.max_tokens == 4


async def test_every_sampling_field_arrives_unchanged() -> None:
    request = await request_of(
        {
            "prompt": "x",
            "max_tokens": 20,
            "min_tokens": 2,
            "temperature": 0.5,
            "top_p": 0.9,
            "top_k": 7,
            "min_p": 0.1,
            "presence_penalty": -1.5,
            "frequency_penalty": 1,
            "repetition_penalty": 1.2,
            "seed": -3,
            "stop": "end",
            "stop_token_ids": [4],
            "include_stop_str_in_output": True,
            "ignore_eos": True,
            "skip_special_tokens": False,
            "bad_words": ["no"],
            "logit_bias": {"9": 1.5, "3": -100},
            "allowed_token_ids": [1, 2],
            "logprobs": 3,
            "cache_salt": "salt",
            "priority": -4,
        }
    )
    assert request.sampling == Sampling(
        max_tokens=20,
        min_tokens=2,
        temperature=0.5,
        top_p=0.9,
        top_k=7,
        min_p=0.1,
        presence_penalty=-1.5,
        frequency_penalty=1.0,
        repetition_penalty=1.2,
        seed=-3,
        stop=("end",),
        stop_token_ids=(4,),
        include_stop_str_in_output=True,
        ignore_eos=True,
        skip_special_tokens=False,
        bad_words=("no",),
        logit_bias=((3, -100.0), (9, 1.5)),
        allowed_token_ids=(1, 2),
        logprobs=3,
    )
    assert (request.cache_salt, request.priority) == ("salt", -4)


@pytest.mark.parametrize(
    ("logprobs", "top", "expected"), [(True, None, 0), (True, 5, 5), (False, None, None)]
)
async def test_chat_asks_for_logprobs_in_two_fields(
    logprobs: bool, top: int | None, expected: int | None
) -> None:
    body = {"messages": [{"role": "user", "content": "x"}]}
    request = await request_of({**body, "logprobs": logprobs, "top_logprobs": top})
    assert request.sampling.logprobs == expected


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


@pytest.mark.parametrize(
    ("extra", "grammar"),
    [
        ({"response_format": {"type": "json_object"}}, Grammar(kind="json_object")),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "n", "strict": True, "schema": SCHEMA},
                }
            },
            Grammar(kind="json_schema", value=json.dumps(SCHEMA)),
        ),
        (
            {"structured_outputs": {"json": json.dumps(SCHEMA)}},
            Grammar(kind="json_schema", value=json.dumps(SCHEMA)),
        ),
        ({"structured_outputs": {"regex": "[ab]+"}}, Grammar(kind="regex", value="[ab]+")),
        (
            {"structured_outputs": {"choice": ["yes", "no"]}},
            Grammar(kind="choice", value='["yes", "no"]'),
        ),
        (
            {"structured_outputs": {"grammar": "root ::= x"}},
            Grammar(kind="grammar", value="root ::= x"),
        ),
    ],
)
async def test_constraints_become_one_grammar(extra: dict[str, Any], grammar: Grammar) -> None:
    assert (await request_of({"prompt": "x", **extra})).sampling.grammar == grammar


async def test_one_prompt_may_stand_in_a_list() -> None:
    assert (await request_of({"prompt": [[5, 6]]})).prompt_token_ids == (5, 6)
    assert (await request_of({"prompt": ["A"]})).prompt_token_ids == (1, 65)


async def test_text_parts_are_joined_and_an_earlier_answer_can_be_sent_back_whole() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    earlier = {
        "role": "assistant",
        "content": "c",
        "refusal": None,
        "annotations": None,
        "audio": None,
        "function_call": None,
        "tool_calls": None,
    }
    request = await request_of({"messages": [{"role": "user", "content": parts}, earlier]})
    text = "".join(chr(token_id) for token_id in request.prompt_token_ids)
    assert text == "user:a\nb\nassistant:c\nassistant:"


async def test_the_final_message_can_be_continued() -> None:
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    request = await request_of({"messages": messages, "continue_final_message": True})
    assert "".join(map(chr, request.prompt_token_ids)) == "user:a\nassistant:b"

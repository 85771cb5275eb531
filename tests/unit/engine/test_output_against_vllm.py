"""The output path against vLLM's own frontend, token by token and in groups, on random ids."""

import random
import warnings
from types import SimpleNamespace
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

with warnings.catch_warnings():
    # vLLM's own imports warn (torch.jit, SWIG types); here warnings are errors.
    warnings.simplefilter("ignore")
    from vllm import SamplingParams
    from vllm.v1.engine.detokenizer import FastIncrementalDetokenizer

from pdd.core.frames import Finish, FinishReason
from pdd.core.identity import RequestId
from pdd.core.sampling import Sampling
from pdd.engine.output_stream import OutputStream

TEXT = (
    "The quick brown fox, 漢字とかな, naïve café: 😀👩‍👩‍👧 and 한국어; don't stop. "
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich.\n\n1234 €5.00"
)


def byte_level_tokenizer() -> Tokenizer:
    """Byte-level BPE whose merges cross the bytes of one character and join characters."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces = [piece for piece, _ in pre_tokenizers.ByteLevel(False).pre_tokenize_str(TEXT)]
    names = dict.fromkeys(alphabet)
    for piece in pieces:
        for start in range(len(piece)):
            names |= dict.fromkeys(piece[start : start + size] for size in (2, 3, 5))
    tokenizer = Tokenizer(
        models.BPE(vocab={name: token_id for token_id, name in enumerate(names)}, merges=[])
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<start>", special=True), AddedToken("<end>")])
    return tokenizer


def byte_fallback_tokenizer() -> Tokenizer:
    """As Llama 2: raw bytes that change earlier text, so that the decode stream has to recover."""
    names = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    names += ["\u2581", "\u2581the", "a", "b", "ab", "漢", "é"]
    tokenizer = Tokenizer(
        models.BPE(
            vocab={name: token_id for token_id, name in enumerate(names)},
            merges=[],
            unk_token="<unk>",
        )
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("\u2581", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.add_special_tokens([AddedToken("</s>", special=True)])
    return tokenizer


def vllm_outputs(
    tokenizer: Tokenizer,
    *,
    prompt_token_ids: list[int],
    sampling: Sampling,
    steps: list[list[int]],
    reason: FinishReason,
) -> tuple[list[int], str, list[str], str | None]:
    """vLLM's (token ids, text, text of each step, stop string)."""
    params = SamplingParams(
        max_tokens=sampling.max_tokens,
        min_tokens=sampling.min_tokens,
        stop=list(sampling.stop),
        include_stop_str_in_output=sampling.include_stop_str_in_output,
        skip_special_tokens=sampling.skip_special_tokens,
    )
    request: Any = SimpleNamespace(
        request_id="r", sampling_params=params, prompt_token_ids=prompt_token_ids
    )
    wrapped: Any = SimpleNamespace(_tokenizer=tokenizer)
    detokenizer = FastIncrementalDetokenizer(wrapped, request)
    texts: list[str] = []
    for number, step in enumerate(steps):
        last = number == len(steps) - 1
        stop = detokenizer.update(list(step), last and reason is FinishReason.STOP)
        ended = last or stop is not None
        texts.append(detokenizer.get_next_output_text(finished=ended, delta=True))
        if ended:
            break
    return list(detokenizer.output_token_ids), detokenizer.output_text, texts, stop


def random_case(rng: random.Random, tokenizer: Tokenizer) -> dict[str, Any]:
    vocab_size = tokenizer.get_vocab_size()
    pool = [rng.randrange(vocab_size) for _ in range(rng.choice([4, 12, 200]))]
    token_ids = [rng.choice(pool) for _ in range(rng.randrange(1, 40))]
    shown = tokenizer.decode(token_ids)
    stop: list[str] = []
    for _ in range(rng.choice([0, 1, 1, 3])):
        start = rng.randrange(len(shown) + 1)
        stop.append(shown[start : start + rng.randrange(1, 6)] or "zz")
    steps: list[list[int]] = []
    position = 0
    group_max = rng.choice([1, 1, 4])
    while position < len(token_ids):
        size = rng.randrange(1, group_max + 1)
        steps.append(token_ids[position : position + size])
        position += size
    return {
        "prompt_token_ids": [rng.randrange(vocab_size) for _ in range(rng.randrange(1, 9))],
        "sampling": Sampling(
            max_tokens=100,
            min_tokens=rng.choice([0, 0, 5]),
            stop=tuple(stop),
            include_stop_str_in_output=rng.random() < 0.3,
            skip_special_tokens=rng.random() < 0.7,
        ),
        "steps": steps,
        "reason": rng.choice([FinishReason.LENGTH, FinishReason.STOP]),
    }


def compare(tokenizer: Tokenizer, seed: int) -> str | None:
    """One random case; returns the stop string that ended it."""
    case = random_case(random.Random(seed), tokenizer)
    token_ids, text, texts, stop_string = vllm_outputs(tokenizer, **case)
    stream = OutputStream(
        request_id=RequestId("r"),
        prompt_token_ids=case["prompt_token_ids"],
        sampling=case["sampling"],
        tokenizer=tokenizer,
    )
    frames = []
    for number, step in enumerate(case["steps"]):
        last = number == len(case["steps"]) - 1
        frames.append(stream.push(step, [], Finish(reason=case["reason"]) if last else None))
        if stream.finished:
            break
    told = f"seed {seed}: {case}"
    assert [token for frame in frames for token in frame.token_ids] == token_ids, told
    assert [frame.text for frame in frames] == texts, told
    assert "".join(frame.text for frame in frames) == text, told
    assert frames[-1].finish is not None
    assert frames[-1].finish.stop_reason == stop_string, told
    return stop_string


@pytest.mark.parametrize("make_tokenizer", [byte_level_tokenizer, byte_fallback_tokenizer])
def test_frames_are_what_vllm_streams(make_tokenizer: Any) -> None:
    tokenizer = make_tokenizer()
    stopped = sum(compare(tokenizer, seed) is not None for seed in range(1500))
    assert stopped > 200  # the walk met stop strings

"""What plain vLLM answers, without pdd's connector, sampler or daemons.

Run as a process of its own: ``python plain_reference.py CORE MODEL OUT.json``. Seeds are vLLM's
own. Seeded prompts that need more than one chunk are left out: vLLM 0.32 ends its engine on them
(its CPU generators cannot be rewound; v1/worker/gpu_model_runner.py, ``set_offset``).
"""

import json
import os
import sys
from pathlib import Path
from typing import Any


def main(core: str, model: str, out: str) -> None:
    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = core
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ["VLLM_NO_USAGE_STATS"] = "1"
    sys.path.insert(0, str(Path(__file__).parents[2]))
    from vllm import LLM, SamplingParams

    from tests.vllm.prompts import CASES, CHUNK_TOKENS, MAX_TOKENS, PROMPTS, SETTINGS

    llm = LLM(
        model=model,
        dtype="bfloat16",
        max_model_len=2048,
        max_num_batched_tokens=CHUNK_TOKENS,
        max_num_seqs=8,
        kv_cache_memory_bytes=512 << 20,
        enforce_eager=True,
        enable_prefix_caching=False,
    )
    answers: dict[str, Any] = {}
    for prompt, setting in CASES:
        text_or_ids = PROMPTS[prompt]
        given: Any = (
            text_or_ids if isinstance(text_or_ids, str) else {"prompt_token_ids": text_or_ids}
        )
        length = len(
            text_or_ids
            if isinstance(text_or_ids, list)
            else llm.get_tokenizer().encode(text_or_ids)
        )
        if "seed" in SETTINGS[setting] and length > CHUNK_TOKENS:
            continue
        params = SamplingParams(max_tokens=MAX_TOKENS, logprobs=2, **SETTINGS[setting])
        (output,) = llm.generate([given], params, use_tqdm=False)
        completion = output.outputs[0]
        answers[f"{prompt}/{setting}"] = {
            "token_ids": list(completion.token_ids),
            "text": completion.text,
            "finish_reason": completion.finish_reason,
            "logprobs": [
                step[token].logprob
                for token, step in zip(completion.token_ids, completion.logprobs, strict=True)
            ],
        }
    Path(out).write_text(json.dumps(answers))


if __name__ == "__main__":
    main(*sys.argv[1:])

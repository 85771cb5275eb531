"""Requests that several tests and the references make in the same way."""

from typing import Any

from tests.vllm.cluster import Cluster
from tests.vllm.prompts import MAX_TOKENS, PROMPTS, SETTINGS, salt


def answer_of(cluster: Cluster, prompt: str, setting: str) -> dict[str, Any]:
    """A case's answer, with log probabilities."""
    return cluster.complete(
        PROMPTS[prompt],
        max_tokens=MAX_TOKENS,
        logprobs=2,
        cache_salt=salt(prompt, setting),
        **SETTINGS[setting],
    )


FEATURES: dict[str, dict[str, Any]] = {
    "presence penalty": {"presence_penalty": 1.5, "temperature": 0.7, "seed": 3},
    "frequency penalty": {"frequency_penalty": 1.5, "temperature": 0.0},
    "repetition penalty": {"repetition_penalty": 1.4, "temperature": 0.0},
    "min_tokens": {"min_tokens": 12, "temperature": 0.0, "logit_bias": {"2": 100.0}},
    "bad words": {"bad_words": ["the", " the"], "temperature": 0.0},
    "logit bias": {"logit_bias": {"504": 30.0}, "temperature": 0.9, "seed": 4},
    "allowed tokens": {"allowed_token_ids": [253, 281, 260, 30], "temperature": 1.0, "seed": 8},
    "stop string": {"stop": [" the"], "temperature": 0.0},
    "stop string kept": {
        "stop": [" the"],
        "include_stop_str_in_output": True,
        "temperature": 0.0,
    },
    "ignore eos": {"ignore_eos": True, "temperature": 0.0, "logit_bias": {"2": 100.0}},
    "choice": {"structured_outputs": {"choice": ["wide", "deep blue"]}, "temperature": 0.0},
    "json": {"response_format": {"type": "json_object"}, "temperature": 0.0},
}
FEATURE_PROMPT = "The sea is wide and the ship is small. The sea"


def colocated_features(cluster: Cluster) -> dict[str, Any]:
    """What the co-located daemon answers to every feature."""
    return {
        name: cluster.complete(FEATURE_PROMPT, max_tokens=MAX_TOKENS, cache_salt=name, **fields)
        for name, fields in FEATURES.items()
    }

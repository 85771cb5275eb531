"""How tokens are chosen: one frozen value that travels unchanged from the front door to the engine.

Names and meanings are vLLM's ``SamplingParams`` (vllm/sampling_params.py, 0.32).
"""

from dataclasses import field, replace

from pdd.core.values import frozen


@frozen
class Grammar:
    """What the output must match.

    ``kind``: json_object (no value), json_schema (JSON text), regex, choice (a JSON list of
    strings) or grammar (EBNF text).
    """

    kind: str
    value: str = ""


@frozen
class Sampling:
    """Sampling parameters of one request, already checked by the front door.

    ``seed`` is always set when a request reaches a node: a request that names none is given a
    random one by its scheduler, so that it can be continued on another engine.
    ``top_k`` 0 means no limit. ``logprobs`` None means none wanted, 0 only the chosen token's.
    """

    max_tokens: int
    min_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    bad_words: tuple[str, ...] = ()
    logit_bias: tuple[tuple[int, float], ...] = field(default=())
    allowed_token_ids: tuple[int, ...] = ()
    logprobs: int | None = None
    grammar: Grammar | None = None

    @property
    def greedy(self) -> bool:
        """True where no noise is drawn (vLLM: temperature below 1e-5)."""
        return self.temperature < 1e-5

    def of_choice(self, choice_index: int) -> "Sampling":
        """The parameters of one of several choices: each draws with a seed of its own.

        Choice ``i`` has the seed ``seed + i``, as vLLM's children of one request have
        (vllm/v1/engine/parallel_sampling.py, 0.32), so that choice 0 is the answer without others.
        Beyond the largest 64-bit number it goes on at the smallest.
        """
        if choice_index == 0:
            return self
        return replace(self, seed=(self.seed + choice_index + 2**63) % 2**64 - 2**63)

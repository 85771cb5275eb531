"""From digests to tokens: what sampling parameters mean to the synthetic engine."""

import math
import random

import pytest

from pdd.core.errors import InvalidRequest
from pdd.core.sampling import Grammar, Sampling
from pdd.engine.synthetic.choice import (
    CANDIDATE_COUNT,
    Choice,
    choose,
    ranked,
    refuse,
    vocabulary,
)

EOS = 999
WORDS = vocabulary(range(100, 400), eos_token_ids=(EOS,), size=1000)
RANDOM = random.Random(2)
DIGESTS = [RANDOM.getrandbits(64) for _ in range(400)]


def pick(
    digest: int, *, output: list[int] | None = None, prompt: list[int] | None = None, **fields
) -> Choice:
    fields = {"max_tokens": 100, "temperature": 0.0} | fields
    return choose(
        digest,
        words=WORDS,
        sampling=Sampling(**fields),
        token_ids=[*(prompt or []), *(output or [])],
        prompt_token_count=len(prompt or []),
    )


def test_the_number_of_words_is_cut_to_a_prime():
    assert len(WORDS.words) == 293


def test_too_few_words_are_refused():
    with pytest.raises(ValueError, match="7 tokens to say"):
        vocabulary(range(7), eos_token_ids=(), size=7)


def test_greedy_depends_on_the_digest_alone():
    picks = [pick(digest).token_id for digest in DIGESTS]
    assert picks == [pick(digest, seed=5, output=[1, 2]).token_id for digest in DIGESTS]
    assert len(set(picks)) > 150


@pytest.mark.parametrize("min_tokens", [0, 1])
@pytest.mark.parametrize("ignore_eos", [False, True])
def test_the_short_way_to_the_likeliest_token_is_the_long_one(min_tokens: int, ignore_eos: bool):
    digests = [*DIGESTS, *(digest & ~(0x7F << 48) for digest in DIGESTS)]  # these name the end
    for digest in digests:
        first = pick(digest, ignore_eos=True).token_id
        for stop in ([], [first], list(WORDS.words)):
            fields = {"min_tokens": min_tokens, "ignore_eos": ignore_eos, "stop_token_ids": stop}
            short = pick(digest, **fields)
            assert short.token_id == pick(digest, **fields, logprobs=0).token_id


def test_seeded_draws_depend_on_seed_and_index_and_nothing_else():
    def draws(seed: int, index: int) -> list[int]:
        output = [0] * index
        return [
            pick(digest, temperature=1.0, seed=seed, output=output).token_id for digest in DIGESTS
        ]

    assert draws(1, 3) == draws(1, 3)
    assert draws(1, 3) != draws(2, 3)
    assert draws(1, 3) != draws(1, 4)


def test_draws_follow_their_probabilities():
    digest = next(digest for digest in DIGESTS if pick(digest).token_id != EOS)
    chances = pick(digest, logprobs=0).logprobs
    draw_count = 4000
    drawn = [pick(digest, temperature=1.0, seed=seed).token_id for seed in range(draw_count)]
    for token_id, logprob in chances.items():
        expected = math.exp(logprob)
        spread = math.sqrt(expected * (1 - expected) / draw_count)
        assert abs(drawn.count(token_id) / draw_count - expected) < 5 * spread + 1e-9


@pytest.mark.parametrize(
    "fields", [{"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}], ids=["top_k", "top_p", "min_p"]
)
def test_filters_that_leave_one_token_leave_the_most_likely(fields: dict[str, float]):
    for digest in DIGESTS:
        assert pick(digest, temperature=2.0, seed=4, **fields).token_id == pick(digest).token_id


def test_top_k_leaves_k():
    for digest in DIGESTS[:20]:
        best = ranked(pick(digest, logprobs=3), 3)
        drawn = {pick(digest, temperature=5.0, top_k=3, seed=seed).token_id for seed in range(200)}
        assert drawn == set(best)


def test_allowed_tokens_and_bias_reach_words_that_the_digest_does_not_name():
    assert {pick(digest, allowed_token_ids=(3, 4)).token_id for digest in DIGESTS} == {3, 4}
    assert {pick(digest, logit_bias=((7, 100.0),)).token_id for digest in DIGESTS} == {7}
    for digest in DIGESTS:
        first = pick(digest).token_id
        assert pick(digest, logit_bias=((first, -100.0),)).token_id != first


def test_the_end_comes_now_and_then_and_never_before_min_tokens():
    ends = [digest for digest in DIGESTS if pick(digest).token_id == EOS]
    assert 0 < len(ends) < 20
    for digest in ends:
        assert pick(digest, min_tokens=3, output=[1, 2]).token_id != EOS
        assert pick(digest, min_tokens=3, output=[1, 2, 3]).token_id == EOS
        assert pick(digest, min_tokens=3, ignore_eos=True, output=[]).token_id == EOS
    first = pick(DIGESTS[0]).token_id
    assert pick(DIGESTS[0], min_tokens=1, stop_token_ids=(first,)).token_id != first


def test_penalties_look_at_output_and_repetition_at_the_prompt_too():
    for digest in DIGESTS[:50]:
        first = pick(digest).token_id
        assert pick(digest, presence_penalty=2.0, prompt=[first]).token_id == first
        assert pick(digest, frequency_penalty=2.0, output=[first]).token_id != first
        second = pick(digest, presence_penalty=2.0, output=[first]).token_id
        assert second != first
        assert pick(digest, repetition_penalty=2.0, prompt=[second]).token_id != second


def test_logprobs_are_those_before_any_parameter_and_sum_to_one():
    for digest in DIGESTS[:50]:
        plain = pick(digest, logprobs=5)
        assert math.isclose(sum(map(math.exp, plain.logprobs.values())), 1.0)
        cold = pick(digest, logprobs=5, temperature=0.1, seed=3, top_k=2)
        assert cold.logprobs == plain.logprobs
        places = ranked(plain, 5)
        assert [one.rank for one in places.values()] == [1, 2, 3, 4, 5]
        assert places[plain.token_id].rank == 1
    assert pick(DIGESTS[0]).logprobs == {}


def test_a_chosen_token_outside_the_top_keeps_its_rank():
    choice = Choice(token_id=3, logprobs={1: -0.1, 2: -2.0, 3: -3.0, 4: -4.0})
    assert {one: place.rank for one, place in ranked(choice, 1).items()} == {1: 1, 3: 3}


@pytest.mark.parametrize(
    ("fields", "field", "says"),
    [
        ({"grammar": Grammar(kind="json_object")}, "response_format", "follows no grammar"),
        ({"bad_words": ("x",)}, "bad_words", "use logit_bias"),
        ({"logprobs": CANDIDATE_COUNT + 1}, "logprobs", "25 is above"),
        ({"stop_token_ids": (1000,)}, "stop_token_ids", "token id 1000 is not in 0..999"),
        ({"allowed_token_ids": (-1,)}, "allowed_token_ids", "-1 is not in"),
        ({"logit_bias": ((5000, 1.0),)}, "logit_bias", "5000 is not in"),
    ],
)
def test_what_it_cannot_do_is_refused_by_name(fields: dict, field: str, says: str):
    with pytest.raises(InvalidRequest, match=says) as refused:
        refuse(Sampling(max_tokens=1, **fields), WORDS)
    assert refused.value.field == field
    refuse(Sampling(max_tokens=1), WORDS)

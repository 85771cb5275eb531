"""Whose turn it is among long prompts, without vLLM. A step has 64 tokens, so 17 are long."""

import random

import pytest

from pdd.connector.long_turns import (
    AT_ONCE_MAX,
    LOADING_MAX,
    PAUSED_STEPS_MAX,
    SHORT_MEMORY_STEPS,
    LongTurns,
)

STEP = 64
SHARE = STEP // 4


def make_turns(**prompts: int) -> LongTurns:
    turns = LongTurns(step_tokens=STEP)
    for key, tokens in prompts.items():
        turns.offered(key, tokens)
    return turns


def ask(turns: LongTurns, **remaining: int) -> list[str]:
    """What vLLM does in a step with tokens left: those that may begin."""
    return [key for key, tokens in remaining.items() if turns.may_begin(key, tokens)]


def end_step(turns: LongTurns, **remaining: int) -> None:
    """The step computed these, so much of each is left now."""
    paused = turns.limits().pauses
    for key, tokens in remaining.items():
        turns.computed(key, tokens)
    turns.step_ended(paused=paused)


class TestOrder:
    def test_one_begins_and_the_others_are_held(self) -> None:
        turns = make_turns(a=500, b=400, c=600)
        assert ask(turns, a=500, b=400, c=600) == ["a"]
        assert turns.held_count == 2

    def test_the_one_with_least_remaining_is_next(self) -> None:
        turns = make_turns(a=500, b=400, c=300, d=200)
        assert ask(turns, a=500, b=400, c=300, d=200) == ["a"]
        end_step(turns, a=0)
        assert ask(turns, b=400, c=300, d=200) == ["d"]

    def test_cached_tokens_do_not_count(self) -> None:
        turns = make_turns(a=500, b=400, c=300)
        ask(turns, a=500, b=100, c=300)
        end_step(turns, a=0)
        assert ask(turns, b=100, c=300) == ["b"]

    def test_one_that_the_cache_has_made_short_waits_for_nobody(self) -> None:
        turns = make_turns(a=500, b=400)
        assert ask(turns, a=500, b=SHARE) == ["a", "b"]
        assert turns.held_count == 0

    def test_a_more_urgent_one_goes_before_a_shorter_one(self) -> None:
        turns = make_turns(a=500, b=100)
        turns.offered("urgent", 400, priority=-1)
        ask(turns, a=500, b=100, urgent=400)
        end_step(turns, a=0)
        assert ask(turns, b=100, urgent=400) == ["urgent"]

    def test_one_that_vllm_had_no_room_for_is_asked_about_again(self) -> None:
        turns = make_turns(a=500, b=400)
        assert ask(turns, a=500, b=400) == ["a"]
        end_step(turns)  # no blocks for it
        assert ask(turns, a=500, b=400) == ["b"], "and now the shorter one is known"
        turns.ended("b")
        assert ask(turns, a=500) == ["a"]

    def test_one_that_lost_its_blocks_keeps_its_turn(self) -> None:
        turns = make_turns(a=500, b=100)
        ask(turns, a=500, b=490)
        end_step(turns, a=480)
        assert ask(turns, b=490, a=500) == ["a"]

    def test_one_that_is_aborted_leaves_its_turn_to_the_next(self) -> None:
        turns = make_turns(a=500, b=400, c=300)
        ask(turns, a=500, b=400, c=300)
        end_step(turns, a=480)
        turns.ended("a")
        turns.ended("c")
        turns.ended("never known")
        assert ask(turns, b=400) == ["b"]
        assert turns.held_count == 0

    @pytest.mark.parametrize("seed", range(5))
    def test_a_long_one_is_overtaken_for_its_own_length_and_no_more(self, seed: int) -> None:
        """Shorter ones that never end: an endless stream of them, one after the other."""
        rng = random.Random(seed)
        turns = make_turns(first=100, victim=1000)
        ask(turns, first=100, victim=1000)
        end_step(turns, first=0)
        overtaken_by = 0
        for index in range(1000):
            key, tokens = f"next {index}", rng.randint(SHARE + 1, 300)
            turns.offered(key, tokens)
            begun = ask(turns, victim=1000, **{key: tokens})
            if "victim" in begun:
                break
            assert begun == [key], f"seed {seed}"
            overtaken_by += tokens
            end_step(turns, **{key: 0})
        else:
            pytest.fail(f"seed {seed}: starved")
        assert overtaken_by <= 1000

    def test_every_prompt_has_its_turn_whatever_comes_and_goes(self) -> None:
        rng = random.Random(5)
        turns = LongTurns(step_tokens=STEP)
        left: dict[str, int] = {}
        begun: dict[str, None] = {}
        offered = ended = steps = 0
        while ended < 500:
            steps += 1
            assert steps < 20_000, f"seed 5: {left} after {ended}"
            if offered < 500 and rng.random() < 0.3:
                left[f"{offered}"] = rng.choice([5, 15, 50, 200, 900])
                turns.offered(f"{offered}", left[f"{offered}"], priority=rng.randint(0, 1))
                offered += 1
            limits = turns.limits()
            budget = limits.step_tokens
            running = [key for key in begun if not (limits.pauses and key in turns.begun_keys)]
            computed = dict.fromkeys(running, 0)
            for key in [*running, *(key for key in left if key not in begun)]:
                if budget == 0:
                    break
                if key not in begun and not turns.may_begin(key, left[key]):
                    continue
                if rng.random() < 0.1:
                    break  # no blocks
                chunk = limits.chunk_tokens if limits.chunk_tokens and len(left) > 1 else budget
                computed[key] = min(left[key], budget, chunk)
                budget -= computed[key]
            for key, count in computed.items():
                if count:
                    begun[key] = None
                    left[key] -= count
                    turns.computed(key, left[key])
                    if not left[key]:
                        del left[key], begun[key]
                        ended += 1
            turns.step_ended(paused=limits.pauses)
            if left and rng.random() < 0.02:
                key = rng.choice(list(left))
                turns.ended(key)
                del left[key]
                begun.pop(key, None)
                ended += 1
        assert turns.held_count == 0
        assert turns.begun_keys == []


class TestRoom:
    def test_the_rest_of_a_step_goes_to_the_next(self) -> None:
        turns = make_turns(a=50, b=40, c=30)
        assert ask(turns, a=50, b=40, c=30) == ["a", "b"], "50 leave room, 90 do not"

    def test_but_only_a_fourth_of_it_while_short_prompts_come(self) -> None:
        turns = make_turns(a=50, b=40)
        turns.offered("short", SHARE)
        assert ask(turns, a=50, b=40, short=SHARE) == ["a", "short"]
        end_step(turns, a=34, short=0)
        assert ask(turns, b=40) == []
        end_step(turns, a=SHARE - 1)
        assert ask(turns, b=40) == ["b"]

    def test_one_of_a_fourth_goes_beside_a_very_long_one(self) -> None:
        turns = make_turns(a=4000, b=1001, c=1000, d=250, e=60)
        assert ask(turns, a=4000, b=1001, c=1000, d=250, e=60) == ["a", "c", "d"]
        assert AT_ONCE_MAX == 3

    def test_while_a_prefix_is_on_its_way_the_next_one_computes(self) -> None:
        turns = make_turns(a=500, b=400, c=300, d=200)
        assert ask(turns, a=500) == ["a"]
        turns.loading("a")
        turns.step_ended(paused=False)
        assert ask(turns, b=400) == ["b"]
        turns.loading("b")
        turns.step_ended(paused=False)
        assert LOADING_MAX == 2
        assert ask(turns, c=300, d=200) == []
        turns.loaded("a")
        turns.step_ended(paused=False)
        assert ask(turns, c=300, d=200) == [], "a computes 500 now"
        turns.loaded("b")
        turns.ended("a")
        turns.ended("b")
        assert ask(turns, c=300, d=200) == ["d"]


class TestLimits:
    def test_alone_a_prompt_has_the_whole_step(self) -> None:
        turns = make_turns(a=500)
        ask(turns, a=500)
        end_step(turns, a=436)
        limits = turns.limits()
        assert (limits.step_tokens, limits.chunk_tokens, limits.pauses) == (STEP, 0, False)

    def test_it_shares_until_the_last_that_came_was_asked_about(self) -> None:
        """Its cache may have made it short; with no token left in the step, vLLM does not ask."""
        turns = make_turns(a=500)
        ask(turns, a=500)
        end_step(turns, a=436)
        turns.offered("b", 400)
        assert turns.limits().chunk_tokens == STEP // 2
        assert ask(turns, b=400) == []
        end_step(turns, a=404)
        assert turns.limits().chunk_tokens == 0

    def test_it_shares_with_the_one_beside_it(self) -> None:
        turns = make_turns(a=500, b=100)
        assert ask(turns, a=500) == ["a"]
        end_step(turns, a=436)
        assert ask(turns, b=100) == ["b"]
        end_step(turns, a=404, b=68)
        assert turns.limits().chunk_tokens == STEP // 2

    def test_a_short_one_pauses_it_for_its_own_step(self) -> None:
        turns = make_turns(a=500)
        ask(turns, a=500)
        end_step(turns, a=436)
        assert turns.begun_keys == ["a"]
        turns.offered("short", SHARE)
        assert turns.limits().pauses
        assert ask(turns, short=SHARE) == ["short"]
        end_step(turns, short=0)
        limits = turns.limits()
        assert (limits.step_tokens, limits.chunk_tokens, limits.pauses) == (SHARE, SHARE, False)

    def test_short_ones_that_never_end_leave_it_every_fourth_step(self) -> None:
        turns = make_turns(a=500)
        ask(turns, a=500)
        end_step(turns, a=436)
        turns.offered("short 0", SHARE)
        pauses = []
        for index in range(12):
            turns.offered(f"short {index + 1}", SHARE)
            pauses.append(turns.limits().pauses)
            assert turns.limits().chunk_tokens == SHARE
            ask(turns, **{f"short {index}": SHARE})
            end_step(turns, **{f"short {index}": 0})
        assert PAUSED_STEPS_MAX == 3
        assert pauses == [True, True, True, False] * 3

    def test_short_ones_that_vllm_has_no_blocks_for_do_not_stop_it(self) -> None:
        turns = make_turns(a=500)
        ask(turns, a=500)
        end_step(turns, a=436)
        turns.offered("short", SHARE)
        end_step(turns)
        assert not turns.limits().pauses

    def test_when_none_comes_any_more_it_has_the_whole_step_again(self) -> None:
        turns = make_turns(a=5000, b=5000)
        ask(turns, a=5000, b=5000)
        turns.offered("short", SHARE)
        ask(turns, short=SHARE)
        end_step(turns, a=4900, short=0)
        for step in range(SHORT_MEMORY_STEPS - 1):
            assert turns.limits().chunk_tokens == SHARE
            end_step(turns, a=4900 - step)
        limits = turns.limits()
        assert (limits.step_tokens, limits.chunk_tokens) == (STEP, 0)

    def test_after_a_pause_of_all_work_nothing_is_expected(self) -> None:
        """A prompt that is asked for alone is cut at the same places, whatever was asked before."""
        turns = make_turns(short=SHARE)
        ask(turns, short=SHARE)
        end_step(turns, short=0)
        turns.offered("a", 500)
        assert ask(turns, a=500) == ["a"]
        limits = turns.limits()
        assert (limits.step_tokens, limits.chunk_tokens, limits.pauses) == (STEP, 0, False)

    def test_a_step_of_one_token_has_shares(self) -> None:
        turns = LongTurns(step_tokens=1)
        turns.offered("a", 3)
        turns.offered("b", 1)
        assert turns.limits().chunk_tokens == 1

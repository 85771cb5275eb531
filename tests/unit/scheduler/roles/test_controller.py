"""When the role controller wishes for a switch; numbers only."""

import random
from dataclasses import replace
from itertools import pairwise

import pytest

from pdd.core.identity import Role
from pdd.scheduler.roles.controller import (
    Controller,
    Loads,
    PoolLoad,
    Wish,
    best_wish,
    wanted_count,
)
from pdd.scheduler.roles.settings import RoleSettings
from pdd.scheduler.roles.smooth import SmoothLoads

PREFILL, DECODE = Role.PREFILL, Role.DECODE
EVEN = RoleSettings(
    prefill_load_target=0.8,
    decode_load_target=0.8,
    gain_fraction=0.2,
    sustain_s=10.0,
    cooldown_s=60.0,
    guard_rest_s=300.0,
)


def loads(prefill_nodes: int, prefill_load: float, decode_nodes: int, decode_load: float) -> Loads:
    return {
        PREFILL: PoolLoad(node_count=prefill_nodes, load_nodes=prefill_load),
        DECODE: PoolLoad(node_count=decode_nodes, load_nodes=decode_load),
    }


def wished(given: Loads, settings: RoleSettings = EVEN) -> Wish:
    wish, why_not = best_wish(given, settings)
    assert wish is not None, why_not
    return wish


@pytest.mark.parametrize(
    ("given", "target", "why_not"),
    [
        # prefill: 2 nodes carry 1.6, decode likewise; 0.8 each is as intended
        (loads(2, 1.6, 2, 1.6), None, "no pool is pressed"),
        (loads(2, 0.0, 2, 0.0), None, "no pool is pressed"),
        # decode 1.9 / 1.6 = 1.19; with 3 nodes 0.79, prefill with 1 node 0.5
        (loads(2, 0.4, 2, 1.9), DECODE, ""),
        (loads(2, 1.9, 2, 0.4), PREFILL, ""),
        # prefill with 1 node would be 1.0 / 0.8 = 1.25, more than decode's 1.19 now
        (loads(2, 1.0, 2, 1.9), None, "too little gained"),
        # 0.8 / 0.8 = 1.0 on the prefill node that is left: 16 % less than 1.19, not a fifth
        (loads(2, 0.8, 2, 1.9), None, "too little gained"),
        (loads(1, 0.0, 3, 9.0), None, "the least is 1"),
        (loads(3, 9.0, 1, 0.0), None, "the least is 1"),
    ],
)
def test_a_switch_is_wished_for_where_it_helps_much(
    given: Loads, target: Role | None, why_not: str
) -> None:
    wish, reason = best_wish(given, EVEN)
    assert (wish.target if wish else None) is target
    assert why_not in reason
    if wish is not None:
        assert wish.source is not wish.target
        assert f"{wish.target} pressure" in wish.reason


def test_a_pool_may_be_given_up_where_its_minimum_is_none() -> None:
    settings = replace(EVEN, prefill_count_min=0)
    assert wished(loads(1, 0.0, 1, 2.0), settings).target is DECODE
    wish, _ = best_wish(loads(1, 0.1, 1, 2.0), settings)
    assert wish is None  # its work would find nobody


def test_many_nodes_move_together_but_a_tenth_at_most() -> None:
    assert wished(loads(50, 1.0, 50, 120.0)).count == 10
    assert wished(loads(50, 20.0, 50, 50.0)).count == 10, "of 21 that would be best"
    wish, _ = best_wish(loads(60, 45.0, 40, 40.0), EVEN)
    assert wish is None, "1.25 would become 1.06 at best"


def test_one_node_of_many_gains_little_and_is_a_step_on_the_way() -> None:
    assert wished(loads(5, 0.5, 5, 10.0)).count == 1


def test_a_wish_must_stand_for_a_while() -> None:
    controller = Controller(settings=EVEN)
    pressed, idle = loads(2, 0.4, 2, 1.9), loads(2, 0.4, 2, 0.4)
    assert controller.decide(pressed, now_s=0.0) is None
    assert controller.decide(pressed, now_s=9.0) is None
    assert controller.decide(idle, now_s=9.5) is None
    assert controller.decide(pressed, now_s=10.5) is None, "the wish began anew"
    assert "for 0.0 s" in controller.idle_reason
    assert controller.decide(pressed, now_s=20.5) is not None


def test_it_rests_after_a_switch() -> None:
    controller = Controller(settings=EVEN)
    pressed = loads(2, 0.4, 2, 1.9)
    controller.rest(now_s=0.0)
    assert [controller.decide(pressed, now_s=t) for t in (0.0, 30.0, 59.0)] == [None] * 3
    assert "rests for 1 s more" in controller.idle_reason
    assert controller.decide(pressed, now_s=60.0) is not None


def test_what_was_undone_is_not_tried_again_soon() -> None:
    controller = Controller(settings=EVEN)
    controller.undone(DECODE, now_s=0.0)
    to_decode, to_prefill = loads(2, 0.4, 2, 1.9), loads(2, 1.9, 2, 0.4)
    controller.decide(to_decode, now_s=0.0)
    assert controller.decide(to_decode, now_s=200.0) is None
    assert "was undone" in controller.idle_reason
    controller.decide(to_prefill, now_s=201.0)
    assert controller.decide(to_prefill, now_s=212.0) is not None, "the other way is free"
    controller.decide(to_decode, now_s=290.0)
    assert controller.decide(to_decode, now_s=300.0) is not None


@pytest.mark.parametrize(
    ("load", "count"), [(0.0, 1), (0.79, 1), (0.81, 2), (1.6, 2), (8.0, 10), (8.01, 11)]
)
def test_wanted_replicas_carry_the_load(load: float, count: int) -> None:
    assert wanted_count(PoolLoad(node_count=3, load_nodes=load), PREFILL, EVEN) == count


class Fluid:
    """Pools of ``node_count`` nodes in all, noisy loads, a controller that is obeyed at once."""

    def __init__(self, seed: int, *, node_count: int, settings: RoleSettings) -> None:
        self.rng = random.Random(seed)
        self.node_count = node_count
        self.prefill_count = node_count // 2
        self.controller = Controller(settings=settings)
        self.smooth = SmoothLoads(window_s=settings.window_s)
        self.now_s = 0.0
        self.switches: list[tuple[float, Role]] = []

    def run(self, prefill_load: float, decode_load: float, *, noise: float, for_s: float) -> None:
        settings = self.controller.settings
        end_s = self.now_s + for_s
        while self.now_s < end_s:
            self.now_s += 1.0
            self.smooth.observe(
                {
                    PREFILL: prefill_load * self.rng.uniform(1 - noise, 1 + noise),
                    DECODE: decode_load * self.rng.uniform(1 - noise, 1 + noise),
                },
                now_s=self.now_s,
            )
            seen = {
                PREFILL: PoolLoad(
                    node_count=self.prefill_count, load_nodes=self.smooth.nodes[PREFILL]
                ),
                DECODE: PoolLoad(
                    node_count=self.node_count - self.prefill_count,
                    load_nodes=self.smooth.nodes[DECODE],
                ),
            }
            wish = self.controller.decide(seen, now_s=self.now_s)
            if wish is not None:
                change = wish.count if wish.target is PREFILL else -wish.count
                self.prefill_count += change
                self.switches.append((self.now_s, wish.target))
                self.controller.rest(now_s=self.now_s)
            assert self.prefill_count >= settings.prefill_count_min
            assert self.node_count - self.prefill_count >= settings.decode_count_min


@pytest.mark.parametrize("seed", range(20))
def test_noise_makes_nobody_flap(seed: int) -> None:
    """An hour of a load whose parts are anywhere and jump by 60 % up and down every second:
    it may take a few switches to get there, and none goes back."""
    rng = random.Random(seed)
    fluid = Fluid(seed, node_count=rng.randrange(2, 9), settings=RoleSettings(window_s=10.0))
    total = fluid.node_count * rng.uniform(0.3, 1.3)
    part = rng.uniform(0.1, 0.9)
    fluid.run(total * part, total * (1 - part), noise=0.6, for_s=3600.0)
    targets = {target for _, target in fluid.switches}
    print(f"seed {seed}: {fluid.node_count} nodes, {fluid.switches}")
    assert len(targets) <= 1, "a switch was taken back"
    assert len(fluid.switches) <= fluid.node_count - 2


@pytest.mark.parametrize("seed", range(20))
def test_roles_follow_a_mix_that_shifts_and_switch_once_for_each_shift(seed: int) -> None:
    """Six nodes; the work of 2.6 nodes moves from prefill to decode and back, four times."""
    fluid = Fluid(seed, node_count=6, settings=RoleSettings())
    counts = []
    for shift in range(8):
        heavy, light = 3.2, 0.6
        prefill, decode = (heavy, light) if shift % 2 == 0 else (light, heavy)
        fluid.run(prefill, decode, noise=0.3, for_s=600.0)
        counts.append(fluid.prefill_count)
    print(f"seed {seed}: {counts}, {fluid.switches}")
    assert min(counts[0::2]) >= 4, "prefill has 3.2 of work at 0.7 a node"
    assert max(counts[1::2]) <= 2
    gaps_s = [after[0] - before[0] for before, after in pairwise(fluid.switches)]
    assert min(gaps_s) >= RoleSettings().cooldown_s


def test_a_load_for_less_than_the_window_moves_nobody() -> None:
    fluid = Fluid(0, node_count=6, settings=RoleSettings())
    for _ in range(20):
        fluid.run(0.6, 0.6, noise=0.3, for_s=60.0)
        fluid.run(6.0, 0.6, noise=0.3, for_s=5.0)
    assert fluid.switches == []

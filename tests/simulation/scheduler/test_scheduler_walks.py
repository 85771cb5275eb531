"""Histories of overload, lost nodes, cordons and clients that leave: everybody ends, exactly once.

A failure names its seed; the same seed gives the same history.
"""

import random

import pytest

from pdd.core.errors import AdmissionRejected
from pdd.core.identity import NodeName
from pdd.scheduler.events import NodeCordoned, NodeUncordoned
from pdd.scheduler.settings import EstimateSettings, PathMode, PathSettings, SchedulerSettings
from tests.builders import make_request
from tests.simulation.scheduler.world import World

PREFILLS = ("prefill-0", "prefill-1")
DECODES = ("decode-0", "decode-1")


class Walk:
    """Two nodes of each role, twice the load that they can take, and one mishap a second."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        mode = self.rng.choice([PathMode.AUTO, PathMode.DISAGGREGATED])
        self.world = World(
            SchedulerSettings(
                queue_request_count_max=60,
                path=PathSettings(mode=mode),
                estimates=EstimateSettings(output_tokens=self.rng.choice([16.0, 64.0, 256.0])),
            )
        )
        self.epochs = dict.fromkeys((*PREFILLS, *DECODES), 1)
        for name in self.epochs:
            self.world.join(name)
        self.count = 0

    def arrival(self) -> None:
        rng, world = self.rng, self.world
        self.count += 1
        is_long = rng.random() < 0.2
        client = world.arrive(
            make_request(
                f"r{self.count}",
                prompt_token_count=rng.choice([300, 700]) if is_long else rng.choice([16, 40, 90]),
                max_tokens=rng.choice([500, 800]) if rng.random() < 0.3 else rng.choice([8, 32]),
                presence_penalty=0.5 if rng.random() < 0.1 else 0.0,
            ),
            output_tokens=rng.choice([4, 16, 64, 500]),
        )
        if rng.random() < 0.1:
            world.at(world.now_s + 5 * rng.random(), lambda: world.leave(client))

    def mishap(self) -> None:
        rng, world = self.rng, self.world
        name = rng.choice(list(self.epochs))
        match rng.choice(["lose", "cordon", "uncordon", "uncordon"]):
            case "lose" if name in world.nodes:
                world.lose(name)
                world.at(world.now_s + 3 * rng.random(), lambda: self.come_back(name))
            case "cordon" if name in world.nodes:
                world.step(NodeCordoned(node=NodeName(name), is_drain=rng.random() < 0.5))
            case "uncordon":
                world.step(NodeUncordoned(node=NodeName(name)))

    def come_back(self, name: str) -> None:
        if name not in self.world.nodes:
            self.epochs[name] += 1
            self.world.join(name, boot_epoch=self.epochs[name])

    def run(self) -> None:
        for second in range(30):
            self.world.at(second + self.rng.random(), self.mishap)
            for _ in range(8):
                self.world.at(second + self.rng.random(), self.arrival)
        self.world.run(34.0)
        for name in self.epochs:
            self.world.step(NodeUncordoned(node=NodeName(name)))
            self.come_back(name)
        self.world.run(400.0)


@pytest.mark.parametrize("seed", range(8))
def test_everybody_ends_once_whatever_happens(seed: int) -> None:
    walk = Walk(seed)
    walk.run()
    world = walk.world
    assert not world.core.requests, f"seed {seed}: {list(world.core.requests)} never ended"
    assert all(client.ended_s is not None for client in world.clients.values())
    assert not any(node.leases for node in world.core.nodes.values())
    assert not any(node.jobs for node in world.nodes.values()), f"seed {seed}: forgotten jobs"
    for client in world.clients.values():
        if isinstance(client.error, AdmissionRejected):
            assert 1.0 <= client.error.retry_after_s <= 60.0
            assert client.emitted == 0


def test_the_walks_reach_what_they_are_about() -> None:
    given_back = refused = 0
    for seed in range(2):
        walk = Walk(seed)
        walk.run()
        given_back += walk.world.core.counts.given_back
        refused += walk.world.core.counts.rejected_full
    assert given_back > 0
    assert refused > 0

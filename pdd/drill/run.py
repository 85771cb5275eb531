"""The rounds of a drill: load, a fault, everything mended, the load's end, and the verdict on it.

The seed decides what happens and when; the machine's timing stays its own, so a failing drill is
repeated rather than replayed. Every wait has an end: at ``ROUND_TIMEOUT_S`` a round is given up,
and the drill with it.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pdd.drill.cluster import POLL_S, SCHEDULERS, DrillCluster, DrillStuckError
from pdd.drill.faults import (
    CHANGES_LEADER,
    HOLD_S_MAX,
    LOAD_S_MAX,
    Fault,
    Round,
    plan_rounds,
)
from pdd.drill.load import STREAM_CLIENTS, Load, Question, undisturbed
from pdd.drill.verdict import Cost, broken, cost_of, texts_of, without_the_lost
from pdd.replication.percentiles import percentile

START_TIMEOUT_S = 120.0
LEADER_TIMEOUT_S = 20.0
BUSY_TIMEOUT_S = 30.0
MEND_TIMEOUT_S = 60.0
FINISH_TIMEOUT_S = 90.0
BLOCKS_TIMEOUT_S = 40.0
"""Above ``resume.grace_s``, in which a node gives up what nobody came back for."""
STRIKE_TIMEOUT_S = 60.0
"""For what the drill itself does in between: ending processes, asking where requests run."""
ROUND_TIMEOUT_S = STRIKE_TIMEOUT_S + sum(
    (
        2 * LEADER_TIMEOUT_S,
        BUSY_TIMEOUT_S,
        LOAD_S_MAX,
        HOLD_S_MAX,
        MEND_TIMEOUT_S,
        FINISH_TIMEOUT_S,
        BLOCKS_TIMEOUT_S,
    )
)
"""All that may pass before one of a round's own limits says what it was that took so long."""


@dataclass(slots=True, kw_only=True)
class DrillResult:
    """``faults``: everything that must not be; empty when the drill passed. ``lost_with_both``:
    requests whose scheduler and node were killed together, and whose clients were told that nobody
    knows them: two failures at once, which no promise covers. ``ended_elsewhere``: requests that
    were ended at another scheduler than had them, and were over then."""

    seed: int
    rounds: int = 0
    requests: int = 0
    lost_with_both: int = 0
    ended_elsewhere: int = 0
    faults: list[str] = field(default_factory=list)
    costs: dict[Fault, Cost] = field(default_factory=dict)

    def report(self) -> dict[str, Any]:
        """For people and programs; milliseconds."""
        leaders_ms = [ms for cost in self.costs.values() for ms in cost.new_leader_ms]
        return {
            "rounds": self.rounds,
            "seed": self.seed,
            "requests": self.requests,
            "promises_broken": len(self.faults),
            "lost_with_both": self.lost_with_both,
            "ended_elsewhere": self.ended_elsewhere,
            "new_leader_ms_p50": round(percentile(leaders_ms, 50), 1),
            "new_leader_ms_max": round(max(leaders_ms, default=0.0), 1),
            "kinds": {
                str(fault): {"rounds": cost.round_count, **cost.summary()}
                for fault, cost in self.costs.items()
            },
        }


async def run_drill(
    directory: Path, *, rounds: int, seed: int, say: Callable[[str], None]
) -> DrillResult:
    """Raises: DrillStuckError."""
    result = DrillResult(seed=seed)
    say("starting three schedulers, a prefill node and two decode nodes")
    async with DrillCluster(directory) as cluster:
        await cluster.until_whole(timeout_s=START_TIMEOUT_S)
        texts, result.faults = texts_of(await undisturbed(cluster.urls))
        if result.faults:
            return result  # there is nothing to compare with
        for round_ in plan_rounds(rounds, seed=seed):
            drill = _Round(cluster, round_, texts)
            try:
                async with asyncio.timeout(ROUND_TIMEOUT_S):
                    faults = await drill.run()
            except TimeoutError as error:
                raise DrillStuckError(
                    f"round {round_.number + 1} ({round_.fault}) was not over after "
                    f"{ROUND_TIMEOUT_S:g} s; see {directory}/log"
                ) from error
            result.rounds += 1
            result.requests += drill.request_count
            result.lost_with_both += drill.lost_count
            result.ended_elsewhere += drill.ended_count
            result.faults += [f"round {round_.number + 1} ({round_.fault}): {f}" for f in faults]
            result.costs.setdefault(round_.fault, Cost()).add(drill.cost)
            say(f"round {round_.number + 1}: {round_.fault} {_told(drill, faults)}")
    return result


class _Round:
    def __init__(self, cluster: DrillCluster, plan: Round, texts: dict[Question, str]) -> None:
        self._cluster = cluster
        self._plan = plan
        self._texts = texts
        self.request_count = 0
        self.lost_count = 0
        self.ended_count = 0
        self.cost = Cost()

    async def run(self) -> list[str]:
        """What must not be."""
        cluster, plan = self._cluster, self._plan
        led = await cluster.until_led(SCHEDULERS, above_term=0, timeout_s=LEADER_TIMEOUT_S)
        followers = [name for name in SCHEDULERS if name != led.name]
        follower = followers[plan.pick % len(followers)]
        struck = follower if plan.fault is Fault.KILL_FOLLOWER else led.name
        others = [name for name in SCHEDULERS if name != struck]
        async with Load(cluster.urls) as load:
            await self._until_busy(load)
            await asyncio.sleep(plan.load_s)
            node = cluster.nodes[plan.pick % len(cluster.nodes)]
            decoding = await cluster.decoding(struck, [one.request_id for one in load.running()])
            at_s = time.monotonic()
            striking = asyncio.create_task(self._strike(struck, node))
            new_leader_s = None
            if plan.fault in CHANGES_LEADER:
                await cluster.until_led(others, above_term=led.term, timeout_s=LEADER_TIMEOUT_S)
                new_leader_s = time.monotonic()
            await striking
            await asyncio.sleep(max(at_s + plan.hold_s - time.monotonic(), 0.0))
            load.check()
            cluster.mend()
            await cluster.until_whole(timeout_s=MEND_TIMEOUT_S)
            faults = await self._finish(load)
            streams = list(load.streams)
            faults += load.enders.faults
            self.ended_count = load.enders.ended_count
        if not self.ended_count:
            faults.append("no request was ended at another scheduler than had it")
        self.request_count = len(streams)
        if plan.fault is Fault.KILL_LEADER_AND_NODE:
            streams, self.lost_count = without_the_lost(
                streams,
                struck=struck,
                at_s=at_s,
                decoding_elsewhere=[name for name, owner in decoding.items() if owner != node],
            )
        self.cost = cost_of(streams, at_s=at_s, struck=struck, new_leader_s=new_leader_s)
        faults += broken(streams, self._texts)
        faults += await self._blocks_left()
        cluster.check_alive()
        return faults

    async def _strike(self, name: str, node: str) -> None:
        """``node``: dies too, in the round where one does."""
        cluster, plan = self._cluster, self._plan
        match plan.fault:
            case Fault.KILL_LEADER | Fault.KILL_FOLLOWER:
                await cluster.kill(name)
            case Fault.KILL_LEADER_AND_NODE:
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(cluster.kill(name))
                    tasks.create_task(cluster.kill(node))
            case Fault.STOP_LEADER | Fault.FREEZE_LEADER:
                cluster.freeze(name, with_children=plan.fault is Fault.FREEZE_LEADER)
            case Fault.CUT_OFF_LEADER:
                cluster.cut_off(name)
            case Fault.RESTART_LEADER:
                await cluster.stop(name)

    async def _until_busy(self, load: Load) -> None:
        """Every long stream tells. Raises DrillStuckError."""
        wanted = STREAM_CLIENTS * len(SCHEDULERS)
        try:
            async with asyncio.timeout(BUSY_TIMEOUT_S):
                while len(load.running()) < wanted:
                    load.check()
                    await asyncio.sleep(POLL_S)
        except TimeoutError as error:
            raise DrillStuckError(
                f"{len(load.running())} of {wanted} streams run after {BUSY_TIMEOUT_S:g} s; see "
                f"{self._cluster.directory}/log"
            ) from error

    async def _finish(self, load: Load) -> list[str]:
        try:
            async with asyncio.timeout(FINISH_TIMEOUT_S):
                await load.finish()
        except TimeoutError:
            open_count = sum(stream.ended_s is None for stream in load.streams)
            return [f"{open_count} requests were not over {FINISH_TIMEOUT_S:g} s after the mending"]
        return []

    async def _blocks_left(self) -> Sequence[str]:
        held: dict[str, str] = {}
        try:
            async with asyncio.timeout(BLOCKS_TIMEOUT_S):
                while held := await self._cluster.blocks_held():  # noqa: ASYNC110 - nobody tells
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            return [
                f"blocks are not back at {node} after {BLOCKS_TIMEOUT_S:g} s: {why}"
                for node, why in held.items()
            ]
        return []


def _told(drill: _Round, faults: Sequence[str]) -> str:
    """A line of progress."""
    cost = drill.cost
    parts = [
        f"{name} {max(values):.0f} ms"
        for name, values in (
            ("new leader", cost.new_leader_ms),
            ("placed", cost.placed_ms),
            ("longest gap elsewhere", cost.others_gap_ms),
            ("its own clients went on after", cost.went_on_ms),
        )
        if values
    ]
    verdict = f"{len(faults)} PROMISES BROKEN" if faults else "every text whole"
    if drill.lost_count:
        verdict += f", {drill.lost_count} known to both dead ones only"
    return f"{', '.join(parts)}; {drill.request_count} requests, {verdict}"

"""What a routing decision costs: keys of the prompt, look-up, placement and its record.

The scheduler core, the directory and the prompt keys are those of the daemon; nothing is sent.
Counted is this thread's CPU time, so that what else runs on the machine matters little. Python's
collector is set as in the daemon.
"""

import gc
import random
import time
from dataclasses import dataclass

from pdd.core.identity import NodeIdentity, NodeName, RequestId, Role
from pdd.core.requests import GenerateRequest
from pdd.core.sampling import Sampling
from pdd.daemon import collector
from pdd.daemon.directory_feed import DirectoryFeed
from pdd.daemon.prompt_keys import PromptKeys
from pdd.directory import compiled_keys, entries
from pdd.directory.machine import DirectoryMachine
from pdd.scheduler.core import SchedulerCore
from pdd.scheduler.events import NodeJoined, RequestArrived, RequestCancelled
from pdd.scheduler.settings import EstimateSettings, SchedulerSettings

PROMPT_TOKENS = 2048
_SHARED_TOKENS = 1232  # 77 of 128 blocks, 60 %: held by one node of each role
_VOCABULARY_SIZE = 32_000
_BLOCK_TOKENS = 16
_BLOCK_COUNT = 65_536
_BLOCK_BYTES = 16_384  # of a small model: what is on its way counts, and fills no link
_RUNNING_MAX = 64
_PREFILL_TOKENS_PER_S = 40_000.0  # so that these do not wait for room
_INTERVAL_S = 2e-4
_FIRST_COUNT = 200  # not measured


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionCosts:
    """CPU time on one core of this machine."""

    decision_us_p50: float
    decision_us_p99: float
    decisions_per_s: int


def measure_decisions(*, node_count: int, decision_count: int, seed: int) -> DecisionCosts:
    """Half of the nodes prefill, half decode; 64 requests run at a time. ``decisions_per_s`` is
    of a core that does nothing else, their ends included."""
    rng = random.Random(seed)  # noqa: S311  # a benchmark's load, no secret
    feed = DirectoryFeed(machine=DirectoryMachine(max_key_count=100_000), clock=time.monotonic)
    estimates = EstimateSettings(prefill_tokens_per_s=_PREFILL_TOKENS_PER_S)
    core = SchedulerCore(SchedulerSettings(estimates=estimates), directory=feed)
    identities = [
        NodeIdentity(name=NodeName(f"node-{number}"), uuid=f"node-{number}", boot_epoch=1)
        for number in range(node_count)
    ]
    for number, identity in enumerate(identities):
        core.step(_joined(identity, number), now_s=0.0)
    keys = PromptKeys(model="bench", chain=compiled_keys.chain)
    keys.fit(block_size_tokens=_BLOCK_TOKENS, fingerprint={})
    shared = tuple(rng.choices(range(_VOCABULARY_SIZE), k=_SHARED_TOKENS))
    _hold(feed.machine, identities, keys.of(_request("shared", shared)))
    spent_us: list[float] = []
    all_ns = 0
    collects = gc.get_threshold()
    collector.settle()
    for number in range(_FIRST_COUNT + decision_count):
        own = rng.choices(range(_VOCABULARY_SIZE), k=PROMPT_TOKENS - _SHARED_TOKENS)
        request = _request(f"r{number}", (*shared, *own))
        now_s = 1.0 + number * _INTERVAL_S
        began_ns = time.thread_time_ns()
        core.step(RequestArrived(request=request, keys=keys.of(request)), now_s=now_s)
        decided_ns = time.thread_time_ns()
        if number >= _RUNNING_MAX:
            ended = RequestId(f"r{number - _RUNNING_MAX}")
            core.step(RequestCancelled(request_id=ended), now_s=now_s)
        if number >= _FIRST_COUNT:
            all_ns += time.thread_time_ns() - began_ns
            spent_us.append((decided_ns - began_ns) / 1e3)
    assert not core.queued_request_count, "a request that waits is no decision"
    gc.set_threshold(*collects)
    gc.unfreeze()
    spent_us.sort()
    return DecisionCosts(
        decision_us_p50=round(spent_us[len(spent_us) // 2], 1),
        decision_us_p99=round(spent_us[len(spent_us) * 99 // 100], 1),
        decisions_per_s=round(decision_count / all_ns * 1e9),
    )


def _joined(identity: NodeIdentity, number: int) -> NodeJoined:
    return NodeJoined(
        identity=identity,
        role=Role.DECODE if number % 2 else Role.PREFILL,
        address=f"{identity.name}:1",
        block_count=_BLOCK_COUNT,
        block_size=_BLOCK_TOKENS,
        block_bytes=_BLOCK_BYTES,
        max_model_len=8192,
        max_num_seqs=1024,
    )


def _request(request_id: str, tokens: tuple[int, ...]) -> GenerateRequest:
    return GenerateRequest(
        request_id=RequestId(request_id),
        prompt_token_ids=tokens,
        sampling=Sampling(max_tokens=128),
        priority=0,
        deadline_s=600.0,
    )


def _hold(machine: DirectoryMachine, identities: list[NodeIdentity], keys: bytes) -> None:
    """All nodes are known; the first of each role holds these blocks."""
    operations: list[entries.Operation] = [
        entries.NodeJoined(
            node=identity.name, uuid=identity.uuid, boot_epoch=1, block_count=_BLOCK_COUNT
        )
        for identity in identities
    ]
    operations += [
        entries.BlockDelta(
            node=identity.name, boot_epoch=1, first_sequence=1, last_sequence=1, stored=keys
        )
        for identity in identities[:2]
    ]
    entry = entries.DirectoryEntry(operations=tuple(operations))
    machine.apply(1, entry.encode())

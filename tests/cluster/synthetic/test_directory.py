"""The scheduler's index against what real engines' caches hold, under load that evicts."""

import asyncio
import random
import time
from typing import Any

import xxhash

from pdd.control.node_session import NodeSession
from pdd.core.identity import NodeName
from pdd.core.requests import DEFAULT_TENANT
from pdd.daemon.cache_feed import CacheFeed
from pdd.daemon.directory_feed import DirectoryFeed
from pdd.daemon.prompt_keys import PromptKeys, prefix_salt
from pdd.directory.machine import DirectoryMachine
from pdd.rpc.v1 import cluster_pb2
from tests.builders import make_request
from tests.cluster.synthetic.pair import Node, disaggregated, local, make_job, nodes, settings
from tests.waiting import until

MODEL = "synthetic"
BLOCK = 16
TRUTH_S = 2.0
"""So far behind its nodes an index may be."""


class Wire:
    """A stream to the scheduler without gRPC: everything arrives a loop turn later."""

    def __init__(self, node: Node, directory: DirectoryFeed) -> None:
        assert node.info is not None
        hello = cluster_pb2.Hello(protocol_version=3, block_count=node.info.block_count)
        self.session = NodeSession(node.identity, hello)
        self.directory = directory
        self.cache = CacheFeed(
            engine=node.engine, info=node.info, identity=node.identity, model=MODEL
        )
        directory.attached(self.session)
        self.cache.attached(self)  # type: ignore[arg-type]

    def send(self, message: cluster_pb2.NodeMessage) -> None:
        asyncio.get_running_loop().call_soon(self.directory.said, self.session, message)


def engine_hashes(tokens: list[int], salt: str) -> list[bytes]:
    """As the synthetic engine chains them."""
    before, hashes = b"salt " + salt.encode(), []
    for start in range(0, len(tokens) - BLOCK + 1, BLOCK):
        packed = b"".join(token.to_bytes(4, "little") for token in tokens[start : start + BLOCK])
        before = xxhash.xxh3_128_digest(before + packed)
        hashes.append(before)
    return hashes


async def test_the_index_is_what_the_engines_hold_two_seconds_after_any_load() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    small = settings(block_count=65)
    async with nodes(small, settings(block_count=97), small) as cluster:
        directory = DirectoryFeed(
            machine=DirectoryMachine(max_key_count=10_000), clock=time.monotonic
        )
        wires = [Wire(node, directory) for node in cluster]
        tasks = [asyncio.create_task(wire.cache.run()) for wire in wires]
        tasks.append(asyncio.create_task(directory.run()))
        prefill, decode, alone = cluster
        families = [[rng.randrange(200) for _ in range(300)] for _ in range(3)]
        asked: dict[tuple[tuple[int, ...], str], None] = {}
        keys: list[str] = []
        evictions = 0
        for _ in range(6):
            async with asyncio.TaskGroup() as group:
                for _ in range(8):
                    prompt = rng.choice(families)[: rng.randint(20, 300)]
                    salt = rng.choice([DEFAULT_TENANT, "a"])
                    asked[tuple(prompt), salt] = None
                    job = make_job(
                        prompt,
                        key=f"r{len(keys)}/0",
                        max_tokens=rng.randint(1, 40),
                        cache_salt=engine_salt(salt),
                    )
                    keys.append(job.key)
                    if rng.random() < 0.5:
                        group.create_task(disaggregated(prefill, decode, job))
                    else:
                        group.create_task(local(rng.choice([decode, alone]), job))
            await until(
                lambda: not differences(cluster, directory, asked),
                lambda: f"the truth; it differs in {differences(cluster, directory, asked)}",
                within_s=TRUTH_S,
            )
            evictions = sum(int(node.engine.counters()["evicted_blocks"]) for node in cluster)
        assert evictions > 0, "the load evicted nothing"
        assert directory.asked_snapshot_count == 0
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


def engine_salt(tenant: str) -> str:
    return prefix_salt(make_request(tenant=tenant))


def differences(
    cluster: list[Node], directory: DirectoryFeed, asked: dict[tuple[tuple[int, ...], str], None]
) -> list[Any]:
    found: list[Any] = []
    for node in cluster:
        assert node.info is not None
        prompt_keys = PromptKeys(model=MODEL)
        prompt_keys.fit(block_size_tokens=BLOCK, fingerprint=node.info.fingerprint)
        ledger = node.engine.batch.ledger
        held = directory.machine.held_count(node.name)
        if held != len(ledger.cached_hashes()):
            found.append((node.name, held, len(ledger.cached_hashes())))
        for tokens, salt in asked:
            request = make_request(prompt_token_ids=tokens, tenant=salt)
            name = NodeName(node.name)
            told = directory.is_known(name) and directory.matches(prompt_keys.of(request)).get(
                name, 0
            )
            true = len(ledger.find(engine_hashes(list(tokens), engine_salt(salt))))
            if told != true:
                found.append((node.name, len(tokens), salt, told, true))
    return found

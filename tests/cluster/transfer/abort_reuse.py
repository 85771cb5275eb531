"""Run by ``test_abort_reuse.py`` in a process of its own, since UCX reads its environment once.

Two engines over real UCX. Transfers are given up at random moments, by either side or by a
deadline, and the target's blocks are written by somebody else the moment the terminal event is
there. A late write would change what that somebody wrote, and is looked for in every round.

Arguments: seed, rounds, and ``direct``, ``staged`` or ``shared``, each also without digests
(``shared-plain``). Prints one JSON line.
"""

import json
import random
import sys
import threading
import time
from collections import Counter

import numpy as np

from pdd.core.identity import NodeIdentity
from pdd.transfer.engine import TransferEngine
from pdd.transfer.pool import BlockPool, Region
from pdd.transfer.settings import TransferFaults, TransferSettings
from pdd.transfer.values import Peer, SourceReleased, TargetCompleted

BLOCK_COUNT = 48
LAYERS = 4


class Node:
    def __init__(self, name, *, direct, settings):
        self.identity = NodeIdentity(name=name, uuid=f"{name}-uuid", boot_epoch=1)
        self.pool = make_pool(direct)
        self.happened = threading.Event()
        self.engine = TransferEngine(
            pool=self.pool,
            identity=self.identity,
            rank=0,
            settings=settings,
            send_control=self.send_control,
            on_event=self.happened.set,
        )
        self.others = {}
        self.address = self.engine.start()

    @property
    def peer(self):
        return Peer(
            identity=self.identity,
            rank=0,
            control_address=self.identity.name,
            ucx_address=self.address,
        )

    def send_control(self, peer, payload):
        self.others[peer.control_address].engine.deliver_control(self.peer, payload)

    def bytes_of(self, block_id):
        return b"".join(
            self.pool.memory[offset : offset + size].tobytes()
            for offset, size in self.pool.segments(block_id)
        )

    def fill(self, block_id, value):
        for offset, size in self.pool.segments(block_id):
            self.pool.memory[offset : offset + size] = value


def make_pool(direct):
    segment = 300_000 if direct else 20_000
    layers = 1 if direct else LAYERS
    memory = np.zeros(BLOCK_COUNT * layers * segment, np.uint8)
    region = Region(
        offset=0,
        layer_count=layers,
        layer_stride=BLOCK_COUNT * segment,
        block_stride=segment,
        segment_bytes=segment,
    )
    return BlockPool(memory, regions=[region], block_count=BLOCK_COUNT)


class Soak:
    def __init__(self, seed, landing):
        self.random = random.Random(seed)
        lane, _, plain = landing.partition("-")
        direct = lane == "direct"
        settings = TransferSettings(
            digest=not plain,
            shared_memory=lane == "shared",
            shared_slots=3,  # so that one which comes back is soon in use again
            chunk_bytes=200_000,
            window_chunks=4,
            grant_repeat_s=0.05,
            quiesce_timeout_s=0.05,
            resume_grace_s=0.5,
            faults=TransferFaults(delay_s=0.0),
        )
        self.source = Node("prefill", direct=direct, settings=settings)
        self.target = Node("decode", direct=direct, settings=settings)
        self.source.others["decode"] = self.target
        self.target.others["prefill"] = self.source
        rng = np.random.default_rng(seed)
        self.source.pool.memory[:] = rng.integers(0, 250, self.source.pool.size_bytes, np.uint8)
        self.free = list(range(BLOCK_COUNT))
        self.foreign = {}  # target block -> the value that its new owner has written everywhere
        self.open = {}  # key -> (source ids, target ids)
        self.source_open = set()
        self.outcomes = Counter()
        self.late_writes = 0
        self.wrong_bytes = 0
        self.key_count = 0

    def start_one(self):
        count = self.random.randint(1, 8)
        if len(self.free) < count:
            return
        self.random.shuffle(self.free)
        target_ids = [self.free.pop() for _ in range(count)]
        self.check_foreign(target_ids)
        source_ids = self.random.sample(range(BLOCK_COUNT), count)
        key = f"k{self.key_count}"
        self.key_count += 1
        self.open[key] = (source_ids, target_ids)
        self.source_open.add(key)
        deadline_s = self.random.choice([0.002, 0.01, 5.0, 5.0, 5.0, 5.0])
        self.source.engine.source_open(key, deadline_s=5.0)
        self.target.engine.target_open(
            key,
            source=self.source.peer,
            first_index=0,
            block_ids=target_ids,
            deadline_s=deadline_s,
        )
        cut = self.random.randint(0, count)
        self.source.engine.source_append(key, first_index=0, block_ids=source_ids[:cut], last=False)
        self.source.engine.source_append(
            key, first_index=cut, block_ids=source_ids[cut:], last=True
        )

    def check_foreign(self, block_ids):
        """These blocks change hands again: what their last owner wrote must still be there."""
        for block_id in block_ids:
            value = self.foreign.pop(block_id, None)
            if value is not None and set(self.target.bytes_of(block_id)) != {value}:
                self.late_writes += 1

    def give_up_some(self):
        for key in list(self.open):
            chance = self.random.random()
            if chance < 0.25:
                self.target.engine.target_cancel(key)
            elif chance < 0.3:
                self.source.engine.source_abort(key, "test")
            elif chance < 0.31:
                self.target.engine.disconnect(self.source.peer)
            elif chance < 0.32:
                self.source.engine.disconnect(self.target.peer)

    def collect(self):
        for event in self.target.engine.poll():
            source_ids, target_ids = self.open.pop(event.key)
            if isinstance(event, TargetCompleted):
                for source_id, target_id in zip(source_ids, target_ids, strict=True):
                    if self.source.bytes_of(source_id) != self.target.bytes_of(target_id):
                        self.wrong_bytes += 1
            self.outcomes[type(event).__name__] += 1
            for block_id in target_ids:  # reused at once
                value = self.random.randint(251, 255)
                self.target.fill(block_id, value)
                self.foreign[block_id] = value
                self.free.append(block_id)
        for event in self.source.engine.poll():
            assert isinstance(event, SourceReleased)
            self.source_open.remove(event.key)
            self.outcomes[f"released_{event.reason}"] += 1

    def run(self, rounds):
        for _ in range(rounds):
            self.start_one()
            if self.random.random() < 0.5:
                self.target.happened.wait(self.random.random() * 0.004)
            self.give_up_some()
            self.collect()
            self.target.happened.clear()
        end_s = time.monotonic() + 20
        while (self.open or self.source_open) and time.monotonic() < end_s:
            self.target.happened.wait(0.02)
            self.target.happened.clear()
            self.collect()
        self.check_foreign(list(self.foreign))


def main():
    seed, rounds, landing = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    soak = Soak(seed, landing)
    soak.run(rounds)
    result = {
        "seed": seed,
        "keys": soak.key_count,
        "outcomes": dict(soak.outcomes),
        "late_writes": soak.late_writes,
        "wrong_bytes": soak.wrong_bytes,
        "never_ended": sorted([*soak.open, *soak.source_open]),
        "target": soak.target.engine.stats(),
        "source": soak.source.engine.stats(),
    }
    soak.source.engine.close()
    soak.target.engine.close()
    print(json.dumps(result))


if __name__ == "__main__":
    main()

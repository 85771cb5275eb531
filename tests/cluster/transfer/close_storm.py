"""Run by ``test_close_storm.py``: engines that connect to each other and die, again and again.

A peer that dies while it is being connected to has made UCX read freed memory; the process of this
script would not survive that. Arguments: seed, rounds.
"""

import gc
import random
import sys
import time

import abort_reuse

from pdd.transfer.settings import TransferSettings


def main():
    seed, rounds = int(sys.argv[1]), int(sys.argv[2])
    order = random.Random(seed)
    gc.disable()  # collected at moments of our choosing, for endpoints must not depend on it
    for _ in range(rounds):
        direct = order.random() < 0.5
        settings = TransferSettings(chunk_bytes=300_000)
        nodes = [abort_reuse.Node(name, direct=direct, settings=settings) for name in ("s", "t")]
        source, target = nodes
        source.others["t"], target.others["s"] = target, source
        for number in range(3):
            key = f"k{number}"
            blocks = list(range(number * 5, number * 5 + 5))
            source.engine.source_open(key, deadline_s=20.0)
            target.engine.target_open(
                key, source=source.peer, first_index=0, block_ids=blocks, deadline_s=20.0
            )
            source.engine.source_append(key, first_index=0, block_ids=blocks, last=True)
        time.sleep(order.random() * 0.03)  # the moment of death is the point of this test
        if order.random() < 0.3:
            target.engine.disconnect(source.peer)
        order.shuffle(nodes)
        for node in nodes:
            node.engine.close()
            if order.random() < 0.3:
                gc.collect()
    print("survived")


if __name__ == "__main__":
    main()

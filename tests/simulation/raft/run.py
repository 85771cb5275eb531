"""Play seeds by hand: ``python -m tests.simulation.raft.run 17`` or ``... run 0:5000``.

One seed prints its trace; a range prints what failed, and a summary. With ``--digest`` before a
range, one line per seed that two processes must agree on.
"""

from __future__ import annotations

import sys
from collections import Counter

from tests.simulation.raft.checker import Violation
from tests.simulation.raft.world import World


def main(argument: str, *, with_digests: bool = False) -> int:
    if ":" not in argument:
        world = World(int(argument))
        try:
            world.run()
        finally:
            print("\n".join(world.trace))
            print(f"digest {world.digest}")
        return 0
    first, last = argument.split(":")
    if with_digests:
        for seed in range(int(first), int(last)):
            print(seed, World(seed).run().digest)
        return 0
    failed = 0
    totals: Counter[str] = Counter()
    for seed in range(int(first), int(last)):
        world = World(seed)
        try:
            world.run()
        except Violation as violation:
            failed += 1
            print(f"seed {seed}: {violation}\n", flush=True)
        totals.update(world.counts)
        totals["checks"] += world.checker.check_count
        totals["operations"] += len(world.clients.history)
    print(f"{failed} failed; {dict(sorted(totals.items()))}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[-1], with_digests="--digest" in sys.argv))

"""What is remembered of where prefixes went: found again by every length, and bounded."""

import random

import pytest

from pdd.core.identity import Role
from pdd.scheduler.nodes import Node
from pdd.scheduler.prefixes import KEY_SIZE_BYTES, Chain, Homes, NoDirectory
from tests.builders import make_identity


def chain_of(seed: str, block_count: int) -> Chain:
    return Chain(random.Random(seed).randbytes(block_count * KEY_SIZE_BYTES))


def node() -> Node:
    return Node(
        identity=make_identity("prefill-0"),
        role=Role.PREFILL,
        home_role=Role.PREFILL,
        address="prefill-0:1",
        block_count=1000,
        block_size=16,
        max_model_len=8192,
        max_num_seqs=8,
        seen_s=0.0,
    )


def known_blocks(homes: Homes, chain: Chain, prefill: Node) -> int:
    known = homes.prefix(
        chain,
        homes.trail(chain),
        role=Role.PREFILL,
        nodes={prefill.name: prefill},
        directory=NoDirectory(),
        now_s=1.0,
    )
    return 0 if known is None else known.block_count


@pytest.mark.parametrize("block_count", [1, 7, 8, 9, 15, 16, 17, 40, 45])
def test_a_longer_prompt_finds_the_end_of_a_shorter_one(block_count: int) -> None:
    homes, prefill = Homes(entry_count_max=100), node()
    longer = chain_of("one", 60)
    shorter = Chain(longer.keys[: block_count * KEY_SIZE_BYTES])
    homes.remember(shorter, caller=b"", prefill=prefill, decode=None, now_s=0.0)
    assert known_blocks(homes, longer, prefill) == block_count
    homes.evict(prefill.name, Role.PREFILL, shorter.keys)
    assert known_blocks(homes, longer, prefill) == 0
    homes.remember(shorter, caller=b"", prefill=prefill, decode=None, now_s=0.0)
    assert known_blocks(homes, longer, prefill) == block_count


def test_what_is_remembered_is_bounded_however_many_chains_end_anywhere() -> None:
    homes, prefill = Homes(entry_count_max=50), node()
    for number in range(500):
        chain = chain_of(str(number), 1 + number % 23)
        homes.remember(chain, caller=b"", prefill=prefill, decode=None, now_s=0.0)
    assert len(homes) == 50
    assert len(homes._has_ends) <= len(homes) + 1

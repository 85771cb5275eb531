"""A node's mirror of its engine's cache, and the fold of its events."""

import pytest

from pdd.directory.entries import MESSAGE_KEY_COUNT_MAX
from pdd.directory.keys import ChainScope, block_keys, split_keys
from pdd.directory.mirror import NodeMirror

SCOPE = ChainScope(block_size_tokens=2, model="m", kv_layout="l")


def make_mirror(*, block_count: int = 100) -> NodeMirror:
    return NodeMirror(node="n", boot_epoch=1, block_count=block_count)


def chain(block_count: int) -> list[bytes]:
    keys = block_keys(SCOPE.root(), range(2 * block_count), block_size_tokens=2)
    return list(split_keys(keys))


def store(mirror: NodeMirror, hashes: list[str], *, at: int = 0, parent: str | None = None) -> None:
    tokens = range(2 * at, 2 * (at + len(hashes)))
    mirror.stored(hashes, parent=parent, token_ids=tokens, scope=SCOPE)


def test_blocks_get_the_keys_that_a_gateway_computes_from_the_prompt() -> None:
    mirror = make_mirror()
    store(mirror, ["e0", "e1"])
    store(mirror, ["e2"], at=2, parent="e1")
    delta = mirror.take_delta()
    assert delta is not None
    assert (delta.first_sequence, delta.last_sequence) == (1, 1)
    assert split_keys(delta.stored) == chain(3)
    assert mirror.take_delta() is None


def test_the_last_event_about_a_block_is_what_the_delta_says() -> None:
    mirror = make_mirror()
    store(mirror, ["e0", "e1"])
    mirror.take_delta()
    mirror.removed(["e1", "e0"])
    store(mirror, ["e0"])
    delta = mirror.take_delta()
    assert delta is not None
    assert (split_keys(delta.removed), split_keys(delta.stored)) == ([chain(2)[1]], [chain(2)[0]])
    assert delta.first_sequence == 2


def test_a_block_with_copies_is_gone_with_its_last_one() -> None:
    mirror = make_mirror()
    for _ in range(3):
        store(mirror, ["e0"])
    mirror.take_delta()
    mirror.removed(["e0", "e0"])
    assert mirror.take_delta() is None
    mirror.removed(["e0"])
    delta = mirror.take_delta()
    assert delta is not None
    assert split_keys(delta.removed) == chain(1)
    assert len(mirror) == 0


def test_a_block_behind_an_unknown_parent_is_left_out_and_counted() -> None:
    mirror = make_mirror()
    store(mirror, ["e5", "e6"], at=5, parent="lost")
    mirror.removed(["e5"])
    assert (mirror.orphan_count, mirror.take_delta(), len(mirror)) == (2, None, 0)


def test_a_clear_wipes_what_was_said_before_it() -> None:
    mirror = make_mirror()
    store(mirror, ["e0", "e1"])
    mirror.cleared()
    store(mirror, ["e0"])
    delta = mirror.take_delta()
    assert delta is not None
    assert (delta.is_cleared, delta.removed, split_keys(delta.stored)) == (True, b"", chain(1))


def test_a_snapshot_says_everything_and_the_next_delta_follows_on_it() -> None:
    mirror = make_mirror()
    store(mirror, ["e0", "e1"])
    mirror.take_delta()
    mirror.removed(["e1"])
    [part] = mirror.snapshot_parts()
    assert (part.as_of_sequence, split_keys(part.keys)) == (1, chain(1))
    store(mirror, ["e1"], at=1, parent="e0")
    delta = mirror.take_delta()
    assert delta is not None
    assert delta.first_sequence == 2


def test_an_empty_cache_has_a_snapshot_of_one_empty_part() -> None:
    [part] = make_mirror().snapshot_parts()
    assert (part.part_count, part.keys) == (1, b"")


def test_a_large_snapshot_comes_in_parts() -> None:
    mirror = make_mirror()
    count = MESSAGE_KEY_COUNT_MAX + 1
    store(mirror, [f"e{number}" for number in range(count)])
    parts = mirror.snapshot_parts()
    assert [(part.part_index, part.part_count) for part in parts] == [(0, 2), (1, 2)]
    assert len(parts[0].keys + parts[1].keys) == 16 * count


def test_more_blocks_than_the_pool_has_cannot_be_repaired() -> None:
    mirror = make_mirror(block_count=2)
    store(mirror, ["e0", "e1"])
    assert not mirror.is_beyond_repair
    store(mirror, ["e0"])
    assert mirror.is_beyond_repair


def test_token_ids_that_do_not_fit_the_blocks_are_refused_with_both_counts() -> None:
    with pytest.raises(ValueError, match="2 stored blocks of 2 tokens came with 3 token ids"):
        make_mirror().stored(["a", "b"], parent=None, token_ids=[1, 2, 3], scope=SCOPE)

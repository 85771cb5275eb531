"""What each operation does, what a snapshot holds, and what it leaves out."""

import random

import msgpack
import pytest

from pdd.cell.codec import CODEC, decode_result, encode_operations
from pdd.cell.followed import FollowedDirectory
from pdd.cell.machine import CellMachine, SnapshotError
from pdd.cell.operations import (
    Cordoned,
    MemberLeft,
    Operation,
    OverrideRemoved,
    OverrideSet,
    QuotaRemoved,
    QuotaSet,
    RoleSet,
    Status,
    Uncordoned,
)
from pdd.cell.state import CORDONS_MAX, Cordon, Override, Quota
from pdd.directory.entries import BlockDelta, DirectoryEntry, SequenceStarted
from pdd.directory.machine import DirectoryMachine
from tests.unit.cell.samples import joined


class Log:
    """Applies entries under growing indices."""

    def __init__(self, machine: CellMachine | None = None) -> None:
        self.machine = machine or CellMachine()
        self.index = 0

    def say(self, *operations: Operation) -> tuple[Status, ...]:
        self.index += 1
        applied = decode_result(self.machine.apply(self.index, encode_operations(*operations)))
        assert applied.index == self.index
        return applied.statuses

    def say_soft(self, *operations: object) -> bytes:
        self.index += 1
        entry = DirectoryEntry(leader_time_ms=1, operations=operations)  # type: ignore[arg-type]
        return self.machine.apply(self.index, CODEC.encode_soft(entry.encode()))


def cordoned(message: str = "", *, is_drain: bool = False, at_ms: int = 1) -> Cordoned:
    return Cordoned(node="decode-0", message=message, is_drain=is_drain, at_ms=at_ms)


def delta(sequence: int, stored: bytes, node: str = "decode-0") -> BlockDelta:
    return BlockDelta(
        node=node, boot_epoch=1, first_sequence=sequence, last_sequence=sequence, stored=stored
    )


def following() -> tuple[Log, FollowedDirectory]:
    followed = FollowedDirectory(lambda: DirectoryMachine(max_key_count=100_000))
    return Log(CellMachine(soft=followed)), followed


def test_a_former_life_is_refused_and_a_later_one_takes_over() -> None:
    log = Log()
    assert log.say(joined(boot_epoch=2)) == (Status.APPLIED,)
    assert log.say(joined(boot_epoch=1)) == (Status.STALE,)
    assert log.say(joined(boot_epoch=2)) == (Status.DUPLICATE,)
    assert log.say(joined(boot_epoch=3)) == (Status.APPLIED,)
    assert log.machine.state.members["decode-0"].boot_epoch == 3


def test_another_node_under_the_same_name_begins_anew() -> None:
    log = Log()
    log.say(joined(uuid="old", boot_epoch=9))
    assert log.say(joined(uuid="new", boot_epoch=1)) == (Status.APPLIED,)
    assert log.machine.state.members["decode-0"].uuid == "new"


def test_only_the_life_that_is_there_can_leave() -> None:
    log = Log()
    log.say(joined(boot_epoch=2))
    left = MemberLeft(node="decode-0", uuid="u-1", boot_epoch=1)
    assert log.say(left) == (Status.STALE,)
    assert log.say(MemberLeft(node="decode-0", uuid="u-1", boot_epoch=2)) == (Status.APPLIED,)
    assert log.say(left) == (Status.UNKNOWN,)


def test_a_cordon_becomes_a_drain_and_a_drain_stays_one() -> None:
    log = Log()
    assert log.say(cordoned("swap NIC", at_ms=1)) == (Status.APPLIED,)
    assert log.say(cordoned(is_drain=True, at_ms=5)) == (Status.APPLIED,)
    assert log.say(cordoned(at_ms=9)) == (Status.DUPLICATE,)
    held = log.machine.state.cordons["decode-0"]
    assert held == Cordon(message="swap NIC", is_drain=True, since_ms=5)
    assert log.say(Uncordoned(node="decode-0")) == (Status.APPLIED,)
    assert log.say(Uncordoned(node="decode-0")) == (Status.DUPLICATE,)


def test_a_cordon_outlives_the_member() -> None:
    log = Log()
    log.say(joined(), cordoned())
    log.say(MemberLeft(node="decode-0", uuid="u-1", boot_epoch=1))
    assert "decode-0" in log.machine.state.cordons


def test_overrides_and_quotas_are_set_changed_and_removed() -> None:
    log = Log()
    quota = QuotaSet(tenant="acme", running_requests_max=8, tokens_per_minute_max=None)
    first, second = OverrideSet(key="a.b", value="1"), OverrideSet(key="a.b", value="2")
    assert log.say(first, second, quota) == (Status.APPLIED,) * 3
    assert log.machine.state.overrides["a.b"] == Override(value="2")
    assert log.machine.state.quotas["acme"] == Quota(
        running_requests_max=8, tokens_per_minute_max=None
    )
    removed = log.say(OverrideRemoved(key="a.b"), QuotaRemoved(tenant="acme"))
    assert removed == (Status.APPLIED, Status.APPLIED)
    assert log.machine.state_hash() == CellMachine().state_hash()


def test_a_full_table_takes_no_new_name_and_still_changes_known_ones() -> None:
    log = Log()
    for start in range(0, CORDONS_MAX, 4096):
        log.say(
            *(
                Cordoned(node=f"n-{number}", message="", is_drain=False, at_ms=1)
                for number in range(start, start + 4096)
            )
        )
    assert len(log.machine.state.cordons) == CORDONS_MAX
    assert log.say(cordoned()) == (Status.FULL,)
    change = Cordoned(node="n-0", message="", is_drain=True, at_ms=2)
    assert log.say(change) == (Status.APPLIED,)


def test_a_refused_entry_changes_nothing() -> None:
    log = Log()
    before = log.machine.state_hash()
    log.machine.apply(1, b"\xc1")
    assert log.machine.state_hash() == before


def test_a_snapshot_carries_everything_hard() -> None:
    log = Log()
    log.say(joined(), cordoned("why"), OverrideSet(key="a.b", value="1"))
    log.say(QuotaSet(tenant="acme", running_requests_max=None, tokens_per_minute_max=5))
    restored = CellMachine()
    restored.restore(log.machine.snapshot())
    assert restored.state_hash() == log.machine.state_hash()
    assert restored.snapshot() == log.machine.snapshot()
    assert restored.index == log.index == 2


def test_a_snapshot_with_a_role_is_none_for_a_release_that_has_no_roles() -> None:
    log = Log()
    log.say(joined())
    assert msgpack.unpackb(log.machine.snapshot())[0] == 1
    log.say(RoleSet(node="decode-0", role="prefill", is_by_hand=True, message="", at_ms=7))
    assert msgpack.unpackb(log.machine.snapshot())[0] == 2
    restored = CellMachine()
    restored.restore(log.machine.snapshot())
    assert restored.state_hash() == log.machine.state_hash()


@pytest.mark.parametrize(
    ("data", "why"),
    [(b"\xc1", "no snapshot"), (msgpack.packb([3, 1, []]), "version 3; this release reads 1 to 2")],
)
def test_a_snapshot_that_cannot_be_read_changes_nothing(data: bytes, why: str) -> None:
    log = Log()
    log.say(joined())
    with pytest.raises(SnapshotError, match=why):
        log.machine.restore(data)
    assert "decode-0" in log.machine.state.members


def test_a_hundred_thousand_blocks_add_nothing_to_a_snapshot() -> None:
    rng = random.Random(1)
    log, followed = following()
    log.say(joined())
    before, hashed = len(log.machine.snapshot()), log.machine.state_hash()
    for sequence in range(1, 11):
        assert log.say_soft(delta(sequence, rng.randbytes(16 * 10_000))) == b""
    started = SequenceStarted(
        request_id="r-1",
        ticket="t",
        prefill=None,
        decode=("decode-0", 1),
        rank_blocks=(tuple(range(500)),) * 4,
    )
    assert log.say_soft(started) == b""
    assert followed.directory.key_count > 90_000
    assert followed.directory.locate("r-1") is not None
    assert len(log.machine.snapshot()) == before
    assert log.machine.state_hash() == hashed


def test_whoever_keeps_no_blocks_answers_as_whoever_does() -> None:
    log, _ = following()
    plain = Log()
    for one in (log, plain):
        one.say(joined())
    soft = delta(1, b"k" * 16), delta(7, b"k" * 16, node="not-there")
    assert log.say_soft(*soft) == plain.say_soft(*soft) == b""
    assert log.machine.state_hash() == plain.machine.state_hash()


def test_after_a_snapshot_every_members_blocks_are_asked_for() -> None:
    log, followed = following()
    log.say(joined("decode-0"), joined("decode-1", uuid="u-2"))
    log.say_soft(delta(1, b"k" * 16))
    assert followed.directory.holders(b"k" * 16) == ("decode-0",)  # type: ignore[arg-type]
    assert followed.directory.nodes_wanting_snapshot() == []
    log.machine.restore(log.machine.snapshot())
    assert followed.directory.holders(b"k" * 16) == ()  # type: ignore[arg-type]
    assert followed.directory.nodes_wanting_snapshot() == ["decode-0", "decode-1"]


def test_a_members_end_takes_its_blocks_along() -> None:
    log, followed = following()
    log.say(joined())
    log.say_soft(delta(1, b"k" * 16))
    log.say(MemberLeft(node="decode-0", uuid="u-1", boot_epoch=1))
    assert followed.directory.holders(b"k" * 16) == ()  # type: ignore[arg-type]


def test_a_new_life_begins_without_blocks() -> None:
    log, followed = following()
    log.say(joined())
    log.say_soft(delta(1, b"k" * 16))
    log.say(joined(boot_epoch=2))
    assert followed.directory.holders(b"k" * 16) == ()  # type: ignore[arg-type]
    assert followed.directory.nodes_wanting_snapshot() == []

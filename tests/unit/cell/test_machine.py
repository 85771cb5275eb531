"""What each operation does, what a snapshot holds, and what it leaves out."""

import msgpack
import pytest

from pdd.cell.codec import decode_result, encode_operations
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
from pdd.cell.sequences import SequenceTable, SoftOperation, encode_rows
from pdd.cell.state import CORDONS_MAX, Cordon, Override, Quota
from tests.unit.cell.samples import held, joined


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

    def say_soft(self, *operations: SoftOperation) -> bytes:
        self.index += 1
        return self.machine.apply(self.index, encode_rows(operations))


def cordoned(message: str = "", *, is_drain: bool = False, at_ms: int = 1) -> Cordoned:
    return Cordoned(node="decode-0", message=message, is_drain=is_drain, at_ms=at_ms)


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


def test_a_hundred_thousand_requests_add_nothing_to_a_snapshot() -> None:
    table = SequenceTable(running_max=200_000)
    log = Log(CellMachine(soft=table))
    log.say(joined())
    before, hashed = len(log.machine.snapshot()), log.machine.state_hash()
    for number in range(0, 100_000, 1000):
        assert log.say_soft(*(held(f"r-{number + one}") for one in range(1000))) == b""
    assert table.running_count == 100_000
    assert len(log.machine.snapshot()) == before
    assert log.machine.state_hash() == hashed


def test_whoever_keeps_no_rows_answers_as_whoever_does() -> None:
    log, plain = Log(CellMachine(soft=SequenceTable())), Log()
    for one in (log, plain):
        one.say(joined())
    assert log.say_soft(held("r-1")) == plain.say_soft(held("r-1")) == b""
    assert log.machine.state_hash() == plain.machine.state_hash()


def test_after_a_snapshot_rows_are_asked_for_and_kept_meanwhile() -> None:
    table = SequenceTable()
    log = Log(CellMachine(soft=table))
    log.say_soft(held("r-1"))
    table.has_gap = False
    log.machine.restore(log.machine.snapshot())
    assert table.has_gap
    assert table.get("r-1") is not None

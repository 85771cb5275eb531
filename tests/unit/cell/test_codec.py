"""Entries to and from bytes, and how this release reads the one before."""

from dataclasses import dataclass

import msgpack
import pytest

from pdd.cell.codec import (
    CODEC,
    KINDS,
    Codec,
    EntryError,
    FieldRule,
    HardEntry,
    KindRule,
    SoftEntry,
    decode_result,
    encode_operations,
    encode_result,
    kind,
    text,
)
from pdd.cell.operations import (
    Cordoned,
    OverrideSet,
    QuotaSet,
    RoleReleased,
    RoleSet,
    Status,
    Uncordoned,
)
from tests.unit.cell.samples import EVERY_OPERATION


@dataclass(frozen=True, slots=True, kw_only=True)
class Cordoned2:
    """The next release's: it says who did it."""

    node: str
    message: str
    is_drain: bool
    at_ms: int
    who: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Renamed:
    """A kind that the next release adds."""

    node: str


NEXT = Codec(
    {
        **KINDS,
        3: KindRule(
            made=Cordoned2,
            fields=(
                *KINDS[3].fields,
                FieldRule(name="who", check=text, since=3, absent="unknown"),
            ),
        ),
        99: kind(Renamed, since=3, node=text),
    },
    version=3,
)
BEFORE_ROLES = Codec({number: rule for number, rule in KINDS.items() if rule.since == 1}, version=1)
OLD_CORDON = Cordoned(node="decode-0", message="", is_drain=True, at_ms=7)
NEW_CORDON = Cordoned2(node="decode-0", message="", is_drain=True, at_ms=7, who="ops")


@pytest.mark.parametrize("operation", EVERY_OPERATION, ids=lambda one: type(one).__name__)
def test_every_operation_comes_back_as_it_was(operation: object) -> None:
    assert CODEC.decode(CODEC.encode([operation])) == HardEntry(operations=(operation,))


def test_every_kind_has_a_sample() -> None:
    assert {type(one) for one in EVERY_OPERATION} == {rule.made for rule in KINDS.values()}


def test_a_soft_entry_is_not_looked_into() -> None:
    assert CODEC.decode(CODEC.encode_soft(b"anything")) == SoftEntry(data=b"anything")


def test_a_release_reads_the_entries_of_the_one_before() -> None:
    written = CODEC.encode([OLD_CORDON], version=2)
    (read,) = NEXT.decode(written).operations  # type: ignore[union-attr]
    assert read == Cordoned2(node="decode-0", message="", is_drain=True, at_ms=7, who="unknown")


def test_a_release_writes_what_the_one_before_reads_as_far_as_that_says_it() -> None:
    assert CODEC.decode(NEXT.encode([NEW_CORDON], version=2)) == HardEntry(operations=(OLD_CORDON,))
    plain = Cordoned2(node="decode-0", message="", is_drain=True, at_ms=7, who="unknown")
    assert CODEC.decode(NEXT.encode([plain])) == HardEntry(operations=(OLD_CORDON,))
    assert CODEC.decode(NEXT.encode_soft(b"blocks")) == SoftEntry(data=b"blocks")


def test_what_the_older_release_cannot_be_told_is_refused_by_name() -> None:
    with pytest.raises(EntryError, match=r"Renamed needs entries of version 3.*writes 2"):
        NEXT.encode([Renamed(node="decode-0")], version=2)


def test_a_newer_entry_is_refused_with_both_versions() -> None:
    with pytest.raises(EntryError, match="entry of version 3; this release reads 1 to 2"):
        CODEC.decode(NEXT.encode([NEW_CORDON]))


@pytest.mark.parametrize("operation", EVERY_OPERATION, ids=lambda one: type(one).__name__)
def test_a_log_that_the_release_before_has_written_is_read_after_an_update(
    operation: object,
) -> None:
    (read,) = NEXT.decode(CODEC.encode([operation])).operations  # type: ignore[union-attr]
    assert NEXT.encode([read], version=2) == CODEC.encode([operation], version=2)


def test_what_two_releases_back_has_written_is_too_old() -> None:
    after_next = Codec(KINDS, version=4)
    with pytest.raises(EntryError, match="entry of version 1; this release reads 2 to 4"):
        after_next.decode(CODEC.encode([OLD_CORDON]))


@pytest.mark.parametrize(
    "operation",
    [one for one in EVERY_OPERATION if isinstance(one, RoleSet | RoleReleased)],
    ids=lambda one: type(one).__name__,
)
def test_roles_are_refused_by_the_release_that_has_none(operation: object) -> None:
    name = type(operation).__name__
    with pytest.raises(EntryError, match=f"{name} needs entries of version 2.*every scheduler"):
        CODEC.encode([operation], version=1)
    with pytest.raises(EntryError, match="entry of version 2; this release reads 1 to 1"):
        BEFORE_ROLES.decode(CODEC.encode([operation]))
    _, _, rows = msgpack.unpackb(CODEC.encode([operation]))
    number = next(number for number, rule in KINDS.items() if rule.made is type(operation))
    for reader in (BEFORE_ROLES, CODEC):
        with pytest.raises(EntryError, match=f"version 1 has no operation {number}"):
            reader.decode(msgpack.packb([1, 1, rows]))


def test_everything_else_is_written_as_that_release_reads_it() -> None:
    for operation in EVERY_OPERATION:
        if not isinstance(operation, RoleSet | RoleReleased):
            written = CODEC.encode([operation])
            assert BEFORE_ROLES.decode(written) == HardEntry(operations=(operation,))


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        (b"", "no msgpack"),
        (b"\xc1", "no msgpack"),
        (msgpack.packb({}), "version, class, content"),
        (msgpack.packb([1, 1]), "version, class, content"),
        (msgpack.packb([True, 1, []]), "version, class, content"),
        (msgpack.packb([1, 3, []]), "neither"),
        (msgpack.packb([1, 2, []]), "neither"),
        (msgpack.packb([1, 1, [5]]), "kind, field"),
        (msgpack.packb([1, 1, [[77]]]), "no operation 77"),
        (msgpack.packb([1, 1, [[4]]]), "1 fields, not 0"),
        (msgpack.packb([1, 1, [[4, "n" * 513]]]), "Uncordoned.node is not text of at most 512"),
        (msgpack.packb([1, 1, [[3, "n", "", 1, 7]]]), "is_drain is not true or false"),
        (msgpack.packb([1, 1, [[3, "n", "", True, -1]]]), "at_ms is not an integer"),
        (msgpack.packb([1, 1, [[4, "n"]] * 4097]), "4097 operations"),
    ],
)
def test_garbage_is_refused_with_the_reason(entry: bytes, why: str) -> None:
    with pytest.raises(EntryError, match=why):
        CODEC.decode(entry)


def test_a_result_tells_the_index_and_what_became_of_each_operation() -> None:
    applied = decode_result(encode_result(9, [Status.APPLIED, Status.STALE]))
    assert (applied.index, applied.statuses) == (9, (Status.APPLIED, Status.STALE))


def test_a_refused_entry_raises_where_its_result_is_read() -> None:
    with pytest.raises(EntryError, match="entry 9: why"):
        decode_result(encode_result(9, [], fault="entry 9: why"))


def test_several_operations_share_an_entry_in_their_order() -> None:
    said = (Uncordoned(node="a"), OverrideSet(key="k.k", value="1"))
    quota = QuotaSet(tenant="t", running_requests_max=None, tokens_per_minute_max=0)
    assert CODEC.decode(encode_operations(*said, quota)) == HardEntry(operations=(*said, quota))

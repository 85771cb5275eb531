"""The hard tables of a cell, and what each operation does to them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, assert_never

import msgpack
import xxhash

from pdd.cell.operations import (
    Cordoned,
    MemberJoined,
    MemberLeft,
    Operation,
    OverrideRemoved,
    OverrideSet,
    QuotaRemoved,
    QuotaSet,
    RoleReleased,
    RoleSet,
    Status,
    Uncordoned,
)
from pdd.cell.tables import HASH_BYTES, Table

MEMBERS_MAX = 8192
CORDONS_MAX = 8192
OVERRIDES_MAX = 1024
QUOTAS_MAX = 50_000
ROLES_MAX = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A node in its latest life."""

    uuid: str
    boot_epoch: int
    role: str
    address: str
    block_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Cordon:
    """Of a node's name. ``since_ms``: of the drain, if it is one."""

    message: str
    is_drain: bool
    since_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Override:
    """Of a key of the configuration."""

    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """Of a tenant; None: no limit."""

    running_requests_max: int | None
    tokens_per_minute_max: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """Of a node's name."""

    role: str
    is_by_hand: bool
    message: str
    since_ms: int


class CellState:
    """The tables. Only `apply` and `load` change them; everybody may read."""

    def __init__(self) -> None:
        self.members = Table(Member, row_count_max=MEMBERS_MAX)
        self.cordons = Table(Cordon, row_count_max=CORDONS_MAX)
        self.overrides = Table(Override, row_count_max=OVERRIDES_MAX)
        self.quotas = Table(Quota, row_count_max=QUOTAS_MAX)
        self.roles = Table(Role, row_count_max=ROLES_MAX)

    def tables(self) -> tuple[Table[Any], ...]:
        """In the order that snapshots have; one that is added comes last."""
        return self.members, self.cordons, self.overrides, self.quotas, self.roles

    def apply(self, operation: Operation) -> Status:
        """One operation. Deterministic, and never raises for what it says."""
        match operation:
            case MemberJoined():
                return self._join(operation)
            case MemberLeft():
                return self._leave(operation)
            case Cordoned():
                return self._cordon(operation)
            case Uncordoned():
                return _dropped(self.cordons, operation.node)
            case RoleSet():
                return self._set_role(operation)
            case RoleReleased():
                return _dropped(self.roles, operation.node)
            case OverrideSet():
                return _put(self.overrides, operation.key, Override(value=operation.value))
            case OverrideRemoved():
                return _dropped(self.overrides, operation.key)
            case QuotaSet():
                quota = Quota(
                    running_requests_max=operation.running_requests_max,
                    tokens_per_minute_max=operation.tokens_per_minute_max,
                )
                return _put(self.quotas, operation.tenant, quota)
            case QuotaRemoved():
                return _dropped(self.quotas, operation.tenant)
            case _:
                assert_never(operation)

    def _join(self, joined: MemberJoined) -> Status:
        present = self.members.get(joined.node)
        if present is not None and present.uuid == joined.uuid:
            if joined.boot_epoch < present.boot_epoch:
                return Status.STALE
            if joined.boot_epoch == present.boot_epoch:
                return Status.DUPLICATE
        member = Member(
            uuid=joined.uuid,
            boot_epoch=joined.boot_epoch,
            role=joined.role,
            address=joined.address,
            block_count=joined.block_count,
        )
        return _put(self.members, joined.node, member)

    def _leave(self, left: MemberLeft) -> Status:
        present = self.members.get(left.node)
        if present is None:
            return Status.UNKNOWN
        if (present.uuid, present.boot_epoch) != (left.uuid, left.boot_epoch):
            return Status.STALE
        return _dropped(self.members, left.node)

    def _cordon(self, cordoned: Cordoned) -> Status:
        present = self.cordons.get(cordoned.node)
        if present is None:
            cordon = Cordon(
                message=cordoned.message, is_drain=cordoned.is_drain, since_ms=cordoned.at_ms
            )
            return _put(self.cordons, cordoned.node, cordon)
        becomes_drain = cordoned.is_drain and not present.is_drain
        changed = replace(
            present,
            message=cordoned.message or present.message,
            is_drain=present.is_drain or cordoned.is_drain,
            since_ms=cordoned.at_ms if becomes_drain else present.since_ms,
        )
        return _put(self.cordons, cordoned.node, changed)

    def _set_role(self, said: RoleSet) -> Status:
        present = self.roles.get(said.node)
        since_ms, message = said.at_ms, said.message
        if present is not None and (present.role, present.is_by_hand) == (
            said.role,
            said.is_by_hand,
        ):
            since_ms, message = present.since_ms, message or present.message
        row = Role(role=said.role, is_by_hand=said.is_by_hand, message=message, since_ms=since_ms)
        return _put(self.roles, said.node, row)

    def hash(self) -> bytes:
        """16 bytes; costs the same for any number of rows."""
        sums = [table.hash.to_bytes(HASH_BYTES, "little") for table in self.tables()]
        return xxhash.xxh3_128_digest(msgpack.packb(sums))

    def export(self) -> list[list[list[Any]]]:
        """All rows, table by table."""
        return [table.export() for table in self.tables()]

    def load(self, tables: list[list[list[Any]]]) -> None:
        """Into an empty state. An older release's may lack the last tables."""
        for table, rows in zip(self.tables(), tables, strict=False):
            table.load(rows)


def _put(table: Table[Any], name: str, row: object) -> Status:
    if table.get(name) == row:
        return Status.DUPLICATE
    return Status.APPLIED if table.put(name, row) else Status.FULL


def _dropped(table: Table[Any], name: str) -> Status:
    return Status.APPLIED if table.drop(name) else Status.DUPLICATE

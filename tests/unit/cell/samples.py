"""One of each operation."""

from pdd.cell.operations import (
    Cordoned,
    MemberJoined,
    MemberLeft,
    OverrideRemoved,
    OverrideSet,
    QuotaRemoved,
    QuotaSet,
    RoleReleased,
    RoleSet,
    Uncordoned,
)
from pdd.cell.sequences import HolderLost, RowsAsked, SequenceEnded, SequenceHeld


def joined(node: str = "decode-0", *, uuid: str = "u-1", boot_epoch: int = 1) -> MemberJoined:
    return MemberJoined(
        node=node,
        uuid=uuid,
        boot_epoch=boot_epoch,
        role="decode",
        address="127.0.0.1:1",
        block_count=100,
    )


def held(
    request_id: str = "r-1",
    *,
    holder: str = "scheduler-0",
    tenant: str = "acme",
    key: bytes = b"",
    generation: int = 0,
    decode: str = "decode-0",
    at_ms: int = 1,
) -> SequenceHeld:
    return SequenceHeld(
        request_id=request_id,
        holder=holder,
        tenant=tenant,
        key=key,
        generation=generation,
        prefill="prefill-0",
        decode=decode,
        at_ms=at_ms,
    )


def ended(request_id: str = "r-1", *, holder: str = "scheduler-0") -> SequenceEnded:
    return SequenceEnded(request_id=request_id, holder=holder, how="finished", at_ms=9)


EVERY_SOFT_OPERATION = (
    held(key=b"k" * 16),
    ended(),
    HolderLost(holder="scheduler-0", is_final=True, at_ms=9),
    RowsAsked(by="scheduler-1"),
)
EVERY_OPERATION = (
    joined(),
    MemberLeft(node="decode-0", uuid="u-1", boot_epoch=1),
    Cordoned(node="decode-0", message="swap NIC", is_drain=False, at_ms=1_700_000_000_000),
    Uncordoned(node="decode-0"),
    OverrideSet(key="scheduler.node_timeout_s", value="5.0"),
    OverrideRemoved(key="scheduler.node_timeout_s"),
    QuotaSet(tenant="acme", running_requests_max=8, tokens_per_minute_max=None),
    QuotaRemoved(tenant="acme"),
    RoleSet(node="decode-0", role="prefill", is_by_hand=True, message="trial", at_ms=7),
    RoleReleased(node="decode-0"),
)

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


def joined(node: str = "decode-0", *, uuid: str = "u-1", boot_epoch: int = 1) -> MemberJoined:
    return MemberJoined(
        node=node,
        uuid=uuid,
        boot_epoch=boot_epoch,
        role="decode",
        address="127.0.0.1:1",
        block_count=100,
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

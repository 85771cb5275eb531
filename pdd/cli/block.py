"""``pdd block``: where KV blocks are."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pdd.cli.options import output_option, state_dir_option
from pdd.cli.output import print_json, print_table
from pdd.cli.scheduler import find_scheduler, scheduler_option
from pdd.cli.tls import tls_options

if TYPE_CHECKING:
    from pdd.rpc.v1 import cluster_pb2

_IDS_SHOWN_MAX = 16


@click.group()
def block() -> None:
    """Look for KV blocks."""


@block.command()
@click.argument("what", metavar="REQUEST_ID|HASH")
@scheduler_option
@state_dir_option
@tls_options
@output_option
def locate(
    what: str,
    scheduler: str | None,
    state_dir: Path | None,
    output: str,
    **tls: Path | None,
) -> None:
    """Show where the blocks of a running request are, or which nodes hold a block in their caches.

    REQUEST_ID: as the response's header names it (x-pdd-request-id). Asks the scheduler that serves
    the request, which asks its nodes. HASH: the key of a block, 32 hexadecimal digits, as
    'prompt_keys' of a request shows them (-o json).
    """
    bare = what.removeprefix("chatcmpl-").removeprefix("cmpl-")
    with find_scheduler(scheduler, state_dir, tls) as found:
        told = found.admin.locate(bare)
    if output == "json":
        print_json(found.staleness.mark(_as_json(told)))
        return
    if told.key:
        for name in told.holders:
            click.echo(name)
        return
    click.echo(f"{told.request_id}, attempt {told.generation}: {told.phase} {told.path}".rstrip())
    click.echo(
        f"owner {told.owner or '-'}, {told.watermark_tokens} tokens, {told.output_tokens} of them "
        f"output, tenant {told.tenant}"
    )
    if told.nodes:
        print_table(("NODE", "ROLE", "LEASED", "RANK", "BLOCKS", "IDS"), _rows(told))


def _as_json(told: "cluster_pb2.LocateBlocksResponse") -> dict[str, Any]:
    if told.key:
        return {"key": told.key.hex(), "holders": list(told.holders)}
    return {
        "request_id": told.request_id,
        "generation": told.generation,
        "phase": told.phase,
        "path": told.path or None,
        "owner": told.owner or None,
        "watermark_tokens": told.watermark_tokens,
        "output_tokens": told.output_tokens,
        "tenant": told.tenant,
        "prompt_keys": [key.hex() for key in told.prompt_keys],
        "nodes": [
            {
                "node": one.node,
                "role": one.role,
                "leased_block_count": one.leased_block_count,
                "is_answered": one.is_answered,
                "rank_block_ids": [list(rank.block_ids) for rank in one.ranks],
            }
            for one in told.nodes
        ],
    }


def _rows(told: "cluster_pb2.LocateBlocksResponse") -> list[tuple[str, str, int, str, str, str]]:
    rows = []
    for one in told.nodes:
        start = (one.node, one.role, one.leased_block_count)
        if not one.ranks:
            rows.append((*start, "-", "0" if one.is_answered else "no answer", "-"))
        for number, rank in enumerate(one.ranks):
            ids = " ".join(map(str, rank.block_ids[:_IDS_SHOWN_MAX]))
            more = " ..." if len(rank.block_ids) > _IDS_SHOWN_MAX else ""
            rows.append((*start, str(number), str(len(rank.block_ids)), ids + more))
    return rows

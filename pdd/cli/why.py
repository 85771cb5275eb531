"""``pdd why``: how a request was placed."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pdd.cli.options import output_option, state_dir_option
from pdd.cli.output import print_json, print_table
from pdd.cli.scheduler import find_scheduler, scheduler_option
from pdd.cli.tls import tls_options
from pdd.core.requests import DEFAULT_TENANT

if TYPE_CHECKING:
    from pdd.rpc.v1 import cluster_pb2


@click.command()
@click.argument("request_id")
@scheduler_option
@state_dir_option
@tls_options
@output_option
def why(
    request_id: str,
    scheduler: str | None,
    state_dir: Path | None,
    output: str,
    **tls: Path | None,
) -> None:
    """Show every decision about a request of the last hour: who could have had it, and why.

    REQUEST_ID: as the response names it. Of several schedulers any one may be asked: it asks
    the others too, as whoever led at the time has decided, and forgets it when it ends.
    """
    with find_scheduler(scheduler, state_dir, tls) as found:
        decisions = found.admin.decisions(_bare(request_id))
    if output == "json":
        print_json([found.staleness.mark(_as_json(decision)) for decision in decisions])
        return
    tenant = decisions[0].tenant if decisions else DEFAULT_TENANT
    if tenant != DEFAULT_TENANT:
        click.echo(f"tenant {tenant}")
    for index, decision in enumerate(decisions):
        if index:
            click.echo()
        _print(decision)


def _bare(request_id: str) -> str:
    """Without what OpenAI's API puts before an id in bodies."""
    return request_id.removeprefix("chatcmpl-").removeprefix("cmpl-")


def _as_json(decision: "cluster_pb2.Decision") -> dict[str, Any]:
    return {
        "request_id": decision.request_id,
        "tenant": decision.tenant,
        "scheduler": decision.scheduler or None,
        "generation": decision.generation,
        "age_s": round(decision.age_s, 3),
        "outcome": decision.outcome,
        "path": decision.path or None,
        "reason": decision.reason,
        "waited_s": round(decision.waited_s, 6),
        "repeated_count": decision.repeated_count,
        "path_inputs": dict(sorted(decision.path_inputs.items())),
        "choices": [
            {
                "role": choice.role,
                "candidates": [
                    {
                        "node": one.node,
                        "is_chosen": one.is_chosen,
                        "dropped_by": one.dropped_by or None,
                        "dropped_reason": one.dropped_reason or None,
                        "total": one.total,
                        "scores": dict(sorted(one.scores.items())),
                        "inputs": dict(sorted(one.inputs.items())),
                    }
                    for one in choice.candidates
                ],
                "other_counts": dict(sorted(choice.other_counts.items())),
            }
            for choice in decision.choices
        ],
    }


def _print(decision: "cluster_pb2.Decision") -> None:
    path = f" {decision.path}" if decision.path else ""
    who = f" by {decision.scheduler}" if decision.scheduler else ""
    again = f", {decision.repeated_count + 1} times" if decision.repeated_count else ""
    click.echo(
        f"attempt {decision.generation}, {decision.age_s:.1f} s ago{who}: {decision.outcome}{path} "
        f"after {decision.waited_s * 1e3:.1f} ms{again}"
    )
    click.echo(f"  {decision.reason}")
    if decision.path_inputs:
        inputs = sorted(decision.path_inputs.items())
        click.echo("  " + ", ".join(f"{name} {value:.4g}" for name, value in inputs))
    for choice in decision.choices:
        click.echo(f"  {choice.role}:")
        print_table(
            ("  NODE", "TOTAL", "SCORES", "INPUTS"), [_row(one) for one in choice.candidates]
        )
        for name, count in sorted(choice.other_counts.items()):
            click.echo(f"  and {count} more, {name}")


def _row(one: "cluster_pb2.Candidate") -> tuple[str, str, str, str]:
    mark = "* " if one.is_chosen else "  "
    inputs = " ".join(f"{name}={value:.4g}" for name, value in sorted(one.inputs.items()) if value)
    if one.dropped_by:
        return f"{mark}{one.node}", "-", f"{one.dropped_by}: {one.dropped_reason}", inputs
    scores = " ".join(f"{name}={value:.2f}" for name, value in sorted(one.scores.items()))
    return f"{mark}{one.node}", f"{one.total:.2f}", scores, inputs

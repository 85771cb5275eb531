"""``pdd bench roles``: roles that follow a shifting mix, against fixed ones."""

import os
from pathlib import Path
from typing import Any

import click

from pdd.cli.options import output_option
from pdd.cli.output import print_json, print_table, say


def add_to(group: click.Group) -> None:
    """Register the command under ``pdd bench``."""
    group.add_command(roles)


@click.command("roles")
@click.option("--nodes", type=click.IntRange(3, 64), default=4, show_default=True)
@click.option(
    "--fixed",
    multiple=True,
    metavar="P:D",
    help="So many prefill and decode nodes that stay; again for more. Default: half and half.",
)
@click.option(
    "--phases",
    default="prefill,decode,prefill",
    show_default=True,
    help="What each part of the load is heavy for.",
)
@click.option(
    "--phase-s",
    type=click.FloatRange(4, 3600),
    default=20.0,
    show_default=True,
    metavar="SECONDS",
    help="Length of each part.",
)
@click.option(
    "--load",
    "load_nodes",
    type=click.FloatRange(0.1, 64),
    default=2.3,
    show_default=True,
    metavar="NODES",
    help="What each part asks of its heavy duty.",
)
@click.option("--seed", type=click.IntRange(0, 1 << 31), default=1, show_default=True)
@click.option(
    "--seeds",
    type=click.IntRange(1, 1000),
    default=1,
    show_default=True,
    help="So many, from --seed.",
)
@click.option(
    "--picture",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Draw goodput, pools and switches over time: .png, .svg or .pdf.",
)
@click.option(
    "--set",
    "sets",
    multiple=True,
    metavar="SECTION.KEY=VALUE",
    help="Override the clusters' configuration.",
)
@output_option
def roles(
    nodes: int,
    fixed: tuple[str, ...],
    phases: str,
    sets: tuple[str, ...],
    output: str,
    **given: Any,
) -> int:
    """Measure what roles that follow the mix are worth, on a synthetic cluster.

    The load is heavy for prefill for a while, then for decode, and so on. It is sent to the same
    nodes once with the role controller and once with each fixed split. Step times are modelled,
    everything else is real. Good is a request that kept the objectives for TTFT and TPOT. With the
    defaults about three minutes; each further --fixed and seed takes a minute more.
    """
    from pdd.bench.roles import RolesBench, RolesOptions
    from pdd.config.sources import parse_set
    from pdd.core.identity import Role

    flags = [parse_set(text) for text in sets]
    options = RolesOptions(
        node_count=nodes,
        fixed=tuple(_split(text, nodes) for text in fixed) or ((nodes // 2, nodes - nodes // 2),),
        heavies=tuple(Role(name) for name in _phases(phases)),
        phase_s=given["phase_s"],
        load_nodes=given["load_nodes"],
        first_seed=given["seed"],
        seed_count=given["seeds"],
        picture=given["picture"],
        settings={flag.name: flag.text for flag in flags},
    )
    say(f"load average before the run: {os.getloadavg()[0]:.2f} on {os.cpu_count()} CPUs")
    bench = RolesBench(options, say=say, environment=os.environ)
    interrupted = bench.run()
    if output == "json":
        print_json(bench.document)
    else:
        print_table(
            ("ROLES", "SEEDS", "GOOD", "LEAST", "GOOD/S", "UNFINISHED", "FAILED", "SWITCHES"),
            [
                (
                    variant,
                    len(one["seeds"]),
                    f"{one['good_fraction'] or 0.0:.1%}",
                    f"{one['good_fraction_least'] or 0.0:.1%}",
                    f"{one['goodput_per_s']:.2f}",
                    one["unfinished"],
                    one["failed"],
                    ",".join(map(str, one["switches"])),
                )
                for variant, one in bench.document["summary"].items()
            ],
        )
    return 130 if interrupted else 0


def _split(text: str, nodes: int) -> tuple[int, int]:
    prefill, colon, decode = text.partition(":")
    if not colon or not prefill.isdigit() or not decode.isdigit():
        raise click.BadParameter(f"{text!r} is not P:D, for example 3:1", param_hint="--fixed")
    split = int(prefill), int(decode)
    if sum(split) != nodes or split[1] < 1:
        raise click.BadParameter(
            f"{text!r} is not a split of {nodes} nodes with a decode node", param_hint="--fixed"
        )
    return split


def _phases(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in ("prefill", "decode"):
            raise click.BadParameter(
                f"{name!r} is neither prefill nor decode", param_hint="--phases"
            )
    return names

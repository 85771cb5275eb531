"""``pdd bench``: measure parts of pdd on this machine. Each subcommand has a module of its own."""

import click

from pdd.cli import (
    bench_directory,
    bench_gateway,
    bench_interference,
    bench_raft,
    bench_roles,
    bench_serve,
    bench_transfer,
)


@click.group()
def bench() -> None:
    """Measure parts of pdd on this machine."""


bench_directory.add_to(bench)
bench_gateway.add_to(bench)
bench_interference.add_to(bench)
bench_raft.add_to(bench)
bench_roles.add_to(bench)
bench_serve.add_to(bench)
bench_transfer.add_to(bench)

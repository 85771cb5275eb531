"""``pdd serve``: run one daemon in the foreground."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pdd.cli.options import collect_flags, engine_options, set_option

if TYPE_CHECKING:
    from pdd.config.sections import Config


@click.command()
@click.option(
    "--role",
    type=click.Choice(["scheduler", "prefill", "decode"]),
    help="What this daemon does. May be left out when the file says it.",
)
@click.option(
    "--config",
    "file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="TOML file; see 'pdd config example'.",
)
@click.option("--model", metavar="FOLDER", help="engine.model")
@engine_options
@set_option
def serve(
    role: str | None, file: Path | None, sets: tuple[str, ...], **engine: str | bool | None
) -> int:
    """Run one daemon until it is told to stop (SIGTERM, Ctrl-C).

    Never touches the network but for its own cluster. Logs on stderr; tells systemd when it is
    ready. Flags named like vLLM's set the key of the same name in [engine].
    """
    from pdd.config.load import load_config
    from pdd.core.identity import Role
    from pdd.telemetry.logging import configure_logging

    loaded = load_config(
        file,
        environment=os.environ,
        flags=collect_flags(sets, engine),
        role=Role(role) if role is not None else None,
    )
    config = loaded.config
    configure_logging(config.log, node=config.node.name, role=config.node.role.value)
    _warn_about_faults(config)
    if config.node.role is Role.SCHEDULER:
        from pdd.daemon import scheduler_daemon

        return scheduler_daemon.run(config)
    from pdd.daemon import node_daemon

    return node_daemon.run(config)


def _warn_about_faults(config: "Config") -> None:
    import structlog

    chosen = config.faults.model_dump(exclude_defaults=True)
    if chosen:
        structlog.get_logger(__name__).warning(
            "faults_injected", advice="for tests only: remove [faults]", **chosen
        )

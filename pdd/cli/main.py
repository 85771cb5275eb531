"""The ``pdd`` command. Commands import what they need when they run, so that this starts fast.

Exit codes: 0 done, 1 failed, 2 wrong usage or configuration, 130 interrupted.
Results go to stdout; progress and errors to stderr.
"""

import os
import sys
from collections.abc import Sequence

import click

from pdd.cli.bench import bench
from pdd.cli.block import block
from pdd.cli.certs import certs
from pdd.cli.chat import chat
from pdd.cli.config import config
from pdd.cli.doctor import doctor
from pdd.cli.down import down
from pdd.cli.drill import drill
from pdd.cli.node import node
from pdd.cli.quota import quota
from pdd.cli.raft import raft
from pdd.cli.serve import serve
from pdd.cli.up import supervise, up
from pdd.cli.version import version
from pdd.cli.why import why
from pdd.core.errors import ConfigError, PddError


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
def pdd() -> None:
    """Serve large language models with prefill and decode on separate nodes.

    \b
    pdd up          a whole cluster on this machine
    pdd chat HELLO  talk to it
    pdd down        stop it
    """


for _command in (
    up,
    down,
    chat,
    node,
    quota,
    raft,
    block,
    why,
    doctor,
    serve,
    config,
    certs,
    bench,
    drill,
    version,
    supervise,
):
    pdd.add_command(_command)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    try:
        result = pdd.main(
            args=list(arguments) if arguments is not None else None,
            prog_name="pdd",
            standalone_mode=False,
        )
    except click.UsageError as error:
        place = error.ctx.command_path if error.ctx is not None else "pdd"
        _complain(f"{error.format_message()}\nTry '{place} --help'.")
        return 2
    except click.ClickException as error:
        _complain(error.format_message())
        return 1
    except ConfigError as error:
        _complain(str(error))
        return 2
    except PddError as error:
        _complain(str(error))
        return 1
    except (click.Abort, KeyboardInterrupt):
        return 130
    except BrokenPipeError:
        # The reader of our stdout is gone (head, less). Python would complain once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return result if isinstance(result, int) else 0


def _complain(text: str) -> None:
    """One fault per line, each marked as an error; what is indented belongs to the line before."""
    for line in text.splitlines():
        is_continued = line.startswith((" ", "\t", "Try "))
        click.echo(line if is_continued else f"error: {line}", err=True)


if __name__ == "__main__":
    sys.exit(main())

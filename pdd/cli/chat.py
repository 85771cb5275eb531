"""``pdd chat``: one question to a running cluster, answered on the terminal as it comes."""

import sys
from pathlib import Path

import click

from pdd.cli.options import resolve_state_dir, state_dir_option
from pdd.cli.tls import https_context, tls_options


@click.command()
@click.argument("prompt", required=False)
@click.option(
    "--url",
    "urls",
    metavar="URL",
    multiple=True,
    help="Endpoint, for example http://127.0.0.1:8000. Of several, the next one goes on where one "
    "is lost.",
)
@state_dir_option
@tls_options
@click.option("--max-tokens", type=click.IntRange(1), help="Most tokens of the answer.")
@click.option("--temperature", type=float, help="0 is greedy.")
@click.option("--seed", type=int, help="The same seed gives the same answer.")
@click.option("--system", metavar="TEXT", help="System prompt.")
@click.option("--model", metavar="NAME", help="Model name. Default: the one that is served.")
def chat(
    prompt: str | None,
    urls: tuple[str, ...],
    state_dir: Path | None,
    max_tokens: int | None,
    temperature: float | None,
    seed: int | None,
    system: str | None,
    model: str | None,
    **tls: Path | None,
) -> int:
    """Ask PROMPT (or what stdin says, when PROMPT is left out or "-")."""
    if urls and state_dir is not None:
        raise click.UsageError("--url and --state-dir name a cluster each; give one.")
    if prompt is None or prompt == "-":
        prompt = sys.stdin.read()
    if not prompt.strip():
        raise click.UsageError("the prompt is empty; give PROMPT, or write it to stdin.")
    for url in urls:
        if not url.startswith(("http://", "https://")):
            raise click.UsageError(
                f"--url {url} is not a URL; write http://HOST:PORT or https://HOST:PORT."
            )
    if not urls:
        from pdd.cli.local import http_urls

        urls = http_urls(resolve_state_dir(state_dir))
    from pdd.cli.chat_run import ChatRequest, run_chat

    return run_chat(
        ChatRequest(
            urls=urls,
            tls=https_context(**tls),
            prompt=prompt,
            system=system,
            model=model,
            sampling={
                key: value
                for key, value in (
                    ("max_tokens", max_tokens),
                    ("temperature", temperature),
                    ("seed", seed),
                )
                if value is not None
            },
        )
    )

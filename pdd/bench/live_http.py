"""What the live measurement asks a cluster for: completions, a stream with its times, counters.

Plain blocking HTTP, one connection per question: it shares two cores with what it measures.
"""

import http.client
import json
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

from pdd.core.errors import PddError

TIMEOUT_S = 120.0
_PREFIX = "pdd_kv_transfer_"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A completion that ended. ``path``: as in ``usage.pdd``."""

    text: str
    prompt_tokens: int
    transferred_bytes: int
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """A streamed completion. ``times_s``: monotonic, of each event with text."""

    text: str
    times_s: tuple[float, ...]


class Cluster:
    """One cluster's HTTP side; ``address`` is host:port. May be used by several threads."""

    def __init__(self, address: str) -> None:
        self._address = address

    def ask(self, prompt: str | list[int], *, tokens: int) -> Answer:
        """A greedy completion, of a text or of token ids, of exactly ``tokens`` tokens.

        Raises:
            PddError: the cluster refused, failed or is gone.
        """
        with self._post(_body(prompt, tokens, stream=False)) as response:
            answer = json.loads(response.read())
        usage = answer["usage"]
        return Answer(
            text=answer["choices"][0]["text"],
            prompt_tokens=usage["prompt_tokens"],
            transferred_bytes=usage["pdd"]["transferred_bytes"],
            path=usage["pdd"]["path"],
        )

    def stream(self, prompt: str, *, tokens: int, on_event: Callable[[int], None]) -> Stream:
        """As ``ask``, streamed; ``on_event`` hears the number of each event with text, from 1."""
        times: list[float] = []
        texts: list[str] = []
        with self._post(_body(prompt, tokens, stream=True)) as response:
            for line in response:
                text = text_of_event(line)
                if text is None:
                    continue
                times.append(time.monotonic())
                texts.append(text)
                on_event(len(times))
        return Stream(text="".join(texts), times_s=tuple(times))

    def counters(self) -> dict[str, float]:
        """The transfer counters of both nodes, as ``name@node``; see ``read_counters``."""
        with self._request("GET", "/metrics") as response:
            return read_counters(response.read().decode())

    # --- inside ------------------------------------------------------------------------------

    def _post(self, body: bytes) -> Any:
        return self._request("POST", "/v1/completions", body)

    @contextmanager
    def _request(
        self, method: str, path: str, body: bytes | None = None
    ) -> Iterator[http.client.HTTPResponse]:
        with closing(http.client.HTTPConnection(self._address, timeout=TIMEOUT_S)) as connection:
            try:
                connection.request(method, path, body, {"Content-Type": "application/json"})
                response = connection.getresponse()
                if response.status != 200:
                    raise PddError(
                        f"{method} {path}: {response.status} {response.read(500).decode()}"
                    )
                yield response
            except (OSError, http.client.HTTPException) as error:
                raise PddError(f"{method} {path} at {self._address}: {error!r}") from error


def _body(prompt: str | list[int], tokens: int, *, stream: bool) -> bytes:
    return json.dumps(
        {
            "prompt": prompt,
            "max_tokens": tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": stream,
        }
    ).encode()


def text_of_event(line: bytes) -> str | None:
    """The text that a line of a stream brings; None for all other lines.

    Raises:
        PddError: the line says that the stream failed.
    """
    if not line.startswith(b"data: {"):
        return None
    event = json.loads(line[len(b"data: ") :])
    if "error" in event:
        raise PddError(f"the stream ended with {event['error']}")
    choices = event.get("choices") or [{}]
    return choices[0].get("text") or None


def read_counters(metrics: str) -> dict[str, float]:
    """``pdd_kv_transfer_*`` from Prometheus text: ``received_bytes@decode-0`` and so on.

    Those with a further label than the node are left out.
    """
    counters = {}
    for line in metrics.splitlines():
        if not line.startswith(_PREFIX):
            continue
        name, _, rest = line.removeprefix(_PREFIX).partition('{node="')
        node, _, value = rest.partition('"} ')
        if value and '"' not in node:
            counters[f"{name.removesuffix('_total')}@{node}"] = float(value)
    return counters

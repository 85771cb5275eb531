"""Clients at all schedulers, by ``pdd.client``, and what each of them saw.

Each scheduler is the home of ``STREAM_CLIENTS`` that always have a long stream; of one that asks
for very little, again and again, so that it is seen when places are given; of one that leaves
each stream after a few tokens, so that there is always something to end, too; and of one that has
each stream ended at another scheduler (``enders``).
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from pdd.client import Client
from pdd.core.errors import PddError
from pdd.drill.enders import Enders

STREAM_CLIENTS = 3
STREAM_TOKENS = 120
KNOCK_TOKENS = 2
KNOCK_PAUSE_S = 0.05
LEFT_TOKENS = 60
LEFT_AFTER_EVENTS = 3
LEFT_PAUSE_S = 0.1
PROMPTS = tuple(f"chapter {number} of a story that nobody may lose" for number in range(6))
PATIENCE_S = 60.0
"""How long a client looks for its request; longer than any round holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One of ``PROMPTS``. Every other one is sampled, with a seed: its text is fixed as well."""

    prompt_index: int
    token_count: int

    def body(self) -> dict[str, object]:
        is_sampled = self.prompt_index % 2 == 1
        return {
            "prompt": PROMPTS[self.prompt_index],
            "max_tokens": self.token_count,
            "ignore_eos": True,
            "temperature": 0.8 if is_sampled else 0.0,
            "stream_options": {"include_usage": True},
            **({"seed": 1000 + self.prompt_index} if is_sampled else {}),
        }


QUESTIONS = tuple(
    Question(prompt_index=index, token_count=tokens)
    for tokens in (STREAM_TOKENS, KNOCK_TOKENS, LEFT_TOKENS)
    for index in range(len(PROMPTS))
)


@dataclass(slots=True, kw_only=True)
class Stream:
    """One request as its client saw it. Moments by the monotonic clock, in seconds.

    ``request_id``: empty before the first event. ``came_s``: of each event with text. ``home``: the
    scheduler that its client asks first. ``error``: why it failed, in words; None while it runs or
    if it did not. ``has_left``: its client wanted no more.
    """

    home: str
    question: Question
    began_s: float
    request_id: str = ""
    came_s: list[float] = field(default_factory=list)
    text: str = ""
    finish_reasons: list[str] = field(default_factory=list)
    completion_tokens: list[int] = field(default_factory=list)
    error: str | None = None
    has_left: bool = False
    ended_s: float | None = None


async def ask(client: Client, stream: Stream, *, leave_after_events: int | None = None) -> None:
    """Fills in what comes; never raises for what a server did.

    ``leave_after_events``: after so many with text; None: at the end.
    """
    documents = client.stream("/v1/completions", stream.question.body())
    try:
        async for document in documents:
            _note(stream, document)
            if leave_after_events is not None and len(stream.came_s) >= leave_after_events:
                stream.has_left = True
                break
    except PddError as error:
        stream.error = f"{type(error).__name__}: {error}"
    finally:
        await documents.aclose()
    stream.ended_s = time.monotonic()


def _note(stream: Stream, document: Mapping[str, Any]) -> None:
    stream.request_id = document["id"].removeprefix("cmpl-")
    if (usage := document.get("usage")) is not None:
        stream.completion_tokens.append(usage["completion_tokens"])
    for choice in document["choices"]:
        if choice["text"]:
            stream.came_s.append(time.monotonic())
            stream.text += choice["text"]
        if choice["finish_reason"]:
            stream.finish_reasons.append(choice["finish_reason"])


class Load:
    """``async with``: clients begin; at the end nobody is asked any more. ``finish`` first, or what
    runs is given up."""

    def __init__(self, urls: Mapping[str, str]) -> None:
        self.streams: list[Stream] = []
        self.enders = Enders(urls, PROMPTS)
        self._clients = {name: _client_of(name, urls) for name in urls}
        self._stopping = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        for client in self._clients.values():
            await client.__aenter__()
        for number, (home, client) in enumerate(self._clients.items()):
            for index in range(STREAM_CLIENTS):
                first = number * STREAM_CLIENTS + index
                self._begin(home, client, first, STREAM_TOKENS, pause_s=0.0)
            self._begin(home, client, number, KNOCK_TOKENS, pause_s=KNOCK_PAUSE_S)
            self._begin(home, client, number, LEFT_TOKENS, pause_s=LEFT_PAUSE_S)
            ending = self.enders.run(number, self._stopping)
            self._tasks.append(asyncio.create_task(ending))
        return self

    async def __aexit__(self, *error: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)
        for client in self._clients.values():
            await client.__aexit__(None, None, None)

    def check(self) -> None:
        """Raises what a client raised that is a bug of ours."""
        for task in self._tasks:
            if task.done():
                task.result()

    def running(self) -> list[Stream]:
        """Long streams that have begun to tell, and have not ended."""
        return [
            stream
            for stream in self.streams
            if stream.came_s
            and stream.ended_s is None
            and stream.question.token_count == STREAM_TOKENS
        ]

    async def finish(self) -> None:
        """No client asks anew; until each has all that it asked for."""
        self._stopping.set()
        await asyncio.wait(self._tasks)
        self.check()

    def _begin(self, home: str, client: Client, first: int, tokens: int, *, pause_s: float) -> None:
        self._tasks.append(
            asyncio.create_task(self._ask_on(home, client, first, tokens, pause_s=pause_s))
        )

    async def _ask_on(
        self, home: str, client: Client, first: int, tokens: int, *, pause_s: float
    ) -> None:
        index = first
        while not self._stopping.is_set():
            question = Question(prompt_index=index % len(PROMPTS), token_count=tokens)
            stream = Stream(home=home, question=question, began_s=time.monotonic())
            self.streams.append(stream)
            leaves = tokens == LEFT_TOKENS
            await ask(client, stream, leave_after_events=LEFT_AFTER_EVENTS if leaves else None)
            index += 1
            await asyncio.sleep(pause_s)


async def undisturbed(urls: Mapping[str, str]) -> list[Stream]:
    """Every question at every scheduler, while nothing is broken."""
    streams: list[Stream] = []
    for name in urls:
        async with _client_of(name, urls) as client, asyncio.TaskGroup() as tasks:
            for question in QUESTIONS:
                stream = Stream(home=name, question=question, began_s=time.monotonic())
                streams.append(stream)
                tasks.create_task(ask(client, stream))
    return streams


def _client_of(home: str, urls: Mapping[str, str]) -> Client:
    """It knows all of them and asks its own one first."""
    names: Sequence[str] = sorted(urls, key=lambda name: (name != home, name))
    return Client([urls[name] for name in names], patience_s=PATIENCE_S)

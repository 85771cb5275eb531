"""Clients that have a request ended at another scheduler than runs it, and look whether it is over.

    one scheduler ── POST with a key, a few tokens ──► another one ── DELETE until it says 204 ──►
        both ── GET ──► neither tells of it any more

The requests are so long that none ends by itself meanwhile. What is refused or broken off while the
cluster is broken is tried again, at the next scheduler, for PATIENCE_S.
"""

import asyncio
import secrets
import time
from collections.abc import Mapping, Sequence
from itertools import cycle

import aiohttp

ENDED_TOKENS = 3000
"""A minute at the drill's pace; the last of a round runs some seconds."""
EVENTS = 3
PATIENCE_S = 60.0
PAUSE_S = 0.2
_ASK_TIMEOUT_S = 8.0
"""Above what a scheduler waits for news of a request that it does not know."""


class Enders:
    """``faults``: requests that ran on. ``ended_count``: those that were seen to be over."""

    def __init__(self, urls: Mapping[str, str], prompts: Sequence[str]) -> None:
        self._urls = urls
        self._prompts = prompts
        self.faults: list[str] = []
        self.ended_count = 0

    async def run(self, first: int, stopping: asyncio.Event) -> None:
        """One client, which begins at the ``first`` scheduler and goes around."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=1.0, sock_read=_ASK_TIMEOUT_S)
        turn = first
        async with aiohttp.ClientSession(timeout=timeout) as http:
            while not stopping.is_set():
                await self._end_one(http, turn)
                turn += 1
                await asyncio.sleep(PAUSE_S)

    async def _end_one(self, http: aiohttp.ClientSession, turn: int) -> None:
        names = list(self._urls)
        until_s = time.monotonic() + PATIENCE_S
        key = secrets.token_hex(8)
        place = turn
        while (request_id := await self._begin(http, names[place % len(names)], key)) is None:
            if time.monotonic() >= until_s:
                self.faults.append(f"a request was not begun within {PATIENCE_S:g} s anywhere")
                return
            place += 1
            await asyncio.sleep(PAUSE_S)
        runs_at = names[place % len(names)]
        others = cycle([name for name in names if name != runs_at])
        ended_at = next(others)
        while (status := await self._delete(http, ended_at, request_id)) != 204:
            if status in (404, 410):
                return  # its scheduler was lost with it, or gave it up: nothing is left to end
            if time.monotonic() >= until_s:
                self.faults.append(
                    f"request {request_id} was not ended within {PATIENCE_S:g} s: status {status}"
                )
                return
            ended_at = next(others)
            await asyncio.sleep(PAUSE_S)
        for name in (runs_at, ended_at):
            if await self._is_told(http, name, request_id):
                self.faults.append(
                    f"request {request_id} was ended at {ended_at} and {name} still tells of it"
                )
        self.ended_count += 1

    async def _begin(self, http: aiohttp.ClientSession, name: str, key: str) -> str | None:
        """The request's id once it has said something; None: not here, not now."""
        body = {
            "prompt": self._prompts[0],
            "max_tokens": ENDED_TOKENS,
            "ignore_eos": True,
            "stream": True,
        }
        event_count = 0
        try:
            async with http.post(
                f"{self._urls[name]}/v1/completions", json=body, headers={"Idempotency-Key": key}
            ) as answer:
                if answer.status != 200:
                    return None
                async for line in answer.content:
                    event_count += line.startswith(b"data: {")
                    if event_count == EVENTS:
                        return answer.headers["x-request-id"]
        except (aiohttp.ClientError, TimeoutError):
            return None
        return None

    async def _delete(self, http: aiohttp.ClientSession, name: str, request_id: str) -> int:
        """0: no answer."""
        try:
            async with http.delete(f"{self._urls[name]}/v1/streams/{request_id}") as answer:
                return answer.status
        except (aiohttp.ClientError, TimeoutError):
            return 0

    async def _is_told(self, http: aiohttp.ClientSession, name: str, request_id: str) -> bool:
        try:
            async with http.get(f"{self._urls[name]}/v1/streams/{request_id}") as answer:
                return answer.status == 200
        except (aiohttp.ClientError, TimeoutError):
            return False  # it is down: nothing is told there

"""Tells another scheduler of a key before this one, which leads, begins to run it.

Anybody else's key is known to the leader and to who runs it: when one of them is lost, the other
knows. A leader's own is known to itself alone, until the sequence table has it some tens of
milliseconds after the request was accepted. A client that has its first token by then, and sends
the request again because the leader's host stands still, would have it run twice.

One scheduler that knows is enough: it lives when the leader does not (when both are lost, a key may
run twice), and whoever leads next hears of it from there. The one that answered last is told first,
the next one ``_HEDGE_S`` later, whatever the first one does.
"""

import asyncio

from pdd.control.leader_server import NotLeading
from pdd.control.runs_client import RunsClient, SchedulerUnreachable

_HEDGE_S = 0.02
"""Some ten times as long as it takes between two hosts of a cluster."""


class KeyWitness:
    """Of one scheduler."""

    def __init__(self, client: RunsClient) -> None:
        self._client = client
        self._latest = ""
        """Who answered last."""

    async def tell(self, key: bytes) -> None:
        """Returns when another scheduler knows that this one has the key; at once where there is no
        other. Raises NotLeading: none of them takes note of it, and so it is not to be run."""
        others = sorted(self._client.others, key=lambda name: name != self._latest)
        asked = [
            asyncio.create_task(self._ask(other, key, after_s=place * _HEDGE_S))
            for place, other in enumerate(others)
        ]
        reasons = []
        try:
            for answer in asyncio.as_completed(asked):
                if not (why := await answer):
                    return
                reasons.append(why)
        finally:
            for task in asked:
                task.cancel()
        if others:
            raise NotLeading(f"no other scheduler takes note of the key: {'; '.join(reasons)}")

    async def _ask(self, other: str, key: bytes, *, after_s: float) -> str:
        """Why it does not know; empty if it does."""
        await asyncio.sleep(after_s)
        try:
            await self._client.remember(other, key)
        except SchedulerUnreachable as error:
            if not error.is_older:  # a release that takes no notes: as it was with that one
                return str(error)
        self._latest = other
        return ""

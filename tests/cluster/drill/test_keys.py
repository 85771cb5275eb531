"""A key runs once, also while the scheduler that runs it is cut off from the others, or its host
stands still when it has just begun and the log has not heard of it.
"""

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from pdd.drill.cluster import SCHEDULERS, DrillCluster

pytestmark = [pytest.mark.cluster, pytest.mark.fault, pytest.mark.timeout(150)]
KEY = {"Idempotency-Key": "cut-off"}
TOKENS = 1000
"""Some 20 s: longer than it takes until the leader has lost sight of a scheduler."""
BODY: dict[str, Any] = {"prompt": "once", "max_tokens": TOKENS, "ignore_eos": True}
STREAM = BODY | {"stream": True}


async def read(http: aiohttp.ClientSession, url: str, began: asyncio.Event) -> tuple[str, str]:
    """``(request id, text)`` of a stream with the key."""
    text = ""
    async with http.post(f"{url}/v1/completions", json=STREAM, headers=KEY) as answer:
        assert answer.status == 200, await answer.text()
        async for line in answer.content:
            if line.startswith(b"data: {"):
                event = json.loads(line[6:])
                assert "error" not in event, event
                text += "".join(choice["text"] for choice in event["choices"])
                began.set()
        return answer.headers["x-request-id"], text


async def test_a_key_that_runs_at_a_scheduler_that_is_cut_off_runs_nowhere_else(
    tmp_path: Path,
) -> None:
    async with (
        DrillCluster(tmp_path) as cluster,
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(90)) as http,
    ):
        await cluster.until_whole(timeout_s=60)
        led = await cluster.until_led(SCHEDULERS, above_term=0, timeout_s=20)
        cut, other = (name for name in SCHEDULERS if name != led.name)
        began = asyncio.Event()
        reading = asyncio.create_task(read(http, cluster.urls[cut], began))
        await began.wait()
        cluster.cut_off(cut)
        refused = 0
        for _ in range(4):  # 5 s each: the leader loses sight of it meanwhile, and its key stays
            for url in (cluster.urls[other], cluster.urls[led.name]):
                async with http.post(f"{url}/v1/completions", json=BODY, headers=KEY) as answer:
                    if reading.done():
                        break
                    assert answer.status == 503, await answer.text()
                    assert int(answer.headers["retry-after"]) >= 1
                    refused += 1
        assert refused >= 3
        request_id, text = await reading
        cluster.mend()
        await cluster.until_whole(timeout_s=60)
        for name in SCHEDULERS:
            assert await read(http, cluster.urls[name], began) == (request_id, text)


async def test_a_key_that_the_leader_has_just_begun_to_run_when_its_host_stands_still_runs_once(
    tmp_path: Path,
) -> None:
    async with (
        DrillCluster(tmp_path) as cluster,
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(90)) as http,
    ):
        await cluster.until_whole(timeout_s=60)
        led = await cluster.until_led(SCHEDULERS, above_term=0, timeout_s=20)
        others = [name for name in SCHEDULERS if name != led.name]
        cluster.freeze_replica(led.name)  # so that the log cannot have heard of it
        async with http.post(
            f"{cluster.urls[led.name]}/v1/completions", json=STREAM, headers=KEY
        ) as first:  # which is answered with its first token
            cluster.freeze(led.name, with_children=False)
            request_id = first.headers["x-request-id"]
        told: set[str] = set()
        async with asyncio.timeout(90):
            while len(told) < len(others):  # 5 s each; a node comes with the request meanwhile
                for name in others:
                    async with http.post(
                        f"{cluster.urls[name]}/v1/completions", json=STREAM, headers=KEY
                    ) as answer:
                        if answer.status == 200:
                            assert answer.headers["x-request-id"] == request_id
                            told.add(name)
                        else:
                            assert answer.status == 503, await answer.text()
                            assert int(answer.headers["retry-after"]) >= 1

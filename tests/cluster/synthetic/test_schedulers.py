"""Three schedulers and real nodes: what clients see when one of the schedulers goes, and how long.

The figures are printed (``-s``); they are bounded only by what a client may wait at all.
"""

import asyncio
import contextlib
import json
import os
import re
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc.aio
import httpx
import pytest

from pdd.cli.scheduler import find_scheduler
from pdd.daemon.cluster_admin import NotKnown
from pdd.rpc.v1 import cluster_pb2, inference_pb2, inference_pb2_grpc
from tests.vllm.cluster import Cluster, run_here, start_cluster, stop_cluster
from tests.waiting import until

pytestmark = [pytest.mark.cluster, pytest.mark.fault, pytest.mark.timeout(240)]
WAIT_S = 60.0
TOKENS = 200
PROMPTS = [f"chapter {number} of the long story" for number in range(4)]


@dataclass(kw_only=True)
class Group:
    """A cluster and its schedulers' endpoints by name."""

    cluster: Cluster
    http: dict[str, str]
    texts: dict[str, str] = field(default_factory=dict)
    """What was said to each prompt while nothing happened; see `texts_of`."""

    def record(self) -> dict[str, Any]:
        record: dict[str, Any] = json.loads((self.cluster.state_dir / "cluster.json").read_text())
        return record

    def pid(self, name: str) -> int:
        (pid,) = [one["pid"] for one in self.record()["nodes"] if one["name"] == name]
        return int(pid)

    async def replicas(self) -> list[dict[str, Any]]:
        arguments = ("raft", "status", "-o", "json", "--state-dir", str(self.cluster.state_dir))
        done = await asyncio.to_thread(run_here, *arguments)
        return json.loads(done.stdout) if done.stdout else []

    async def until_led(self) -> str:
        """The leader's name, when all replicas answer and one leads."""

        async def leader() -> str:
            rows = await self.replicas()
            leaders = [row["name"] for row in rows if row["role"] == "leader"]
            is_whole = len(leaders) == 1 and not any(row["fault"] for row in rows)
            return str(leaders[0]) if is_whole else ""

        return str(await until(leader, "one leader and no fault"))

    async def until_all_serve(self) -> str:
        """Every scheduler serves, sees every node, and reaches a leader; the leader's name."""
        async with httpx.AsyncClient() as client:

            async def serves(url: str) -> bool:
                with contextlib.suppress(httpx.TransportError):
                    health = (await client.get(f"{url}/health")).json()
                    return health["decode_ready_count"] == 2 and not health["reason"]
                return False

            for url in self.http.values():
                await until(lambda: serves(url), f"{url} to serve")  # noqa: B023
        return await self.until_led()


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    folder = tmp_path_factory.mktemp("group")
    cluster = start_cluster(
        folder / "state",
        *("--engine", "synthetic", "--schedulers", "3", "--prefill", "1", "--decode", "2"),
        *("--set", "synthetic.step_s=0.02"),
    )
    nodes = json.loads((cluster.state_dir / "cluster.json").read_text())["nodes"]
    http = {node["name"]: node["http"] for node in nodes if node["role"] == "scheduler"}
    try:
        yield Group(cluster=cluster, http=http)
    finally:
        stop_cluster(cluster)


@dataclass
class Stream:
    """One client. ``came_s``: when each text came, by the monotonic clock."""

    prompt: str
    text: str = ""
    began_s: float = 0.0
    came_s: list[float] = field(default_factory=list)
    finish: str = ""
    usage: dict[str, Any] = field(default_factory=dict)
    error: Any = None
    request_id: str = ""
    last_id: str = ""
    runs: asyncio.Event = field(default_factory=asyncio.Event)
    """Some tokens have come."""
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    """The finish reason has come."""

    @property
    def first_s(self) -> float:
        return self.came_s[0] - self.began_s

    @property
    def longest_gap_s(self) -> float:
        return max(b - a for a, b in zip(self.came_s, self.came_s[1:], strict=False))


async def read(
    client: httpx.AsyncClient, url: str, stream: Stream, headers: dict[str, str] | None = None
) -> None:
    body = {
        "prompt": stream.prompt,
        "max_tokens": TOKENS,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    stream.began_s = time.monotonic()
    await follow(client, f"{url}/v1/completions", stream, method="POST", json=body, headers=headers)


async def follow(
    client: httpx.AsyncClient, url: str, stream: Stream, *, method: str = "GET", **call: Any
) -> None:
    async with client.stream(method, url, **call) as response:
        assert response.status_code == 200, await response.aread()
        stream.request_id = response.headers["x-request-id"]
        async for line in response.aiter_lines():
            if line.startswith("id: "):
                stream.last_id = line[4:]
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            event = json.loads(line[6:])
            stream.error = event.get("error")
            stream.usage = event.get("usage") or stream.usage
            for choice in event.get("choices", ()):
                if choice["text"]:
                    stream.came_s.append(time.monotonic())
                    if len(stream.came_s) > 10:
                        stream.runs.set()
                stream.text += choice["text"]
                stream.finish = choice["finish_reason"] or stream.finish
                if stream.finish:
                    stream.ended.set()


@dataclass
class Load:
    """Streams that run, and those that come later."""

    client: httpx.AsyncClient
    tasks: dict[asyncio.Task[None], Stream] = field(default_factory=dict)

    def start(self, url: str, number: int) -> Stream:
        stream = Stream(PROMPTS[number % len(PROMPTS)])
        self.tasks[asyncio.create_task(read(self.client, url, stream))] = stream
        return stream

    async def all(self) -> list[Stream]:
        async with asyncio.timeout(WAIT_S):
            for task in self.tasks:
                await task
        return list(self.tasks.values())


@contextlib.asynccontextmanager
async def load() -> AsyncIterator[Load]:
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(timeout=WAIT_S, limits=limits) as client:
        one = Load(client)
        try:
            yield one
        finally:
            for task in one.tasks:
                task.cancel()


async def texts_of(group: Group) -> dict[str, str]:
    """What an undisturbed cluster says to each prompt: equal at every scheduler, and whenever."""
    if group.texts:
        return group.texts
    async with load() as calm:
        for url in group.http.values():
            for number in range(len(PROMPTS)):
                calm.start(url, number)
        texts: dict[str, str] = {}
        for stream in await calm.all():
            assert stream.finish == "length"
            assert texts.setdefault(stream.prompt, stream.text) == stream.text
    group.texts = texts
    return texts


async def until_running(streams: list[Stream]) -> None:
    async with asyncio.timeout(WAIT_S):
        for stream in streams:
            await stream.runs.wait()


def assert_whole(streams: list[Stream], texts: dict[str, str]) -> None:
    for stream in streams:
        assert stream.error is None
        assert (stream.text, stream.finish) == (texts[stream.prompt], "length")
        assert stream.usage["completion_tokens"] == TOKENS


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM])
async def test_without_the_leader_others_streams_run_on_and_new_requests_wait(
    group: Group, number: signal.Signals
) -> None:
    leader = await group.until_all_serve()
    texts = await texts_of(group)
    urls = [url for name, url in group.http.items() if name != leader]
    async with load() as clients:
        running = [clients.start(urls[one % 2], one) for one in range(8)]
        await until_running(running)
        pid = group.pid(leader)
        os.kill(pid, number)
        gone_s = time.monotonic()
        late = []
        for one in range(12):
            late.append(clients.start(urls[one % 2], one))
            await asyncio.sleep(0.1)
        try:
            assert_whole(await clients.all(), texts)
        finally:
            if number is signal.SIGSTOP:
                os.kill(pid, signal.SIGCONT)
        served_s = min(stream.came_s[0] for stream in late) - gone_s
        print(
            f"{number.name}: places again after {served_s:.2f} s; longest wait of a new request "
            f"{max(stream.first_s for stream in late):.2f} s; longest gap of a running stream "
            f"{max(stream.longest_gap_s for stream in running):.2f} s"
        )


async def test_a_follower_that_is_killed_disturbs_nobody_else(group: Group) -> None:
    leader = await group.until_all_serve()
    texts = await texts_of(group)
    follower, other = (name for name in group.http if name != leader)
    async with load() as clients:
        urls = [group.http[leader], group.http[other]]
        running = [clients.start(urls[one % 2], one) for one in range(6)]
        await until_running(running)
        os.kill(group.pid(follower), signal.SIGKILL)
        for one in range(6):
            clients.start(urls[one % 2], one)
        assert_whole(await clients.all(), texts)


@pytest.mark.parametrize("goes", ["leader", "follower"])
@pytest.mark.parametrize("has_key", [True, False])
async def test_a_client_of_a_lost_scheduler_comes_back_to_another_one_and_misses_nothing(
    group: Group, goes: str, has_key: bool
) -> None:
    leader = await group.until_all_serve()
    texts = await texts_of(group)
    followers = [name for name in group.http if name != leader]
    lost, other = (leader, followers[0]) if goes == "leader" else followers
    key = {"Idempotency-Key": f"{goes}-{group.pid(lost)}"} if has_key else {}
    async with load() as clients:
        stream = Stream(PROMPTS[0])
        reading = asyncio.create_task(read(clients.client, group.http[lost], stream, headers=key))
        await until_running([stream])
        os.kill(group.pid(lost), signal.SIGKILL)
        with pytest.raises(httpx.TransportError):
            await asyncio.wait_for(reading, WAIT_S)
        seen = len(stream.came_s)
        back_s = time.monotonic()
        if has_key:  # sent again: told from its beginning
            again = Stream(PROMPTS[0])
            await read(clients.client, group.http[other], again, headers=key)
            assert again.text.startswith(stream.text)
            assert_whole([again], texts)
            first_s = again.came_s[0] - back_s
        else:
            url = f"{group.http[other]}/v1/streams/{stream.request_id}"
            await follow(clients.client, url, stream, headers={"Last-Event-ID": stream.last_id})
            assert_whole([stream], texts)
            first_s = stream.came_s[seen] - back_s
        print(f"{goes} lost after {seen} events, key {has_key}: told on after {first_s:.2f} s")


async def test_a_grpc_client_of_a_lost_scheduler_resumes_at_another_one_and_misses_nothing(
    group: Group,
) -> None:
    leader = await group.until_all_serve()
    texts = await texts_of(group)
    lost, other = (name for name in group.http if name != leader)
    sampling = inference_pb2.SamplingParameters(max_tokens=TOKENS, temperature=0, ignore_eos=True)
    request = inference_pb2.GenerateRequest(
        text=PROMPTS[0], sampling=sampling, idempotency_key=f"grpc-{group.pid(lost)}"
    )
    text, token_count, request_id = "", 0, ""

    async def listen_and_kill() -> None:
        nonlocal text, token_count, request_id
        async with grpc.aio.insecure_channel(address_of(group, lost)) as channel:
            stub = inference_pb2_grpc.InferenceStub(channel)
            async for response in stub.Generate(request, timeout=WAIT_S):
                request_id = response.request_id
                text += response.tokens.text
                token_count += len(response.tokens.token_ids)
                if token_count == 20:
                    os.kill(group.pid(lost), signal.SIGKILL)

    with pytest.raises(grpc.aio.AioRpcError):
        await listen_and_kill()
    assert 20 <= token_count < TOKENS
    place = inference_pb2.ResumeFrom(request_id=request_id, next_token_index=token_count)
    async with grpc.aio.insecure_channel(address_of(group, other)) as channel:
        stub = inference_pb2_grpc.InferenceStub(channel)
        resumed = inference_pb2.GenerateRequest(resume_from=place)
        end = None
        async for response in stub.Generate(resumed, timeout=WAIT_S):
            assert response.request_id == request_id
            if response.tokens.token_ids:
                assert response.tokens.first_token_index == token_count, "none lost, none doubled"
            text += response.tokens.text
            token_count += len(response.tokens.token_ids)
            end = response.end
    assert (text, token_count) == (texts[PROMPTS[0]], TOKENS)
    assert end is not None
    assert end.usage.completion_tokens == TOKENS


async def test_a_client_of_a_scheduler_that_stands_still_goes_on_elsewhere(group: Group) -> None:
    leader = await group.until_all_serve()
    texts = await texts_of(group)
    lost, other = (name for name in group.http if name != leader)
    async with load() as clients:
        stream = clients.start(group.http[lost], 0)
        await until_running([stream])
        pid = group.pid(lost)
        os.kill(pid, signal.SIGSTOP)
        still_s = time.monotonic()
        try:
            for task in clients.tasks:
                task.cancel()
            await asyncio.wait(clients.tasks)
            url = f"{group.http[other]}/v1/streams/{stream.request_id}"
            headers = {"Last-Event-ID": stream.last_id}
            async with asyncio.timeout(WAIT_S):
                while (await clients.client.get(url, headers=headers)).status_code == 404:
                    pass  # it waits some seconds before it says so
            print(f"a stream of a scheduler that stands still: {time.monotonic() - still_s:.1f} s")
            await follow(clients.client, url, stream, headers=headers)
            assert_whole([stream], texts)
        finally:
            os.kill(pid, signal.SIGCONT)
        clients.tasks.clear()


async def placements(urls: list[str]) -> float:
    """Attempts that these schedulers have given their nodes."""
    async with httpx.AsyncClient() as client:
        texts = [(await client.get(f"{url}/metrics")).text for url in urls]
    found = re.findall(r"^pdd_scheduler_placements_total (\S+)$", "\n".join(texts), re.MULTILINE)
    assert len(found) == len(urls)
    return sum(map(float, found))


async def directory_sizes(group: Group) -> list[float]:
    """Blocks that each scheduler knows to be cached somewhere, in order of name."""
    sizes = []
    async with httpx.AsyncClient() as client:
        for url in group.http.values():
            text = (await client.get(f"{url}/metrics")).text
            (size,) = re.findall(r"^pdd_directory_blocks (\S+)$", text, re.MULTILINE)
            sizes.append(float(size))
    return sizes


async def test_a_followers_directory_is_the_leaders_and_a_restarted_one_has_it_from_the_nodes(
    group: Group,
) -> None:
    leader = await group.until_all_serve()
    follower, other = (name for name in group.http if name != leader)
    before = max(await directory_sizes(group))

    async def is_one_larger_directory() -> bool:
        sizes = await directory_sizes(group)
        return len(set(sizes)) == 1 and sizes[0] > before

    async with load() as clients:
        for number in range(3):
            prompt = f"part {number} of what a follower knows as well as a leader, " * 8
            body = {"prompt": prompt, "max_tokens": 2}
            url = f"{group.http[other]}/v1/completions"
            assert (await clients.client.post(url, json=body)).status_code == 200
        await until(is_one_larger_directory, "all three to know the same blocks")
        for lost in (follower, leader):
            killed = group.pid(lost)
            os.kill(killed, signal.SIGKILL)
            await until(lambda: group.pid(lost) != killed, "its next life")  # noqa: B023
            await group.until_all_serve()
            await until(is_one_larger_directory, f"{lost} to know the same blocks again")
        again = await clients.client.post(url, json=body)
        facts = again.json()["usage"]["prompt_tokens_details"]
        assert facts["cached_tokens"] > 0, "the next leader sends it where its prefix is"


async def test_a_node_that_dies_right_after_a_change_is_planned_around_by_the_new_leader(
    group: Group,
) -> None:
    leader = await group.until_all_serve()
    texts = await texts_of(group)
    urls = [url for name, url in group.http.items() if name != leader]
    async with load() as clients:
        running = [clients.start(urls[one % 2], one) for one in range(8)]
        await until_running(running)
        placed_count = await placements(urls)
        os.kill(group.pid(leader), signal.SIGKILL)
        os.kill(group.pid("decode-0"), signal.SIGKILL)
        assert_whole(await clients.all(), texts)
        gaps_s = sorted(stream.longest_gap_s for stream in running)
        print(f"longest gaps of streams when leader and node die together: {gaps_s}")
        assert await placements(urls) > placed_count, "by the new leader, of those on decode-0"


async def test_any_scheduler_answers_an_operator_as_the_leader_would(group: Group) -> None:
    leader = await group.until_all_serve()
    follower, other = (name for name in group.http if name != leader)
    async with load() as clients:
        stream = clients.start(group.http[other], 0)
        await until_running([stream])
        why = await asyncio.to_thread(
            run_here, "why", stream.request_id, "--scheduler", address_of(group, follower)
        )
        assert why.returncode == 0, why.stderr
        assert "decode-" in why.stdout
        await clients.all()
        node = stream.usage["pdd"]["decode_node"]
        for command, said in (("drain", "drained"), ("uncordon", "uncordoned")):
            done = await asyncio.to_thread(
                run_here, "node", command, node, "--scheduler", address_of(group, follower)
            )
            assert done.returncode == 0, done.stderr
            assert said in done.stdout


async def test_a_request_that_is_sent_to_all_schedulers_at_once_with_one_key_runs_once(
    group: Group,
) -> None:
    await group.until_all_serve()
    texts = await texts_of(group)
    key = {"Idempotency-Key": f"once-{group.pid(await group.until_led())}"}
    async with load() as clients:
        streams = [Stream(PROMPTS[0]) for _ in range(6)]
        urls = list(group.http.values())
        async with asyncio.TaskGroup() as tasks:
            for number, stream in enumerate(streams):
                tasks.create_task(read(clients.client, urls[number % 3], stream, headers=key))
        assert_whole(streams, texts)
        (request_id,) = {stream.request_id for stream in streams}
        print(f"first tokens of one request at three schedulers: {[s.first_s for s in streams]}")
        for url in urls:  # it has ended, and is told once more by whoever has it
            late = Stream(PROMPTS[0])
            await read(clients.client, url, late, headers=key)
            assert_whole([late], texts)
            assert late.request_id == request_id
            other = await clients.client.post(
                f"{url}/v1/completions", json={"prompt": "another body"}, headers=key
            )
            assert (other.status_code, "another body" in other.text) == (400, True)


async def test_any_scheduler_tells_where_a_request_is_and_was(group: Group) -> None:
    await group.until_all_serve()
    leader = await group.until_led()
    holder, other = (name for name in group.http if name != leader)
    async with load() as clients:
        stream = clients.start(group.http[holder], 0)
        await until_running([stream])
        for name in group.http:
            told = await asyncio.to_thread(locate, address_of(group, name), stream.request_id)
            assert (told.phase, told.nodes[-1].role) == ("decoding", "decode")
        url = f"{group.http[other]}/v1/streams"
        running = await clients.client.get(f"{url}/{stream.request_id}")
        assert (running.status_code, holder in running.text) == (404, True)
        await clients.all()
        while running.status_code == 404:  # its row is on its way
            running = await clients.client.get(f"{url}/{stream.request_id}")
        assert (running.status_code, "finished" in running.text) == (410, True)
        assert (await clients.client.get(f"{url}/r-{'0' * 24}")).status_code == 404
        with pytest.raises(NotKnown, match=f"finished.*at scheduler {holder}"):
            await asyncio.to_thread(locate, address_of(group, other), stream.request_id)


async def test_who_follows_a_request_at_another_scheduler_sees_a_pause_when_that_is_lost(
    group: Group,
) -> None:
    await group.until_all_serve()
    texts = await texts_of(group)
    leader = await group.until_led()
    key = {"Idempotency-Key": f"pause-{group.pid(leader)}"}
    async with load() as clients:
        first = Stream(PROMPTS[0])
        reading = asyncio.create_task(read(clients.client, group.http[leader], first, headers=key))
        await until_running([first])
        followers = [Stream(PROMPTS[0]) for name in group.http if name != leader]
        urls = [url for name, url in group.http.items() if name != leader]
        by_id = f"{urls[1]}/v1/streams/{first.request_id}"
        follows = [
            asyncio.create_task(read(clients.client, urls[0], followers[0], headers=key)),
            asyncio.create_task(follow(clients.client, by_id, followers[1])),
        ]
        await until_running(followers)
        os.kill(group.pid(leader), signal.SIGKILL)
        with pytest.raises(httpx.TransportError):
            await asyncio.wait_for(reading, WAIT_S)
        async with asyncio.timeout(WAIT_S):
            for task in follows:
                await task
        assert_whole(followers, texts)
        assert {stream.request_id for stream in followers} == {first.request_id}
        print(f"longest gaps of followers: {[stream.longest_gap_s for stream in followers]}")


async def test_with_one_of_three_left_streams_end_and_nothing_new_is_promised(
    group: Group,
) -> None:
    leader = await group.until_all_serve()
    texts = await texts_of(group)
    last = next(name for name in group.http if name != leader)
    at_last = ("--scheduler", address_of(group, last))
    key = "scheduler.path.local_stall_s"
    for setting in (("config", "set", key, "0.2"), ("quota", "set", "acme", "--requests", "9")):
        done = await asyncio.to_thread(run_here, *setting, *at_last)
        assert done.returncode == 0, done.stderr
    stopped = [group.pid(name) for name in group.http if name != last]
    replicas = [child for pid in stopped for child in children(pid)]
    async with load() as clients:
        running = [clients.start(group.http[last], one) for one in range(4)]
        await until_running(running)
        for pid in (*replicas, *stopped):
            os.kill(pid, signal.SIGSTOP)
        try:
            waiting = clients.start(group.http[last], 0)
            cordon = ("node", "cordon", "decode-0", *at_last)
            done = await asyncio.to_thread(run_here, *cordon)
            assert done.returncode == 1, done.stdout
            told = ("saying it again does no harm", "DEADLINE_EXCEEDED")
            assert any(words in done.stderr for words in told), done.stderr
            async with asyncio.timeout(WAIT_S):
                for stream in running:
                    await stream.ended.wait()

            async def knows() -> bool:
                return "no scheduler leads" in (await clients.client.get(health)).text

            health = f"{group.http[last]}/health"
            await until(knows, "it to say that nobody leads")
            for read, known in (
                (("node", "list"), "decode-0"),
                (("node", "role"), "decode-0"),
                (("config", "overrides"), key),
                (("quota", "list"), "acme"),
            ):
                listed = await asyncio.to_thread(run_here, *read, *at_last, "-o", "json")
                assert listed.returncode == 0, listed.stderr
                assert known in listed.stdout
                assert '"stale_reason": "no scheduler leads: ' in listed.stdout
                assert "warning: no scheduler leads: " in listed.stderr
            with pytest.raises(NotKnown, match=r"never was.*no scheduler leads: "):
                await asyncio.to_thread(locate, at_last[1], "r-never")
            assert not waiting.came_s, "nobody may give places"
        finally:
            for pid in (*replicas, *stopped):
                os.kill(pid, signal.SIGCONT)
        assert_whole(await clients.all(), texts)
    listed = await asyncio.to_thread(run_here, *cordon)
    assert listed.returncode == 0, listed.stderr
    for undone in (
        ("node", "uncordon", "decode-0"),
        ("config", "unset", key),
        ("quota", "unset", "acme"),
    ):
        done = await asyncio.to_thread(run_here, *undone, *at_last)
        assert done.returncode == 0, done.stderr


async def test_what_is_set_at_one_scheduler_holds_at_all_and_after_the_leaders_death(
    group: Group,
) -> None:
    leader = await group.until_all_serve()
    follower, other = (name for name in group.http if name != leader)

    async def command(at: str, *arguments: str) -> str:
        at_scheduler = (*arguments, "--scheduler", address_of(group, at))
        done = await asyncio.to_thread(run_here, *at_scheduler)
        assert done.returncode == 0, done.stderr
        return str(done.stdout)

    async def ask(at: str, tenant: str) -> httpx.Response:
        async with httpx.AsyncClient(timeout=WAIT_S) as client:
            return await client.post(
                f"{group.http[at]}/v1/completions",
                json={"prompt": PROMPTS[0], "max_tokens": 2},
                headers={"x-pdd-tenant": tenant},
            )

    key = "scheduler.path.mode"
    assert f"{key} is now local" in await command(follower, "config", "set", key, "local")
    assert "may now have 0" in await command(follower, "quota", "set", "acme", "--requests", "0")
    said = await command(follower, "quota", "set", "tiny", "--tokens-per-minute", "1")
    assert "may now have 1 token a minute" in said
    first, *others = [await ask(name, "tiny") for name in group.http]
    assert first.status_code == 200, "nothing of the minute was used"
    for refused in others:
        assert refused.status_code == 429, "the leader counts what all schedulers' clients use"
        assert "tenant 'tiny' would use about " in refused.text
        assert "its quota is 1 a minute: " in refused.text
        assert int(refused.headers["retry-after"]) >= 1
    killed = group.pid(leader)
    for _ in range(2):
        for name in group.http:
            answer = await until_known(lambda name=name: ask(name, "other"))
            assert answer.json()["usage"]["pdd"]["path"] == "local", name
            refused = await ask(name, "acme")
            assert refused.status_code == 429
            assert "tenant 'acme' has 0 requests, its quota is 0" in refused.text
            assert "retry-after" in refused.headers
        if group.pid(leader) == killed:
            os.kill(killed, signal.SIGKILL)
            await until(lambda: group.pid(leader) != killed, "another process of the leader's")
            await group.until_all_serve()
    listed = json.loads(await command(leader, "config", "overrides", "-o", "json"))
    as_set = {"value": "local", "configured": '"disaggregated"', "fault": None}
    assert listed == {key: as_set | {"stale_reason": None}}
    assert f"{key} unset" in await command(other, "config", "unset", key)
    assert "has no limit now" in await command(other, "quota", "unset", "acme")
    assert (await ask(leader, "acme")).status_code == 200


async def until_known(ask: Callable[[], Awaitable[httpx.Response]]) -> httpx.Response:
    """What was set at one scheduler is at another one by the next message of their log."""

    async def local() -> httpx.Response | None:
        answer = await ask()
        assert answer.status_code == 200, answer.text
        return answer if answer.json()["usage"]["pdd"]["path"] == "local" else None

    answer: httpx.Response = await until(local, "the setting to be known")
    return answer


def address_of(group: Group, name: str) -> str:
    (address,) = [one["address"] for one in group.record()["nodes"] if one["name"] == name]
    return str(address)


def locate(scheduler: str, request_id: str) -> cluster_pb2.LocateBlocksResponse:
    """As the command does it, without the seconds that its process takes to start."""
    tls = dict.fromkeys(("ca", "certificate", "key"))
    with find_scheduler(scheduler, None, tls) as found:
        return found.admin.locate(request_id)


def children(pid: int) -> list[int]:
    return [
        int(text) for text in Path(f"/proc/{pid}/task/{pid}/children").read_text().split() if text
    ]

"""The only scheduler is killed in the middle of streams; the next one goes on with them.

Real daemons, the synthetic engine, SIGKILL. What the client has of both schedulers together is
compared with what one alone tells of the same request.
"""

import contextlib
import json
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.cluster.synthetic.test_cluster import LONG, STORY, WAIT_S, start
from tests.vllm.cluster import Cluster, descendants, logs, stop_cluster
from tests.waiting import wait_until

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "text": ("/v1/completions", {"prompt": STORY, **LONG}),
    "logprobs and stop": (
        "/v1/completions",
        {"prompt": STORY, **LONG, "logprobs": 2, "stop": ["zzz", "yyy"], "echo": False},
    ),
    "chat": (
        "/v1/chat/completions",
        {
            "messages": [{"role": "user", "content": STORY}],
            **LONG,
            "logprobs": True,
            "top_logprobs": 1,
            "return_token_ids": True,
        },
    ),
}
CASES["choices"] = ("/v1/chat/completions", {**CASES["chat"][1], "n": 2})
EXTRA = {"stream": True, "stream_options": {"include_usage": True}}


@dataclass
class Told:
    """What a client has heard, over all its connections."""

    request_id: str = ""
    last_id: str = ""
    documents: list[dict[str, Any]] = field(default_factory=list)
    done: bool = False

    def hear(self, response: httpx.Response, *, on_event: Callable[[int], None]) -> None:
        """Until the end of the stream, or of the connection."""
        assert response.status_code == 200, response.read()
        self.request_id = response.headers["x-pdd-request-id"]
        event_id = ""
        try:
            for line in response.iter_lines():
                if line.startswith("id: "):
                    event_id = line[4:]
                elif line == "data: [DONE]":
                    self.done = True
                elif line.startswith("data: "):
                    self.last_id = event_id  # an event counts when its data is there
                    self.documents.append(json.loads(line[6:]))
                    assert "error" not in self.documents[-1], self.documents[-1]
                    on_event(len(self.documents))
        except httpx.TransportError:
            pass

    def whole(self) -> dict[str, Any]:
        """All of it, but for what names this very request and its times."""
        choices = [choice for one in self.documents for choice in one["choices"]]
        (usage,) = [one["usage"] for one in self.documents if one.get("usage")]
        kept = ("path", "prefill_node", "decode_node", "transferred_bytes")
        return {
            "shape": {
                (one["id"] == self.documents[0]["id"], one["object"]) for one in self.documents
            },
            "created": len({one["created"] for one in self.documents}),
            "choices": [
                said([one for one in choices if one["index"] == index])
                for index in sorted({choice["index"] for choice in choices})
            ],
            "tokens": (usage["prompt_tokens"], usage["completion_tokens"]),
            "pdd": {name: usage["pdd"][name] for name in kept},
            "done": self.done,
        }


def said(choices: list[dict[str, Any]]) -> dict[str, Any]:
    """All that was told of one choice."""
    lists = [choice["logprobs"] for choice in choices if choice.get("logprobs")]
    return {
        "text": "".join(
            choice["text"] if "text" in choice else choice["delta"].get("content", "")
            for choice in choices
        ),
        "roles": [
            choice["delta"]["role"] for choice in choices if "role" in choice.get("delta", {})
        ],
        "token_ids": [token for choice in choices for token in choice.get("token_ids") or ()],
        "logprobs": {key: [x for one in lists for x in one[key]] for key in (lists or [{}])[0]},
        "finish": [choice["finish_reason"] for choice in choices if choice["finish_reason"]],
    }


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    step = ("--set", "faults.step_delay_s=0.01", "--set", "engine.enable_prefix_caching=false")
    running = start(tmp_path_factory, "resume", *step)
    try:
        yield running
    finally:
        stop_cluster(running)


@pytest.fixture(scope="module")
def uncut(cluster: Cluster) -> dict[str, dict[str, Any]]:
    """What each case says when nothing happens."""
    answers = {}
    for name in CASES:
        told = Told()
        ask(cluster, name, told)
        answers[name] = told.whole()
        assert answers[name]["done"]
    return answers


def ask(
    cluster: Cluster,
    case: str,
    told: Told,
    *,
    on_event: Callable[[int], None] = lambda _: None,
    **headers: str,
) -> None:
    path, body = CASES[case]
    url = f"{cluster.http}{path}"
    with httpx.stream(
        "POST", url, json={**body, **EXTRA}, headers=headers, timeout=WAIT_S
    ) as answer:
        told.hear(answer, on_event=on_event)


def resume(cluster: Cluster, told: Told) -> None:
    """As a client does: again and again, until somebody is there."""
    headers = {"Last-Event-ID": told.last_id} if told.last_id else {}
    url = f"{cluster.http}/v1/streams/{told.request_id}"

    def heard() -> bool:
        with (
            contextlib.suppress(httpx.TransportError),
            httpx.stream("GET", url, headers=headers, timeout=WAIT_S) as answer,
        ):
            told.hear(answer, on_event=lambda _: None)
            return True
        return False

    wait_until(heard, lambda: "a scheduler to answer\n" + logs(cluster.state_dir))


def kill_scheduler(cluster: Cluster) -> None:
    os.kill(scheduler_pid(cluster), signal.SIGKILL)


def scheduler_pid(cluster: Cluster) -> int:
    record = json.loads((cluster.state_dir / "cluster.json").read_text())
    pids = [
        pid
        for pid in descendants(record["supervisor_pid"])
        if b"\0--role\0scheduler\0" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]
    assert len(pids) == 1, pids
    return pids[0]


@pytest.mark.fault
@pytest.mark.parametrize(
    ("case", "event_count"), [("text", 1), ("choices", 60), ("logprobs and stop", 60), ("chat", 60)]
)
def test_a_stream_whose_scheduler_is_killed_goes_on_with_nothing_lost_or_doubled(
    case: str, event_count: int, cluster: Cluster, uncut: dict[str, dict[str, Any]]
) -> None:
    cluster.wait_until_ready()  # all nodes have found the scheduler that came after the last kill
    told = Told()

    def kill(count: int) -> None:
        if count == event_count:
            kill_scheduler(cluster)

    ask(cluster, case, told, on_event=kill)
    assert not told.done
    assert len(told.documents) < LONG["max_tokens"]
    resume(cluster, told)
    whole, expected = told.whole(), uncut[case]
    if case == "choices":  # computed anew, perhaps before a prefill node is there again
        del whole["pdd"]
        expected = {name: value for name, value in expected.items() if name != "pdd"}
    assert whole == expected
    cluster.wait_until_idle(within_s=WAIT_S)


@pytest.mark.fault
def test_a_whole_answer_that_is_asked_for_again_with_its_key_is_the_one_that_runs(
    cluster: Cluster, uncut: dict[str, dict[str, Any]]
) -> None:
    path, body = CASES["text"]
    key = {"Idempotency-Key": "again"}

    def post() -> httpx.Response:
        return httpx.post(f"{cluster.http}{path}", json=body, headers=key, timeout=WAIT_S)

    with ThreadPoolExecutor() as pool:
        first = pool.submit(post)
        cluster.wait_until_busy(within_s=WAIT_S)
        kill_scheduler(cluster)
        with pytest.raises(httpx.TransportError):
            first.result()

    def answered() -> httpx.Response | None:
        with contextlib.suppress(httpx.TransportError):
            return post()
        return None

    answer = wait_until(answered, lambda: "a scheduler to answer\n" + logs(cluster.state_dir))
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["text"] == uncut["text"]["choices"][0]["text"]
    log = (cluster.state_dir / "log" / "scheduler-0.log").read_text()
    request_id = answer.headers["x-pdd-request-id"]
    assert any("request_taken_over" in line and request_id in line for line in log.splitlines())
    cluster.wait_until_idle(within_s=WAIT_S)

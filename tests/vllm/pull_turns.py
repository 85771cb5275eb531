"""Random turns of random conversations, whose prefill node pulls what the decode node holds.

Two tenants have the same conversations. Turns follow each other, rewrite what was said, or are left
by their client at a random moment. Each answer is compared with a plain run of its prompt.

By hand, longer than a test may: ``python -m tests.vllm.pull_turns STATE_DIR SECONDS SEED``.
"""

import random
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any

import httpx

from tests.vllm.cluster import Cluster, start_cluster, stop_cluster

BLOCK = 128
TENANTS = ("mine", "theirs")
HISTORY_TOKENS_MAX = 1400
TOLERANCE = 0.4
"""Of a log probability. What decoding has computed of a prefix and what computing a prompt in
chunks does differ in low bits, which a CPU's bfloat16 makes this much of; wrong blocks are off by
whole units."""
TOP_COUNT = 5

Answer = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """An answer beside that of a plain run."""

    answer: Answer
    plain: Answer

    def fault(self) -> str:
        """Where they differ by more than arithmetic; empty if they do not."""
        return difference(self.answer, self.plain)


def difference(answer: Answer, plain: Answer) -> str:
    """Token by token as long as they say the same, and at the first that is another: there both
    must be nearly as likely."""
    one, other = (each["choices"][0]["logprobs"] for each in (answer, plain))
    ids, plain_ids = (each["choices"][0]["token_ids"] for each in (answer, plain))
    for at, (token_id, plain_id) in enumerate(zip(ids, plain_ids, strict=False)):
        said, said_p = one["tokens"][at], one["token_logprobs"][at]
        known_p = other["token_logprobs"][at]
        if token_id != plain_id:
            known_p = other["top_logprobs"][at].get(said, -99.0)
        if abs(known_p - said_p) > TOLERANCE:
            return f"token {at} is {said!r} ({said_p:.2f}), in a plain run {known_p:.2f}"
        if token_id != plain_id:
            gap = other["token_logprobs"][at] - known_p
            return f"token {at}: {said!r} is {gap:.2f} behind" if gap > TOLERANCE else ""
    return ""


@dataclass(slots=True)
class Conversation:
    """One of one tenant's. ``history``: what was said so far, both sides."""

    tenant: str
    number: int
    rng: random.Random
    history: list[int] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)

    def next_kind(self) -> str:
        """Of a turn. All come in every six of them, a plain one first."""
        if not self.kinds:
            self.kinds = ["follows", "follows", "rewrites", "leaves", "deletes"]
            self.rng.shuffle(self.kinds)
            self.kinds.append("follows")
        return self.kinds.pop()


class PullTurns:
    """Several conversations at a time on one cluster, where ``scheduler.path.pull`` is ``always``
    and no follow-up turn stays on the decode node."""

    def __init__(self, cluster: Cluster, *, seed: int, conversation_count: int = 4) -> None:
        self._cluster = cluster
        self._seed = seed
        self._lock = threading.Lock()
        self._sent: dict[str, list[list[int]]] = {tenant: [] for tenant in TENANTS}
        self._plain_count = 0
        self.counts = Counter[str]()
        self.compared: list[Compared] = []
        self.faults: list[str] = []
        self._conversations = [
            Conversation(TENANTS[index % 2], index // 2, random.Random(f"{seed} {index}"))
            for index in range(conversation_count)
        ]

    def run(self, *, turns: int = sys.maxsize, seconds: float = 1e9) -> None:
        """So many turns of each conversation, or until so much time has passed."""
        end_s = time.monotonic() + seconds

        def converse(one: Conversation) -> None:
            for _ in range(turns):
                if time.monotonic() > end_s:
                    break
                self._turn(one)

        with ThreadPoolExecutor(len(self._conversations)) as pool:
            for done in [pool.submit(converse, one) for one in self._conversations]:
                done.result()

    # --- inside ------------------------------------------------------------------------------

    def _turn(self, one: Conversation) -> None:
        rng = one.rng
        kind = one.next_kind()
        if len(one.history) > HISTORY_TOKENS_MAX or not one.history:
            # The same for both tenants, and each number another one.
            one.history = _tokens(random.Random(f"{self._seed} opening {one.number}"), 150)
            kind = "follows"
        history = list(one.history)
        if kind == "rewrites":
            history[rng.randrange(len(history))] = rng.randrange(1000, 6000)
        prompt = history + _tokens(rng, rng.randint(150, 330))
        # The answer goes on into the next block: one that the prefill node will lack.
        answer_tokens = BLOCK - len(prompt) % BLOCK + 2
        while answer_tokens > 40:
            prompt.append(rng.randrange(1000, 6000))
            answer_tokens -= 1
        self._count(kind)
        with self._lock:
            known = list(self._sent[one.tenant])
            self._sent[one.tenant].append(prompt)
        if kind in ("leaves", "deletes"):
            self._leave(one, prompt, answer_tokens, deletes=kind == "deletes")
            return
        answer = self._complete(prompt, answer_tokens, tenant=one.tenant, logprobs=1)
        usage = answer["usage"]
        one.history = prompt + answer["choices"][0]["token_ids"]
        with self._lock:
            self._sent[one.tenant].append(one.history)
            self._plain_count += 1
            salt = f"plain {self._plain_count}"
        self._count(usage["pdd"]["path"])
        self._count("pulls", usage["pdd"]["pulled_tokens"] > 0)
        self._count("pulled tokens", usage["pdd"]["pulled_tokens"])
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        reusable = max((_common(prompt, each) for each in known), default=0)
        if cached > reusable:
            self._fault(f"{one.tenant} has {cached} tokens from a cache, has sent {reusable} of it")
        plain = self._complete(prompt, answer_tokens, salt=salt, logprobs=TOP_COUNT)
        if plain["usage"]["prompt_tokens_details"]["cached_tokens"]:
            self._fault("a plain run had something from a cache")
        pair = Compared(answer=answer, plain=plain)
        with self._lock:
            self.compared = [*self.compared[-200:], pair]
        self._count("compared")
        ids, plain_ids = (each["choices"][0]["token_ids"] for each in (answer, plain))
        self._count("alike to the end", ids == plain_ids)
        if fault := pair.fault():
            self._fault(f"{fault}; prompt {len(prompt)}, {kind}, {usage}")

    def _complete(
        self, prompt: list[int], max_tokens: int, *, tenant: str = "", salt: str = "", logprobs: int
    ) -> Answer:
        fields: dict[str, Any] = {"cache_salt": salt} if salt else {}
        return self._cluster.complete(
            prompt,
            tenant=tenant or None,
            max_tokens=max_tokens,
            temperature=0.0,
            ignore_eos=True,
            logprobs=logprobs,
            **fields,
        )

    def _leave(
        self, one: Conversation, prompt: list[int], max_tokens: int, *, deletes: bool
    ) -> None:
        """At a random moment: before any token, or after some."""
        body = {
            "prompt": prompt,
            "max_tokens": max_tokens,
            "temperature": 0.0,
            "ignore_eos": True,
            "stream": True,
        }
        url, headers = self._cluster.http, {"x-pdd-tenant": one.tenant}
        with (
            httpx.Client(timeout=240.0) as client,
            client.stream("POST", f"{url}/v1/completions", json=body, headers=headers) as response,
        ):
            lines = response.iter_lines()  # kept: httpx closes the connection when it is dropped
            events = one.rng.choice((0, 0, 0, 1, 3, 10))
            if not events:
                time.sleep(one.rng.uniform(0.0, 1.0))
            while events > 0:
                events -= next(lines, "data: ").startswith("data: ")
            if deletes:
                request_id = response.headers["x-pdd-request-id"]
                gone = client.delete(f"{url}/v1/streams/{request_id}", headers=headers)
                if gone.status_code >= 500:
                    self._fault(f"DELETE: {gone.status_code} {gone.text}")

    def _count(self, what: str, count: int = 1) -> None:
        with self._lock:
            self.counts[what] += count

    def _fault(self, text: str) -> None:
        with self._lock:
            self.faults.append(text)


def _tokens(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(1000, 6000) for _ in range(count)]


def _common(one: list[int], other: list[int]) -> int:
    pairs = zip(one, other, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


PULLING = {"scheduler.path.pull": "always", "scheduler.path.local_stall_s": "0.001"}
"""What such a cluster is set to."""


def main(state_dir: str, seconds: str, seed: str) -> int:
    """A cluster of its own; prints what happened every half minute."""
    options = [part for key, value in PULLING.items() for part in ("--set", f"{key}={value}")]
    cluster = start_cluster(Path(state_dir), *options)
    try:
        turns = PullTurns(cluster, seed=int(seed), conversation_count=6)
        end_s = time.monotonic() + float(seconds)
        while (left_s := end_s - time.monotonic()) > 0 and not turns.faults:
            turns.run(seconds=min(left_s, 30.0))
            print(dict(turns.counts), pulls_of(cluster), flush=True)
            cluster.wait_until_idle(within_s=30.0)
        print(*turns.faults, sep="\n")
        return 1 if turns.faults else 0
    finally:
        stop_cluster(cluster)


def pulls_of(cluster: Cluster) -> dict[str, float]:
    """The prefill nodes' counters of pulls."""
    text = httpx.get(f"{cluster.http}/metrics", timeout=10.0).text
    lines = [line for line in text.splitlines() if "_pulls_total{" in line and "prefill" in line]
    return {line.split("{")[0]: float(line.rpartition(" ")[2]) for line in lines}


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

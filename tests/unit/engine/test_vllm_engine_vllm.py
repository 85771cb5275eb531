"""VllmEngine with a scripted vLLM: whose fault an error is, and when a job is ready."""

import warnings
from collections.abc import AsyncGenerator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

with warnings.catch_warnings():
    # vLLM's own imports warn; here warnings are errors.
    warnings.simplefilter("ignore")
    from vllm.exceptions import VLLMValidationError
    from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

    from pdd.engine.vllm_engine import VllmEngine, _next_output

from pdd.connector.link_messages import (
    AskConnections,
    Connections,
    ConnectRank,
    Counters,
    DisconnectRank,
    LinkMessage,
    LoadFailed,
    Progress,
    Pulled,
    Ready,
)
from pdd.core.errors import InvalidRequest
from pdd.engine.port import EngineFailed, JobFacts
from pdd.transfer.pairing import RankConnection, RankLink
from pdd.transfer.values import Connection, Peer, PeerId
from tests.builders import make_identity

KEY = "r1/0"
BLOCK_SIZE = 16


def caused(cause: Exception) -> EngineGenerateError:
    """As AsyncLLM.generate raises what went wrong inside it."""
    error = EngineGenerateError()
    error.__cause__ = cause
    return error


async def raising(error: Exception) -> AsyncGenerator[Any, None]:
    raise error
    yield


class TestErrors:
    @pytest.mark.parametrize(
        ("error", "kind", "words"),
        [
            (VLLMValidationError("top_k is odd"), InvalidRequest, "top_k is odd"),
            (caused(ValueError("no such token")), InvalidRequest, "no such token"),
            (caused(VLLMValidationError("too long")), InvalidRequest, "too long"),
            (caused(KeyError("cache")), EngineFailed, r"failed at this request: KeyError"),
            (EngineGenerateError(), EngineFailed, "failed at this request"),
            (EngineDeadError(), EngineFailed, "vLLM's engine died"),
        ],
        ids=["validation", "value", "wrapped validation", "bug", "no cause", "dead"],
    )
    async def test_are_told_apart_by_whose_fault_they_are(
        self, error: Exception, kind: type[Exception], words: str
    ) -> None:
        with pytest.raises(kind, match=words) as caught:
            await _next_output(raising(error))
        assert type(caught.value) is kind
        assert caught.value.__cause__ is error

    async def test_others_are_bugs_and_pass_through(self) -> None:
        with pytest.raises(ZeroDivisionError):
            await _next_output(raising(ZeroDivisionError()))

    async def test_the_end_of_the_stream_is_none(self) -> None:
        async def two() -> AsyncGenerator[Any, None]:
            yield "a"
            yield "b"

        stream = two()
        assert [await _next_output(stream) for _ in range(3)] == ["a", "b", None]


class Engine:
    """A VllmEngine without vLLM; ranks speak through it."""

    def __init__(self, *, ranks: int) -> None:
        self.now_s = 10.0
        self.engine = VllmEngine(
            settings=SimpleNamespace(tensor_parallel_size=ranks, rpc_dir=Path("none")),  # type: ignore[arg-type]
            identity=make_identity("decode-0"),
            tokenizer=None,  # type: ignore[arg-type]
            clock=lambda: self.now_s,
        )
        self.ready: list[tuple[str, int, float, str]] = []
        self.engine.on_ready(self._on_ready)
        self.engine._facts[KEY] = JobFacts()
        self.engine._info = SimpleNamespace(block_size=BLOCK_SIZE)  # type: ignore[assignment]

    def _on_ready(self, key: str, facts: JobFacts) -> None:
        self.ready.append(
            (key, facts.transferred_bytes, facts.transfer_s, facts.load_failed_reason)
        )

    def say(self, rank: int, message: LinkMessage, *, after_s: float = 0.0) -> None:
        self.now_s += after_s
        self.engine._on_link_message(rank, message)


def arrived(transferred_bytes: int = 1000, transfer_s: float = 0.5, *, key: str = KEY) -> Ready:
    return Ready(key=key, transferred_bytes=transferred_bytes, transfer_s=transfer_s)


class TestReadiness:
    async def test_one_rank_is_enough_where_there_is_one(self) -> None:
        engine = Engine(ranks=1)
        engine.say(0, arrived())
        assert engine.ready == [(KEY, 1000, 0.5, "")]

    @pytest.mark.parametrize("first", [0, 1])
    async def test_of_two_ranks_the_slower_decides_and_it_is_told_once(self, first: int) -> None:
        engine = Engine(ranks=2)
        engine.say(first, arrived(1000, 0.5))
        assert engine.ready == []
        engine.say(1 - first, arrived(2000, 1.5), after_s=1.0)
        assert engine.ready == [(KEY, 3000, 1.5, "")]
        assert engine.engine.facts(KEY).ready_s == 11.0

    @pytest.mark.parametrize("failed_first", [True, False])
    async def test_one_ranks_failed_load_is_the_jobs(self, failed_first: bool) -> None:
        engine = Engine(ranks=2)
        messages: list[LinkMessage] = [
            LoadFailed(key=KEY, reason="peer_lost", transferred_bytes=10),
            arrived(1000, 0.5),
        ]
        for rank, message in enumerate(messages if failed_first else reversed(messages)):
            assert engine.ready == []
            engine.say(rank, message)
        assert engine.ready == [(KEY, 1010, 0.5, "peer_lost")]

    async def test_a_job_that_is_gone_is_nobodys(self) -> None:
        engine = Engine(ranks=1)
        engine.engine.forget(KEY)
        engine.say(0, arrived())
        engine.say(0, LoadFailed(key="r9/0", reason="deadline", transferred_bytes=0))
        assert engine.ready == []
        assert engine.engine.facts(KEY) == JobFacts()


def pulled(block_count: int, *, failed_reason: str = "", key: str = KEY) -> Pulled:
    return Pulled(
        key=key, block_count=block_count, size_bytes=500, pull_s=0.25, failed_reason=failed_reason
    )


class TestPulls:
    async def test_what_is_missing_on_one_rank_is_computed_on_all(self) -> None:
        engine = Engine(ranks=2)
        engine.say(0, pulled(3))
        assert "pulls_completed" not in engine.engine.counters()
        engine.say(1, pulled(1, failed_reason="peer_lost"))
        facts = engine.engine.facts(KEY)
        assert (facts.pulled_tokens, facts.pulled_bytes) == (BLOCK_SIZE, 1000)
        assert facts.pull_s == 0.25
        assert engine.engine.counters() == {"pulled_bytes": 1000, "pulls_failed": 1}
        assert engine.ready == [], "that is for decode jobs"

    async def test_what_the_lender_holds_no_more_is_counted_apart(self) -> None:
        engine = Engine(ranks=1)
        engine.say(0, pulled(0, failed_reason="out_of_range"))
        assert engine.engine.counters()["pulls_not_held"] == 1
        engine.say(0, pulled(3, key="r9/0"))
        assert engine.engine.counters()["pulls_not_held"] == 1, "a job that is gone is nobody's"


async def test_progress_is_summed_and_starts_the_clock_once() -> None:
    engine = Engine(ranks=1)
    for start, end in ((4, 20), (20, 30)):
        engine.say(
            0,
            Progress(key=KEY, start=start, end=end, prompt_token_count=30, cached_token_count=4),
            after_s=1.0,
        )
    facts = engine.engine.facts(KEY)
    assert (facts.cached_tokens, facts.computed_prompt_tokens) == (4, 26)
    assert facts.started_s == 11.0


async def test_what_forks_compute_again_is_told_with_their_job_and_apart() -> None:
    """Prompt of 20 tokens, 16 of them in the cache; a decode job's fork has its first token too."""
    engine = Engine(ranks=1)
    engine.engine._fork_facts[f"{KEY}#1"] = engine.engine._facts[KEY], 20
    engine.say(
        0,
        Progress(key=f"{KEY}#1", start=16, end=21, prompt_token_count=21, cached_token_count=16),
    )
    facts = engine.engine.facts(KEY)
    assert (facts.computed_prompt_tokens, facts.forked_prompt_tokens) == (4, 4)
    assert facts.cached_tokens == 0, "the prompt's own cache hits are those of its trunk"


async def test_the_latest_counters_are_kept() -> None:
    engine = Engine(ranks=1)
    for value in (1.0, 2.0):
        engine.say(0, Counters(values={"sent_bytes": value}))
    assert engine.engine.counters() == {"sent_bytes": 2.0}


class RecordingLink:
    """Stands for the link to two worker halves."""

    def __init__(self) -> None:
        self.sent: list[tuple[int | str, LinkMessage]] = []

    def send(self, rank: int, message: LinkMessage) -> None:
        self.sent.append((rank, message))

    def send_all(self, message: LinkMessage) -> None:
        self.sent.append(("all", message))


class TestPeers:
    async def test_every_rank_is_told_of_its_own_peer(self) -> None:
        engine, link = Engine(ranks=2).engine, RecordingLink()
        engine._link = link  # type: ignore[assignment]
        links = [
            RankLink(
                own_rank=rank,
                peer=Peer(
                    identity=make_identity("prefill-0", boot_epoch=3, uuid="u"),
                    rank=rank,
                    control_address="p:1",
                    ucx_address=b"ucx %d" % rank,
                ),
            )
            for rank in range(2)
        ]
        engine.connect(links)
        engine.disconnect(links[1:])
        fields: dict[str, Any] = {
            "peer_name": "prefill-0",
            "peer_uuid": "u",
            "peer_boot_epoch": 3,
            "peer_address": "p:1",
        }
        assert link.sent == [
            (0, ConnectRank(**fields, peer_rank=0, peer_ucx_address=b"ucx 0")),
            (1, ConnectRank(**fields, peer_rank=1, peer_ucx_address=b"ucx 1")),
            (1, DisconnectRank(**fields, peer_rank=1, peer_ucx_address=b"ucx 1")),
        ]

    async def test_the_ranks_are_asked_and_their_latest_answers_are_given(self) -> None:
        scripted, link = Engine(ranks=2), RecordingLink()
        scripted.engine._link = link  # type: ignore[assignment]
        assert scripted.engine.connections() == ()
        assert link.sent == [("all", AskConnections())]
        for rank in (1, 0):
            scripted.say(
                rank,
                Connections(
                    peer_uuids=["u"],
                    peer_boot_epochs=[3],
                    peer_ranks=[rank],
                    lanes=["tcp/lo,shared_memory"],
                    received_bytes=[rank],
                    bytes_per_s=[2e9],
                ),
            )
        assert scripted.engine.connections() == tuple(
            RankConnection(
                own_rank=rank,
                connection=Connection(
                    peer=PeerId(uuid="u", boot_epoch=3, rank=rank),
                    lanes=("tcp/lo", "shared_memory"),
                    received_bytes=rank,
                    bytes_per_s=2e9,
                ),
            )
            for rank in range(2)
        )

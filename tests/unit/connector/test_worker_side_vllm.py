"""The worker half between a scripted transfer engine and a scripted link; no vLLM engine."""

import threading
import warnings
from collections.abc import Callable
from typing import Any

import pytest

with warnings.catch_warnings():
    # vLLM's own imports warn (the halves' messages derive from its classes); here that is an error.
    warnings.simplefilter("ignore")
    import pdd.connector.metadata  # noqa: F401

from pdd.connector import worker_book, worker_side
from pdd.connector.link_messages import (
    AskConnections,
    AskTable,
    Connections,
    ConnectRank,
    Counters,
    DisconnectRank,
    DropSource,
    FirstToken,
    LinkMessage,
    LoadFailed,
    Progress,
    Pulled,
    Ready,
)
from pdd.connector.metadata import PromptProgress, SourceBlocks, StepMetadata, TargetBlocks
from pdd.connector.params import SourceNode
from pdd.connector.worker_settings import WorkerSettings
from pdd.connector.worker_side import WorkerSide
from pdd.transfer.settings import TransferSettings
from pdd.transfer.values import (
    Connection,
    Peer,
    PeerId,
    Reason,
    SourceReleased,
    TargetCancelled,
    TargetCompleted,
    TargetFailed,
    TransferEvent,
)
from tests.builders import make_identity

SOURCE = SourceNode(
    name="prefill-0",
    uuid="u",
    boot_epoch=3,
    control_address="p:1",
    ucx_addresses=(b"rank 0", b"rank 1"),
)
KEY = "r1/0"


class ScriptedEngine:
    """Does nothing by itself; each poll gives the next batch of events."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.batches: list[list[TransferEvent]] = []
        self.peers: list[Any] = []
        self.counts: dict[str, int | float] = {}
        self.open: tuple[Connection, ...] = ()
        self.looked = threading.Event()

    def poll(self) -> list[TransferEvent]:
        self.looked.set()
        return self.batches.pop(0) if self.batches else []

    def target_open(self, key: str, *, source: Any, **fields: Any) -> None:
        self.peers.append(source)
        self.calls.append(("target_open", key, fields["first_index"], fields["block_ids"]))

    def target_cancel(self, key: str) -> None:
        self.calls.append(("target_cancel", key))

    def source_open(self, key: str, *, deadline_s: float) -> None:
        self.calls.append(("source_open", key))

    def source_append(
        self, key: str, *, first_index: int, block_ids: tuple[int, ...], last: bool
    ) -> None:
        self.calls.append(("source_append", key, first_index, block_ids, last))

    def source_abort(self, key: str, why: str) -> None:
        self.calls.append(("source_abort", key, why))

    def stats(self) -> dict[str, int | float]:
        return self.counts

    def connect(self, peer: Peer) -> None:
        self.calls.append(("connect", peer))

    def disconnect(self, peer: Peer) -> None:
        self.calls.append(("disconnect", peer))

    def look(self, answer: Callable[[tuple[Connection, ...]], None]) -> None:
        answer(self.open)


class ScriptedLink:
    def __init__(self) -> None:
        self.sent: list[LinkMessage] = []

    def send(self, message: LinkMessage) -> None:
        self.sent.append(message)


class Worker:
    """A WorkerSide with everything that goes in and out."""

    def __init__(self, *, rank: int = 0) -> None:
        self.side = WorkerSide(
            settings=WorkerSettings(
                socket_name="none",
                secret="none",
                identity=make_identity("decode-0"),
                transfer=TransferSettings(),
            ),
            rank=rank,
        )
        self.engine = ScriptedEngine()
        self.link = ScriptedLink()
        self.side._engine = self.engine  # type: ignore[assignment]
        self.side._link = self.link  # type: ignore[assignment]

    def step(self, **fields: Any) -> None:
        step = StepMetadata(**fields)
        self.side.begin_step(step)
        self.side.fence_preempted(step)
        self.side.end_step(step)

    def open_target(self, key: str = KEY) -> None:
        self.step(opened_targets=[target(key)])

    def open_source(self, key: str = KEY) -> None:
        self.step(computed_blocks=[source_blocks(key)])

    def token(self, token_id: int = 7, *, key: str = KEY) -> None:
        self.side._on_link_message(FirstToken(key=key, token_id=token_id))

    def results(
        self, *events: TransferEvent, finished: tuple[str, ...] = ()
    ) -> tuple[set[str], set[str]]:
        """``(sent, received)`` after these events of the transfer engine."""
        self.engine.batches.append(list(events))
        return self.side.results(set(finished))

    def tokens(self) -> dict[str, int]:
        reported = self.side.take_metadata()
        return {} if reported is None else reported.first_tokens

    def reported(self) -> list[LinkMessage]:
        """Messages about outcomes since the last call."""
        sent, self.link.sent[:] = list(self.link.sent), []
        return sent


def target(key: str = KEY, *, request_id: str = "e1", **fields: Any) -> TargetBlocks:
    return TargetBlocks(
        key=key,
        request_id=request_id,
        source=SOURCE,
        first_index=2,
        block_ids=(40, 41, 42),
        deadline_s=9.0,
        **fields,
    )


def source_blocks(
    key: str = KEY, *, request_id: str = "e1", opens: bool = True, last: bool = True
) -> SourceBlocks:
    return SourceBlocks(
        key=key,
        request_id=request_id,
        first_index=0,
        block_ids=(5, 6),
        last=last,
        opens=opens,
        deadline_s=9.0,
    )


def completed(key: str = KEY) -> TargetCompleted:
    return TargetCompleted(key=key, transferred_bytes=4096, duration_s=0.5)


def failed(*indices: int, key: str = KEY) -> TargetFailed:
    return TargetFailed(
        key=key, bad_indices=indices, reason=Reason.PEER_LOST, transferred_bytes=1024
    )


def released(key: str = KEY) -> SourceReleased:
    return SourceReleased(key=key, reason=Reason.COMPLETED, sent_bytes=1)


NOTHING: tuple[set[str], set[str]] = (set(), set())


class TestPulls:
    """A prefill job has a source of its own, and a target until its prefix is there."""

    def pulling(self) -> Worker:
        worker = Worker()
        opened = SourceBlocks(
            key=KEY,
            request_id="e1",
            first_index=0,
            block_ids=(),
            last=False,
            opens=True,
            deadline_s=9.0,
        )
        worker.step(ready_blocks=[opened], opened_targets=[target(is_pull=True)])
        return worker

    def test_it_waits_for_no_first_token_and_goes_on_as_a_prefill_job(self) -> None:
        worker = self.pulling()
        assert worker.results(completed()) == (set(), {"e1"})
        assert worker.tokens() == {}
        (told,) = worker.reported()
        assert isinstance(told, Pulled)
        assert (told.block_count, told.size_bytes, told.failed_reason) == (3, 4096, "")
        worker.step(computed_blocks=[source_blocks(opens=False)])
        assert worker.results(finished=("e1",)) == NOTHING
        assert worker.results(released()) == ({"e1"}, set())

    def test_what_did_not_come_is_named_and_what_stands_before_it_counts(self) -> None:
        worker = self.pulling()
        assert worker.results(failed(3, 4)) == (set(), {"e1"})
        assert worker.side.take_failed_blocks() == {41, 42}
        (told,) = worker.reported()
        assert isinstance(told, Pulled)
        assert (told.block_count, told.failed_reason) == (1, "peer_lost")

    @pytest.mark.parametrize("source_first", [True, False])
    def test_a_cancelled_one_is_sent_when_source_and_target_are_quiet(
        self, source_first: bool
    ) -> None:
        worker = self.pulling()
        worker.step(cancelled_targets=[KEY], aborted_sources=[KEY])
        assert ("target_cancel", KEY) in worker.engine.calls
        assert ("source_abort", KEY, "prefill was aborted") in worker.engine.calls
        events = [released(), TargetCancelled(key=KEY)]
        first, second = events if source_first else reversed(events)
        early = worker.results(first, finished=("e1",))
        assert early[0] == set(), "something may yet touch its blocks"
        late = worker.results(second)
        assert late[0] == {"e1"}
        assert early[1] | late[1] == {"e1"}, "the scheduler half keeps it from vLLM"
        assert worker.reported() == []


class TestLoans:
    """A decode job that waits for its blocks lends what it holds of the prompt."""

    def lending(self, *block_ids: int) -> Worker:
        worker = Worker()
        worker.step(opened_targets=[target(lent_block_ids=block_ids)])
        return worker

    def test_it_is_on_offer_from_the_prompts_first_block_on(self) -> None:
        worker = self.lending(30, 31)
        assert worker.engine.calls[:2] == [
            ("source_open", KEY),
            ("source_append", KEY, 0, (30, 31), True),
        ]

    def test_one_of_nothing_is_on_offer_too_so_that_who_asks_is_told(self) -> None:
        assert ("source_append", KEY, 0, (), True) in self.lending().engine.calls

    def test_the_job_goes_on_only_when_nothing_reads_what_it_lends(self) -> None:
        worker = self.lending(30, 31)
        worker.token(7)
        assert worker.results(completed()) == NOTHING
        assert worker.engine.calls[-1] == ("source_abort", KEY, "the loan is over")
        assert worker.results(released()) == (set(), {"e1"})
        assert worker.tokens() == {"e1": 7}
        assert worker.results(finished=("e1",)) == NOTHING, "nobody waits for its sending"

    def test_one_that_was_fetched_is_not_ended_again(self) -> None:
        worker = self.lending(30, 31)
        worker.token(7)
        assert worker.results(released()) == NOTHING
        assert worker.results(completed()) == (set(), {"e1"})
        assert "source_abort" not in {call[0] for call in worker.engine.calls}

    def test_a_cancelled_job_is_received_when_loan_and_target_are_quiet(self) -> None:
        worker = self.lending(30, 31)
        worker.step(cancelled_targets=[KEY])
        assert ("source_abort", KEY, "the loan is over") in worker.engine.calls
        assert worker.results(TargetCancelled(key=KEY), finished=("e1",)) == NOTHING
        assert worker.results(released()) == (set(), {"e1"})


class TestReceived:
    def test_a_job_is_reported_once_when_blocks_and_first_token_are_there(self) -> None:
        worker = Worker()
        worker.open_target()
        assert worker.engine.calls == [("target_open", KEY, 2, (40, 41, 42))]
        assert worker.results(completed()) == NOTHING
        assert worker.reported() == []
        worker.token(7)
        assert worker.results() == (set(), {"e1"})
        assert worker.tokens() == {"e1": 7}
        assert worker.reported() == [Ready(key=KEY, transferred_bytes=4096, transfer_s=0.5)]
        assert worker.results(completed()) == NOTHING
        assert worker.tokens() == {}
        assert worker.side.take_failed_blocks() == set()

    def test_the_first_token_may_come_before_the_blocks(self) -> None:
        worker = Worker()
        worker.open_target()
        worker.token(7)
        assert worker.results() == NOTHING
        assert worker.tokens() == {}
        assert worker.results(completed()) == (set(), {"e1"})
        assert worker.tokens() == {"e1": 7}

    def test_the_first_token_may_come_before_the_job_has_reserved_blocks(self) -> None:
        worker = Worker()
        worker.token(7)
        worker.open_target()
        assert worker.results(completed()) == (set(), {"e1"})
        assert worker.tokens() == {"e1": 7}

    def test_early_first_tokens_are_bounded_and_the_oldest_goes(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(worker_book, "EARLY_FIRST_TOKENS_MAX", 2)
        worker = Worker()
        for index in range(3):
            worker.token(index, key=f"r{index}/0")
        assert dict(worker.side._book._first_tokens) == {"r1/0": 1, "r2/0": 2}

    def test_a_failed_load_names_the_blocks_and_is_told_to_the_daemon(self) -> None:
        worker = Worker()
        worker.open_target()
        worker.token(7)
        assert worker.results(failed(2, 4)) == (set(), {"e1"})
        assert worker.side.take_failed_blocks() == {40, 42}
        assert worker.side.take_failed_blocks() == set()
        assert worker.tokens() == {"e1": 7}
        assert worker.reported() == [
            LoadFailed(key=KEY, reason="peer_lost", transferred_bytes=1024)
        ]

    def test_a_failed_load_waits_for_the_first_token_too(self) -> None:
        worker = Worker()
        worker.open_target()
        assert worker.results(failed(2)) == NOTHING
        assert worker.side.take_failed_blocks() == set()
        worker.token()
        assert worker.results() == (set(), {"e1"})
        assert worker.side.take_failed_blocks() == {40}

    def test_an_outcome_of_an_unknown_job_is_ignored(self) -> None:
        assert Worker().results(completed("r9/0"), released("r9/0")) == NOTHING

    def test_the_source_is_the_rank_of_ones_own_number(self) -> None:
        worker = Worker(rank=1)
        worker.open_target()
        (peer,) = worker.engine.peers
        assert (peer.rank, peer.ucx_address, peer.control_address) == (1, b"rank 1", "p:1")
        assert (peer.identity.name, peer.identity.boot_epoch) == ("prefill-0", 3)


class TestCancelledTargets:
    @pytest.mark.parametrize("token_first", [True, False], ids=["after the token", "before it"])
    def test_a_cancelled_job_is_reported_when_nothing_can_write_any_more(
        self, token_first: bool
    ) -> None:
        worker = Worker()
        worker.open_target()
        if token_first:
            worker.token()
        worker.step(cancelled_targets=[KEY])
        assert worker.engine.calls[-1] == ("target_cancel", KEY)
        assert worker.results() == NOTHING, "its blocks may still be written"
        if not token_first:
            worker.token()
        assert worker.results(TargetCancelled(key=KEY)) == (set(), {"e1"})
        assert worker.tokens() == {}
        assert worker.reported() == []
        assert worker.results() == NOTHING

    @pytest.mark.parametrize("outcome", [completed(), failed(2, 3, 4)], ids=["done", "failed"])
    def test_an_outcome_that_was_on_its_way_ends_it_silently(self, outcome: TransferEvent) -> None:
        worker = Worker()
        worker.open_target()
        worker.step(cancelled_targets=[KEY])
        assert worker.results(outcome, TargetCancelled(key=KEY)) == (set(), {"e1"})
        assert worker.side.take_failed_blocks() == set()
        assert worker.reported() == []

    def test_an_outcome_that_waits_for_the_first_token_is_enough(self) -> None:
        worker = Worker()
        worker.open_target()
        assert worker.results(completed()) == NOTHING
        worker.step(cancelled_targets=[KEY])
        assert worker.results() == (set(), {"e1"})

    @pytest.mark.parametrize("opened", [True, False], ids=["opened", "never opened"])
    @pytest.mark.parametrize("late", [True, False], ids=["late token", "early token"])
    def test_its_first_token_does_not_stay(self, opened: bool, late: bool) -> None:
        worker = Worker()
        if opened:
            worker.open_target()
        if not late:
            worker.token()
        worker.step(cancelled_targets=[KEY])
        worker.results(TargetCancelled(key=KEY))
        if late:
            worker.token()
        assert not worker.side._book._first_tokens

    def test_a_token_said_twice_does_not_stay_after_the_end(self) -> None:
        worker = Worker()
        worker.open_target()
        worker.token()
        worker.results(completed())
        worker.token()
        assert not worker.side._book._first_tokens

    def test_what_is_remembered_of_ended_jobs_is_bounded(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(worker_book, "GONE_TARGETS_MAX", 2)
        worker = Worker()
        worker.step(cancelled_targets=[f"r{index}/0" for index in range(5)])
        assert list(worker.side._book._gone_targets) == ["r3/0", "r4/0"]


class TestSent:
    def test_blocks_are_offered_in_order_and_opened_once(self) -> None:
        worker = Worker()
        worker.step(
            ready_blocks=[source_blocks(last=False)], computed_blocks=[source_blocks(opens=False)]
        )
        assert worker.engine.calls == [
            ("source_open", KEY),
            ("source_append", KEY, 0, (5, 6), False),
            ("source_append", KEY, 0, (5, 6), True),
        ]

    def test_released_before_finished(self) -> None:
        worker = Worker()
        worker.open_source()
        assert worker.results(released()) == NOTHING
        assert worker.results(finished=("e1",)) == ({"e1"}, set())
        assert worker.results(released(), finished=("e1",)) == NOTHING

    def test_finished_before_released(self) -> None:
        worker = Worker()
        worker.open_source()
        assert worker.results(finished=("e1", "somebody else")) == NOTHING
        assert worker.results(released()) == ({"e1"}, set())
        assert worker.results(released()) == NOTHING

    def test_an_aborted_job_is_not_waited_for(self) -> None:
        worker = Worker()
        worker.open_source()
        worker.step(aborted_sources=[KEY])
        assert worker.engine.calls[-1] == ("source_abort", KEY, "prefill was aborted")
        assert worker.results(finished=("e1",)) == NOTHING, "its blocks may still be read"
        assert worker.results(released()) == ({"e1"}, set())

    def test_a_dropped_source_is_aborted(self) -> None:
        worker = Worker()
        worker.open_source()
        worker.side._on_link_message(DropSource(key=KEY, reason="nobody wants it"))
        assert worker.engine.calls[-1] == ("source_abort", KEY, "nobody wants it")

    @pytest.mark.parametrize("finished", [(), ("e1",)], ids=["released", "reported"])
    def test_dropping_what_is_released_already_aborts_nothing(
        self, finished: tuple[str, ...]
    ) -> None:
        worker = Worker()
        worker.open_source()
        worker.results(released(), finished=finished)
        worker.side._on_link_message(DropSource(key=KEY, reason="nobody wants it"))
        assert not any(call[0] == "source_abort" for call in worker.engine.calls)


class TestEmptySteps:
    """vLLM takes one after another while it waits; each waits for news, not the next for time."""

    def test_waits_and_returns_with_the_news(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(worker_side, "_EMPTY_STEP_S", 60.0)
        worker = Worker()
        worker.open_target()
        worker.step(is_empty=True)
        worker.engine.batches += [[], [completed()]]
        worker.side._on_link_message(FirstToken(key=KEY, token_id=7))
        worker.engine.looked.clear()
        posting = threading.Thread(target=self.post_when_waited_for, args=(worker,))
        posting.start()
        assert worker.side.results(set()) == (set(), {"e1"})
        posting.join()
        assert worker.tokens() == {"e1": 7}

    def post_when_waited_for(self, worker: Worker) -> None:
        """As the transfer engine's thread: after the first look, which finds nothing."""
        worker.engine.looked.wait()
        worker.side._news.set()

    @pytest.mark.parametrize(
        "message", [FirstToken(key=KEY, token_id=7), AskTable(key=KEY)], ids=["token", "question"]
    )
    def test_the_daemon_ends_the_wait(self, message: LinkMessage) -> None:
        worker = Worker()
        worker.open_target()
        worker.step(is_empty=True)
        worker.side._news.clear()
        worker.side._on_link_message(message)
        assert worker.side._news.is_set()

    @pytest.mark.parametrize("case", ["computes", "has something to report", "waits for nothing"])
    def test_does_not_wait_when_it(self, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
        def no_wait(timeout_s: float) -> bool:
            raise AssertionError(f"waited {timeout_s} s")

        worker = Worker()
        if case != "waits for nothing":
            worker.open_target()
        worker.step(is_empty=case != "computes")
        monkeypatch.setattr(worker.side._news, "wait", no_wait)
        if case == "has something to report":
            worker.token()
            assert worker.results(completed()) == (set(), {"e1"})
        else:
            assert worker.results() == NOTHING


class TestPreemption:
    def test_the_forward_waits_until_nothing_reads_the_blocks(self) -> None:
        worker = Worker()
        worker.open_source()
        polls: list[int] = []

        def poll() -> list[TransferEvent]:
            polls.append(len(polls))
            worker.side._news.set()  # as the transfer engine does with every event
            return [released()] if len(polls) == 3 else []

        worker.engine.poll = poll  # type: ignore[method-assign]
        step = StepMetadata(preempted_sources=[KEY])
        worker.side.fence_preempted(step)
        assert len(polls) == 3
        assert worker.engine.calls[-1] == ("source_abort", KEY, "prefill was preempted")

    def test_an_outcome_seen_while_waiting_is_not_lost(self) -> None:
        worker = Worker()
        worker.open_source()
        worker.open_target("r2/0")
        worker.token(key="r2/0")
        worker.engine.batches = [[completed("r2/0"), released()]]
        worker.side.fence_preempted(StepMetadata(preempted_sources=[KEY]))
        assert worker.results() == (set(), {"e1"})

    def test_blocks_that_stay_in_use_end_the_engine(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(worker_side, "_FENCE_TIMEOUT_S", 0.0)
        worker = Worker()
        worker.open_source()
        with pytest.raises(RuntimeError, match=r"r1/0.*still being read"):
            worker.side.fence_preempted(StepMetadata(preempted_sources=[KEY]))

    def test_a_preempted_job_that_runs_again_is_opened_again_and_reported_once(self) -> None:
        worker = Worker()
        worker.open_source()
        worker.engine.batches = [[released()]]
        worker.step(preempted_sources=[KEY])
        worker.open_source()
        assert worker.results(finished=("e1",)) == NOTHING, "the second opening is not released"
        assert worker.results(released()) == ({"e1"}, set())


class TestRanks:
    @pytest.mark.parametrize("rank", [0, 1])
    def test_only_rank_0_tells_progress_and_counters(self, rank: int) -> None:
        worker = Worker(rank=rank)
        worker.engine.counts = {"sent_bytes": 5}
        progress = PromptProgress(
            key=KEY, start=0, end=16, prompt_token_count=20, cached_token_count=4
        )
        worker.step(progress=[progress])
        for _ in range(2):
            worker.results()
        told = (
            []
            if rank
            else [
                Progress(key=KEY, start=0, end=16, prompt_token_count=20, cached_token_count=4),
                Counters(values={"sent_bytes": 5.0, "held_prompts": 0.0}),
            ]
        )
        assert worker.reported() == told

    def test_every_rank_tells_that_its_blocks_are_there(self) -> None:
        worker = Worker(rank=1)
        worker.open_target()
        worker.token()
        worker.results(completed())
        assert worker.reported() == [Ready(key=KEY, transferred_bytes=4096, transfer_s=0.5)]


class TestPeers:
    def test_a_rank_connects_and_disconnects_when_it_is_told(self) -> None:
        worker = Worker(rank=1)
        fields: dict[str, Any] = {
            "peer_name": "prefill-0",
            "peer_uuid": "u",
            "peer_boot_epoch": 3,
            "peer_rank": 1,
            "peer_address": "p:1",
            "peer_ucx_address": b"ucx",
        }
        peer = Peer(
            identity=make_identity("prefill-0", boot_epoch=3, uuid="u"),
            rank=1,
            control_address="p:1",
            ucx_address=b"ucx",
        )
        worker.side._on_link_message(ConnectRank(**fields))
        worker.side._on_link_message(DisconnectRank(**fields))
        assert worker.engine.calls == [("connect", peer), ("disconnect", peer)]

    def test_its_connections_are_told_when_somebody_asks_without_any_step(self) -> None:
        worker = Worker(rank=1)
        worker.engine.open = (
            Connection(
                peer=PeerId(uuid="u", boot_epoch=3, rank=1),
                lanes=("tcp/lo", "shared_memory"),
                received_bytes=4096,
                bytes_per_s=2e9,
            ),
        )
        assert worker.reported() == []
        worker.side._on_link_message(AskConnections())
        assert worker.reported() == [
            Connections(
                peer_uuids=["u"],
                peer_boot_epochs=[3],
                peer_ranks=[1],
                lanes=["tcp/lo,shared_memory"],
                received_bytes=[4096],
                bytes_per_s=[2e9],
            )
        ]


def test_another_installations_metadata_is_refused() -> None:
    with pytest.raises(RuntimeError, match="two installations"):
        Worker().side.begin_step(StepMetadata(version=99))

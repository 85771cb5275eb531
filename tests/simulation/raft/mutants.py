"""Broken versions of the core, WAL and sessions, each made by replacing one small function.

The production code has no switches for this: a mutant is a module, a name and a replacement. Each
names the test that must fail under it, a directed script or seeds of the simulator.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from types import ModuleType
from typing import Any
from unittest.mock import patch

from pdd.raft import (
    core,
    election,
    log,
    messages,
    progress,
    ready,
    replication,
    roles,
    sessions,
    snapshots,
    terms,
)
from pdd.raft.reads import ReadRounds
from pdd.raft.state import Role
from pdd.raft.values import HardState
from pdd.replication import record, storage, wal
from tests.simulation.raft import test_directed_election as of_election
from tests.simulation.raft import test_directed_reads as of_reads
from tests.simulation.raft import test_directed_replication as of_replication
from tests.simulation.raft import test_directed_snapshots as of_snapshots
from tests.simulation.raft.world import World
from tests.unit.replication import test_wal as of_wal

SEEDS = 300
"""A mutant given to the simulator must die within this many seeds; most die at the first few."""


def simulator() -> None:
    for seed in range(SEEDS):
        World(seed).run()


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    name: str
    replacements: list[tuple[ModuleType | type, str, Any]]
    killed_by: Callable[[], object]

    def apply(self, stack: ExitStack) -> None:
        for owner, attribute, replacement in self.replacements:
            stack.enter_context(patch.object(owner, attribute, replacement))


def mutant(
    name: str, owner: ModuleType | type, attribute: str, replacement: Any, *, by: Callable[[], Any]
) -> Mutant:
    return Mutant(name=name, replacements=[(owner, attribute, replacement)], killed_by=by)


def _truncate_always(raft_log: log.RaftLog, entries: Any) -> int:
    """Cut at the first entry that is there already, conflict or not, and take the message's."""
    if entries and entries[0].index > raft_log.commit_index:
        if entries[0].index <= raft_log.last_index:
            raft_log.truncate_from(entries[0].index)
        return 0
    return len(entries)


def _volatile_vote(state: Any) -> HardState:
    return HardState(term=state.term, vote=None, commit_index=state.log.commit_index)


def _everything_early(state: Any) -> tuple[list[Any], list[Any]]:
    return list(state.outbox), []


def _admit_stale_answers(state: Any, message: Any) -> bool:
    answer = isinstance(message, messages.AppendResponse | messages.HeartbeatResponse)
    return True if answer and message.term < state.term else _admit(state, message)


_admit = terms.admit


def _count_every_vote(state: Any, voter: Any, *, granted: bool) -> Any:
    state.votes[f"{voter}/{len(state.votes)}"] = granted
    return election._count_votes(state)


def _confirm_without_quorum(self: ReadRounds, majority_sequence: int) -> Any:
    return _confirm(self, self.sequence)


_confirm = ReadRounds.confirm


def _reuse_sequence(self: ReadRounds, commit_index: int) -> None:
    """Like counting any heartbeat answer, also one from before the read."""
    _open_round(self, commit_index)
    self.sequence -= 1
    self.rounds[-1] = type(self.rounds[-1])(
        sequence=self.sequence, index=commit_index, contexts=self.rounds[-1].contexts
    )


_open_round = ReadRounds.open_round


def _pre_vote_refreshes_contact(state: Any, message: Any) -> None:
    state.election_elapsed_ticks = 0
    _on_pre_vote_request(state, message)


_on_pre_vote_request = election.on_pre_vote_request


def _campaign_without_pre_vote(state: Any) -> None:
    election.start_election(state, is_transfer=False)


def _loyal_to_nobody(state: Any, candidate: Any) -> bool:
    return False


def _loyal_even_to_itself(state: Any, candidate: Any) -> bool:
    return state.leader is not None and state.election_elapsed_ticks < state.config.election_ticks


def _ack_own_last_index(raft_log: log.RaftLog, last_matched_index: int) -> int:
    return raft_log.last_index


def _become_leader_keeping_transfer(state: Any) -> None:
    kept = getattr(state.random, "kept_transfer", None)
    _become_leader(state)
    if kept is not None:
        state.leadership.transfer = kept


def _drop_leadership_keeping_transfer(state: Any) -> None:
    if state.leadership is not None and state.leadership.transfer is not None:
        state.random.kept_transfer = state.leadership.transfer
    _drop_leadership(state)


_become_leader = roles.become_leader
_drop_leadership = roles._drop_leadership


def _set_next_index(one: progress.Progress, next_index: int) -> None:
    one.next_index = max(next_index, one.match_index + 1)


def _take_reads_at_once(state: Any) -> list[object]:
    taken = [context for _, context in state.confirmed_reads]
    state.confirmed_reads = []
    return taken


def _fixed_timeout(state: Any) -> int:
    return int(state.config.election_ticks)


def _save_marker_before_file(self: storage.Storage, snapshot: Any) -> None:
    self.mark_snapshot(snapshot.meta)
    self.write_snapshot_file(snapshot)


def _save_removing_first(self: storage.Storage, snapshot: Any) -> None:
    storage.remove_others(self._files, snapshot.meta)
    _save_snapshot(self, snapshot)


_save_snapshot = storage.Storage.save_snapshot


def _write_snapshot_without_sync(files: Any, snapshot: Any) -> None:
    class Unsynced:
        def __getattr__(self, name: str) -> Any:
            return getattr(files, name)

        def sync_directory(self) -> None:
            pass

    _write_snapshot(Unsynced(), snapshot)


_write_snapshot = storage.write_snapshot


def _roll_forgetting_hard_state(self: wal.Wal, payload_bytes: int) -> None:
    kept, self._hard_state = self._hard_state, HardState(term=0, vote=None, commit_index=0)
    _roll(self, payload_bytes)
    self._hard_state = kept


_roll = wal.Wal._roll


MUTANTS = [
    # The eight of the specification.
    mutant("truncate_always", log, "first_unmatched", _truncate_always, by=simulator),
    mutant(
        "truncate_always_scripted",
        log,
        "first_unmatched",
        _truncate_always,
        by=of_replication.test_a_shorter_delayed_append_does_not_cut_what_came_after_it,
    ),
    mutant("double_vote", election, "may_vote_for", lambda s, c: True, by=simulator),
    mutant(
        "double_vote_scripted",
        election,
        "may_vote_for",
        lambda s, c: True,
        by=of_election.test_a_second_candidate_gets_no_vote_in_the_same_term,
    ),
    mutant("no_up_to_date_check", election, "is_up_to_date", lambda s, **k: True, by=simulator),
    mutant(
        "no_up_to_date_check_scripted",
        election,
        "is_up_to_date",
        lambda s, **k: True,
        by=of_election.test_a_replica_with_a_stale_log_does_not_win,
    ),
    mutant("ack_before_fsync", ready, "split_messages", _everything_early, by=simulator),
    mutant(
        "ack_before_fsync_scripted",
        ready,
        "split_messages",
        _everything_early,
        by=of_replication.test_an_ack_leaves_only_after_the_entries_are_durable,
    ),
    mutant("volatile_vote", ready, "hard_state_of", _volatile_vote, by=simulator),
    mutant(
        "volatile_vote_scripted",
        ready,
        "hard_state_of",
        _volatile_vote,
        by=of_election.test_a_vote_is_remembered_across_a_crash,
    ),
    mutant("read_without_quorum", ReadRounds, "confirm", _confirm_without_quorum, by=simulator),
    mutant(
        "read_without_quorum_scripted",
        ReadRounds,
        "confirm",
        _confirm_without_quorum,
        by=of_reads.test_a_read_waits_for_a_majority_that_answers_after_it,
    ),
    mutant(
        "commit_old_term",
        replication,
        "may_commit_by_counting",
        lambda s, i: True,
        by=of_replication.test_figure_8_an_old_entry_on_a_majority_is_not_committed_by_counting,
    ),
    mutant(
        "accept_stale_ack",
        terms,
        "admit",
        _admit_stale_answers,
        by=of_replication.test_an_ack_of_an_earlier_term_does_not_count,
    ),
    # Elections.
    mutant(
        "count_repeated_votes",
        election,
        "record_vote",
        _count_every_vote,
        by=of_election.test_a_repeated_vote_counts_once,
    ),
    mutant(
        "no_pre_vote",
        election,
        "campaign",
        _campaign_without_pre_vote,
        by=of_election.test_a_replica_back_from_isolation_does_not_depose_the_leader,
    ),
    mutant(
        "pre_vote_refreshes_contact",
        election,
        "on_pre_vote_request",
        _pre_vote_refreshes_contact,
        by=of_election.test_a_pre_vote_does_not_refresh_the_contact_with_the_leader,
    ),
    mutant(
        "no_loyalty",
        terms,
        "hears_other_leader",
        _loyal_to_nobody,
        by=of_election.test_a_loyal_follower_ignores_another_campaign_but_not_for_ever,
    ),
    mutant(
        "refuse_the_own_leader",
        terms,
        "hears_other_leader",
        _loyal_even_to_itself,
        by=of_election.test_a_replica_helps_its_own_leader_back_into_office,
    ),
    mutant(
        "no_answer_to_stale_leaders",
        terms,
        "answer_stale",
        lambda s, m: None,
        by=of_election.test_a_candidate_stuck_in_a_higher_term_is_freed_by_the_leaders_next_message,
    ),
    mutant(
        "no_check_quorum",
        election,
        "tick_check_quorum",
        lambda s: None,
        by=of_election.test_a_leader_that_hears_no_majority_steps_down,
    ),
    mutant(
        "no_check_quorum_simulated", election, "tick_check_quorum", lambda s: None, by=simulator
    ),
    mutant(
        "same_election_timeout_for_ever",
        roles,
        "draw_election_timeout",
        _fixed_timeout,
        by=of_election.test_the_election_timeout_is_drawn_anew_for_each_attempt,
    ),
    mutant(
        "transfer_never_ends",
        election,
        "tick_transfer",
        lambda s: None,
        by=of_election.test_a_transfer_that_fails_ends_after_one_election_timeout,
    ),
    Mutant(
        name="transfer_survives_leadership",
        replacements=[
            (election, "become_leader", _become_leader_keeping_transfer),
            (roles, "_drop_leadership", _drop_leadership_keeping_transfer),
        ],
        killed_by=of_election.test_a_transfer_does_not_survive_the_leadership,
    ),
    # Replication.
    mutant(
        "count_self_before_fsync",
        replication,
        "own_match_index",
        lambda raft_log: raft_log.last_index,
        by=simulator,
    ),
    mutant(
        "acknowledge_unproved_tail",
        replication,
        "acknowledged_index",
        _ack_own_last_index,
        by=of_replication.test_a_follower_acknowledges_only_what_the_append_has_proved_equal,
    ),
    mutant(
        "commit_unproved_tail",
        replication,
        "follower_commit",
        lambda leader_commit_index, **k: leader_commit_index,
        by=of_replication.test_a_follower_commits_only_what_the_append_has_proved_equal,
    ),
    mutant(
        "stale_last_written",
        log,
        "pull_back_written_marks",
        lambda raft_log, index: None,
        by=of_replication.test_a_late_report_of_an_fsync_does_not_cover_entries_replaced_meanwhile,
    ),
    mutant(
        "ack_lowers_next",
        progress,
        "raise_next_index",
        _set_next_index,
        by=of_replication.test_repeated_and_late_answers_never_move_a_follower_back,
    ),
    mutant(
        "ack_lowers_next_simulated", progress, "raise_next_index", _set_next_index, by=simulator
    ),
    mutant(
        "no_bound_on_uncommitted",
        core,
        "would_overfill",
        lambda *a: False,
        by=of_replication.test_proposals_are_refused_while_too_much_is_uncommitted_and_taken_again_after,
    ),
    mutant("no_noop_at_start_of_term", roles, "append_term_start", lambda s: None, by=simulator),
    mutant(
        "follow_two_leaders",
        replication,
        "accept_leader",
        lambda s, m: (setattr(s, "leader", m.source), s.role is not Role.LEADER)[1],
        by=of_election.test_a_second_leader_in_one_term_is_not_believed,
    ),
    # Reads.
    mutant(
        "read_confirmed_by_old_heartbeats",
        ReadRounds,
        "open_round",
        _reuse_sequence,
        by=of_reads.test_a_heartbeat_answered_before_the_read_confirms_nothing_however_late_it_comes,
    ),
    mutant(
        "read_before_own_term_commit",
        replication,
        "has_committed_in_term",
        lambda s: True,
        by=of_reads.test_a_new_leader_reads_only_after_an_entry_of_its_own_term_is_committed,
    ),
    mutant(
        "read_before_apply",
        ready,
        "take_applied_reads",
        _take_reads_at_once,
        by=of_reads.test_a_read_is_answered_only_when_its_index_is_applied,
    ),
    # Snapshots, disk, sessions.
    mutant(
        "snapshot_drops_matching_log",
        snapshots,
        "holds_snapshot_entry",
        lambda raft_log, meta: False,
        by=of_snapshots.test_a_snapshot_whose_last_entry_the_log_holds_commits_it_and_keeps_the_suffix,
    ),
    mutant(
        "lost_snapshot_never_retried",
        snapshots,
        "tick_snapshots",
        lambda s: None,
        by=of_snapshots.test_a_lost_snapshot_is_sent_again_after_a_while_if_nobody_says_anything,
    ),
    mutant(
        "marker_before_snapshot_file",
        storage.Storage,
        "save_snapshot",
        _save_marker_before_file,
        by=simulator,
    ),
    mutant(
        "old_snapshot_removed_first",
        storage.Storage,
        "save_snapshot",
        _save_removing_first,
        by=simulator,
    ),
    mutant(
        "snapshot_directory_not_synced",
        storage,
        "write_snapshot",
        _write_snapshot_without_sync,
        by=simulator,
    ),
    mutant(
        "new_segment_forgets_hard_state",
        wal.Wal,
        "_roll",
        _roll_forgetting_hard_state,
        by=of_wal.test_a_vote_outlives_the_segment_it_was_written_to,
    ),
    mutant(
        "torn_last_record_always",
        record,
        "has_zero_sector",
        lambda *a, **k: True,
        by=of_wal.test_a_flipped_bit_in_the_last_record_is_damage_not_a_torn_write,
    ),
    mutant(
        "torn_even_if_followed",
        record,
        "torn_unless_followed",
        lambda data, sequence, offset_bytes, reason: record.Fault(is_torn=True, reason=reason),
        by=of_wal.test_a_lost_sector_before_a_later_record_is_damage_not_a_torn_write,
    ),
    mutant(
        "zero_runs_not_masked",
        record,
        "choose_mask",
        lambda payload: (0, 0),
        by=of_wal.test_a_payload_of_zeros_is_not_taken_for_a_torn_write,
    ),
    mutant(
        "fsync_error_forgotten",
        wal.Wal,
        "_check_usable",
        lambda self: None,
        by=of_wal.test_after_a_failed_fsync_the_log_refuses_everything,
    ),
    mutant(
        "wal_not_synced",
        wal.Wal,
        "sync",
        lambda self: setattr(self, "_unsynced", False),
        by=simulator,
    ),
    mutant("sessions_not_in_snapshot", sessions, "session_rows", lambda machine: [], by=simulator),
]

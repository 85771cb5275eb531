"""The safety properties of the log, asserted after every event from outside the core.

Each check carries the number it has in the list below; a violation names it. The checker sees every
replica's memory (`observe`), every message as it leaves (`sent`), what each disk is known to hold
(`persisted`), and every applied entry. Checks are incremental: the cost of an event is that of what
it changed.

 1 one leader per term                        10 answers carry the term, stale leaders get one
 2 a leader only appends to its log           11 votes counted by voter
 3 log matching                               12 reads are not stale
 4 a new leader holds every chosen entry      13 no leader without a quorum, for long
 5 one applied history                        14 flow control bounds; acks never lower next_index
 6 chosen means durable on a majority         15 each command takes effect once
 7 term, vote, commit, match never go back;   16 equal states at equal index
   nothing leaves before it is durable        17 outcomes: ok means applied, rejected means never
 8 truncation only at a conflict, above       18 snapshots: all or nothing, matching suffix kept
   commit
 9 commit by counting only in the own term
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pdd.raft.core import RaftCore
from pdd.raft.log import RaftLog
from pdd.raft.messages import (
    AppendRequest,
    AppendResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    Message,
    PreVoteRequest,
    PreVoteResponse,
    VoteRequest,
    VoteResponse,
)
from pdd.raft.progress import ProgressState
from pdd.raft.ready import Ready
from pdd.raft.state import Role
from pdd.raft.values import (
    EMPTY_HARD_STATE,
    NO_SNAPSHOT,
    Entry,
    EntryKind,
    HardState,
    NodeId,
    SnapshotMeta,
)


class Violation(AssertionError):
    """A property does not hold. The message begins with its number."""


def check(condition: bool, number: int, text: str) -> None:
    if not condition:
        raise Violation(f"property {number}: {text}")


@dataclass(slots=True)
class DurableShadow:
    """What one replica's disk must hold, kept apart from the code that writes it."""

    hard_state: HardState = EMPTY_HARD_STATE
    snapshot: SnapshotMeta = NO_SNAPSHOT
    entries: dict[int, Entry] = field(default_factory=dict)
    last_index: int = 0

    def persist(self, ready: Ready) -> None:
        if ready.snapshot is not None:
            self.entries.clear()
            self.snapshot = ready.snapshot.meta
            self.last_index = ready.snapshot.meta.index
        if ready.entries:
            for index in range(ready.entries[0].index, self.last_index + 1):
                self.entries.pop(index, None)
            for entry in ready.entries:
                self.entries[entry.index] = entry
            self.last_index = ready.entries[-1].index
        if ready.hard_state is not None:
            self.hard_state = ready.hard_state

    def snapshot_taken(self, meta: SnapshotMeta) -> None:
        self.snapshot = meta

    def copy(self) -> DurableShadow:
        return DurableShadow(self.hard_state, self.snapshot, dict(self.entries), self.last_index)

    def holds(self, index: int, term: int) -> bool:
        if index <= self.snapshot.index:
            return True
        entry = self.entries.get(index)
        return index <= self.last_index and entry is not None and entry.term == term


@dataclass(slots=True)
class View:
    """One replica's memory as of the last event, for comparison."""

    term: int = 0
    vote: NodeId | None = None
    role: Role = Role.FOLLOWER
    commit_index: int = 0
    offset_index: int = 0
    last_index: int = 0
    last_entry: Entry | None = None
    entries: dict[int, Entry] = field(default_factory=dict)
    match: dict[NodeId, int] = field(default_factory=dict)
    next: dict[NodeId, int] = field(default_factory=dict)
    snapshot: SnapshotMeta = NO_SNAPSHOT


class Checker:
    def __init__(self, voters: tuple[NodeId, ...]) -> None:
        self.voters = voters
        self.quorum = len(voters) // 2 + 1
        self.shadows = {voter: DurableShadow() for voter in voters}
        self.views: dict[NodeId, View] = {}
        self.leaders: dict[int, NodeId] = {}
        self.votes: dict[tuple[NodeId, int], NodeId] = {}
        self.known_entries: dict[tuple[int, int], tuple[EntryKind, bytes, int]] = {}
        self.chosen: dict[int, Entry] = {}
        self.chosen_in_term: dict[int, int] = {}
        self.chosen_index = 0
        self.hashes: dict[int, bytes] = {}
        self.check_count = 0
        self.rejections = 0
        """Appends refused by followers, for tests that count round trips."""

    # Life of a replica

    def booted(self, name: NodeId, core: RaftCore) -> None:
        """Memory starts again from what the disk gave."""
        state = core.state
        view = View(
            term=state.term,
            vote=state.vote,
            commit_index=state.log.commit_index,
            offset_index=state.log.offset_index,
            last_index=state.log.last_index,
            last_entry=state.log.entries[-1] if state.log.entries else None,
            entries={entry.index: entry for entry in state.log.entries},
            snapshot=state.log.snapshot,
        )
        self.views[name] = view
        before = self.shadows[name]
        check(state.term >= before.hard_state.term, 7, f"{name} restarted with an older term")
        if state.term == before.hard_state.term:
            check(state.vote == before.hard_state.vote, 7, f"{name} restarted with another vote")

    def recovered(self, name: NodeId, *, core: RaftCore, possible: list[DurableShadow]) -> None:
        """The disk must hold exactly what was synced, or that and the whole unfinished write."""
        log, state = core.state.log, core.state
        found = HardState(term=state.term, vote=state.vote, commit_index=state.written.commit_index)
        for shadow in possible:
            base = max(shadow.snapshot.index, log.offset_index)
            wanted = [shadow.entries[i] for i in range(base + 1, shadow.last_index + 1)]
            if (
                found == shadow.hard_state
                and log.last_index == shadow.last_index
                and log.entries[base - log.offset_index :] == wanted
                and log.offset_index >= shadow.snapshot.index
            ):
                self.shadows[name] = shadow
                shadow.snapshot = log.snapshot
                self.booted(name, core)
                return
        check(
            False,
            6,
            f"{name} recovered {found}, snapshot {log.snapshot}, last {log.last_index}; its disk "
            f"should hold one of {[(s.hard_state, s.snapshot, s.last_index) for s in possible]}",
        )

    def persisted(self, name: NodeId, ready: Ready) -> None:
        self.shadows[name].persist(ready)
        hard_state = ready.hard_state
        if hard_state is not None and hard_state.vote is not None:
            # A vote that was never durable never left, so only these count.
            given = self.votes.setdefault((name, hard_state.term), hard_state.vote)
            check(given == hard_state.vote, 7, f"{name} voted twice in term {hard_state.term}")

    # Memory

    def observe(self, name: NodeId, core: RaftCore, message: Message | None = None) -> None:
        """After every input to ``core``; ``message`` if that was one."""
        self.check_count += 1
        state, view = core.state, self.views[name]
        log = state.log
        check(state.term >= view.term, 7, f"term of {name} fell to {state.term}")
        check(log.commit_index >= view.commit_index, 7, f"commit of {name} fell")
        was_leader = view.role is Role.LEADER and view.term == state.term
        if state.role is Role.LEADER and not was_leader:
            self._new_leader(name, core)
        if log.last_index != view.last_index or (
            log.entries and log.entries[-1] is not view.last_entry
        ):
            self._log_changed(name, log, view, was_leader=was_leader)
        if log.commit_index > view.commit_index:
            self._commit_moved(name, core, view, by_counting=was_leader)
        if state.leadership is not None:
            self._flow_control(name, core, view, message, was_leader=was_leader)
        check(
            log.offset_index <= log.snapshot.index <= log.applied_index
            and log.applied_index <= log.applying_index <= log.commit_index <= log.last_index
            and log.durable_index <= log.handed_index <= log.last_index,
            7,
            f"indices of {name} out of order",
        )
        view.term, view.vote, view.role = state.term, state.vote, state.role
        view.commit_index, view.last_index = log.commit_index, log.last_index
        view.last_entry = log.entries[-1] if log.entries else None
        view.offset_index, view.snapshot = log.offset_index, log.snapshot

    def _new_leader(self, name: NodeId, core: RaftCore) -> None:
        state = core.state
        owner = self.leaders.setdefault(state.term, name)
        check(owner == name, 1, f"{owner} and {name} both lead term {state.term}")
        log = state.log
        check(log.offset_index <= self.chosen_index, 4, f"{name} compacted what is not chosen")
        for index in range(log.offset_index + 1, self.chosen_index + 1):
            if self.chosen_in_term[index] >= state.term:
                continue  # chosen by a later leader: this one has won late, and will learn
            check(
                log.term_at(index) == self.chosen[index].term,
                4,
                f"{name} leads term {state.term} without chosen entry {index}",
            )
        first = next((e for e in log.entries if e.term == state.term), None)
        check(
            first is not None and first.kind is EntryKind.NOOP,
            9,
            f"{name} starts term {state.term} without a no-op",
        )

    def _log_changed(self, name: NodeId, log: RaftLog, view: View, *, was_leader: bool) -> None:
        installed = log.unsaved_snapshot is not None and log.snapshot != view.snapshot
        if installed:
            meta = log.snapshot
            held = view.entries.get(meta.index)
            check(meta.index > view.commit_index, 18, f"{name} went back to a snapshot")
            check(
                meta.index > view.last_index or held is None or held.term != meta.term,
                18,
                f"{name} dropped a matching log for snapshot {meta.index}",
            )
            chosen = self.chosen.get(meta.index)
            check(
                chosen is not None and chosen.term == meta.term,
                18,
                "snapshot of what is not chosen",
            )
            view.entries.clear()
            common = log.offset_index
        else:
            common = min(view.last_index, log.last_index)
            while common > log.offset_index:
                if log.entries[common - log.offset_index - 1] is view.entries.get(common):
                    break
                common -= 1
            if common < view.last_index:
                self._truncated(name, log, view, common + 1, was_leader=was_leader)
        for entry in log.entries[max(common - log.offset_index, 0) :]:
            prev_term = log.term_at(entry.index - 1)
            assert prev_term is not None
            fact = (entry.kind, entry.data, prev_term)
            if len(self.voters) > 1:  # a single voter may lead a term it then forgets
                known = self.known_entries.setdefault((entry.index, entry.term), fact)
                check(known == fact, 3, f"two entries are {entry.index}@{entry.term}")
            view.entries[entry.index] = entry

    def _truncated(
        self, name: NodeId, log: RaftLog, view: View, at: int, *, was_leader: bool
    ) -> None:
        check(not was_leader, 2, f"leader {name} truncated its log at {at}")
        check(at > view.commit_index, 8, f"{name} truncated at {at}, commit {view.commit_index}")
        new_term = log.term_at(at)
        check(
            new_term is not None and new_term != view.entries[at].term,
            8,
            f"{name} truncated at {at} without a conflict there",
        )
        for index in range(at, view.last_index + 1):
            view.entries.pop(index, None)

    def _commit_moved(self, name: NodeId, core: RaftCore, view: View, *, by_counting: bool) -> None:
        state, log = core.state, core.state.log
        if by_counting and state.role is Role.LEADER:
            check(
                log.term_at(log.commit_index) == state.term,
                9,
                f"{name} counted an entry of term {log.term_at(log.commit_index)} "
                f"in term {state.term}",
            )
        for index in range(view.commit_index + 1, log.commit_index + 1):
            if index <= log.offset_index:
                continue  # came with a snapshot
            entry = log.entries[index - log.offset_index - 1]
            if index > self.chosen_index:
                holders = sum(s.holds(index, entry.term) for s in self.shadows.values())
                check(
                    holders >= self.quorum,
                    6,
                    f"{name} committed {index}@{entry.term}, durable on {holders} disks",
                )
                self.chosen[index] = entry
                self.chosen_in_term[index] = state.term
                self.chosen_index = index
            check(
                self.chosen[index].term == entry.term,
                5,
                f"{name} committed {index}@{entry.term}, chosen was "
                f"{index}@{self.chosen[index].term}",
            )

    def _flow_control(
        self,
        name: NodeId,
        core: RaftCore,
        view: View,
        message: Message | None,
        *,
        was_leader: bool,
    ) -> None:
        leadership, config = core.state.leadership, core.state.config
        assert leadership is not None
        check(leadership.uncommitted_bytes >= 0, 14, "uncommitted bytes below zero")
        is_ack = isinstance(message, HeartbeatResponse) or (
            isinstance(message, AppendResponse) and not message.rejected
        )
        for peer, progress in leadership.progress.items():
            if was_leader:
                check(
                    progress.match_index >= view.match.get(peer, 0),
                    7,
                    f"match of {peer} fell at {name}",
                )
                if is_ack:
                    check(
                        progress.next_index >= view.next.get(peer, 0),
                        14,
                        f"an ack lowered next of {peer} at {name}",
                    )
            check(progress.match_index < progress.next_index, 14, f"match >= next of {peer}")
            check(progress.next_index <= core.state.log.last_index + 1, 14, "next beyond the log")
            check(len(progress.inflight) <= config.max_inflight_messages, 14, "too many in flight")
            if progress.state is not ProgressState.REPLICATE:
                check(not progress.inflight, 14, "in flight while not replicating")
            view.match[peer] = progress.match_index
            view.next[peer] = progress.next_index
        if not was_leader:
            view.match = {p: g.match_index for p, g in leadership.progress.items()}
            view.next = {p: g.next_index for p, g in leadership.progress.items()}

    # Network

    def sent(self, name: NodeId, core: RaftCore, message: Message) -> None:
        """As the message leaves ``name``: it may promise only what the disk holds."""
        disk = self.shadows[name]
        durable_term = disk.hard_state.term
        match message:
            case PreVoteRequest():
                check(message.term - 1 <= durable_term, 7, f"{name} asks from a volatile term")
            case PreVoteResponse(granted=True):
                pass  # names the candidate's future term, promises nothing
            case _:
                check(message.term <= durable_term, 7, f"{message} leaves before its term")
        same_term = message.term == durable_term
        match message:
            case VoteRequest() if same_term:
                check(disk.hard_state.vote == name, 7, f"{name} campaigns on a volatile vote")
            case VoteResponse(granted=True) if same_term:
                check(
                    disk.hard_state.vote == message.target,
                    7,
                    f"vote of {name} for {message.target} leaves before it is durable",
                )
            case AppendResponse(rejected=False) if same_term:
                check(
                    disk.last_index >= message.match_index,
                    7,
                    f"{name} acknowledges {message.match_index}, durable {disk.last_index}",
                )
                entry = disk.entries.get(message.match_index)
                in_memory_too = core.state.term == message.term and entry is not None
                if in_memory_too and message.match_index > disk.snapshot.index:
                    known = core.state.log.term_at(message.match_index)
                    assert entry is not None
                    check(known in (None, entry.term), 7, f"{name} acknowledges a replaced entry")
            case AppendResponse(rejected=True):
                self.rejections += 1
            case AppendRequest():
                self._sent_append(core, message)
            case HeartbeatRequest():
                check(message.commit_index <= self.chosen_index, 6, "heartbeat beyond chosen")
            case _:
                pass

    def _sent_append(self, core: RaftCore, message: AppendRequest) -> None:
        size_bytes = sum(entry.size_bytes for entry in message.entries)
        limit = core.state.config.max_message_bytes
        check(size_bytes <= limit or len(message.entries) == 1, 14, f"append of {size_bytes} bytes")

    # State machines

    def applied(self, name: NodeId, entry: Entry) -> None:
        chosen = self.chosen.get(entry.index)
        check(
            chosen is not None and (chosen.term, chosen.data) == (entry.term, entry.data),
            5,
            f"{name} applied {entry.index}@{entry.term}, chosen is {chosen}",
        )

    def state_hash(self, name: NodeId, index: int, state_hash: bytes) -> None:
        known = self.hashes.setdefault(index, state_hash)
        check(known == state_hash, 16, f"state of {name} at {index} differs")

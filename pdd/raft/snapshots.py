"""Sending a snapshot to a follower that is behind the log, and installing one (paper section 7)."""

from __future__ import annotations

from pdd.raft.log import RaftLog
from pdd.raft.messages import AppendResponse, InstallSnapshot
from pdd.raft.progress import Progress, ProgressState
from pdd.raft.state import RaftState
from pdd.raft.values import NodeId, Snapshot, SnapshotMeta


def send_snapshot(state: RaftState, peer: NodeId, progress: Progress) -> None:
    """Nothing to a silent follower: its snapshot would only load the disk and the network."""
    if not progress.recently_active:
        return
    meta = state.log.snapshot
    assert meta.index >= state.log.offset_index > 0, "compacted without a snapshot"
    state.send(InstallSnapshot(source=state.config.node, target=peer, term=state.term, meta=meta))
    progress.become_snapshot(meta.index)


def on_install_snapshot(state: RaftState, message: InstallSnapshot) -> None:
    """The caller has accepted the sender as leader."""
    log, meta = state.log, message.meta
    if meta.index <= log.commit_index:
        match_index = log.commit_index
    elif holds_snapshot_entry(log, meta):
        # The log reaches as far and agrees: keep it, and the entries after the snapshot with it.
        log.commit_to(meta.index)
        match_index = meta.index
    else:
        log.restore(meta)
        state.pending_snapshot = Snapshot(meta=meta, data=message.data)
        match_index = meta.index
    state.send(
        AppendResponse(
            source=state.config.node,
            target=message.source,
            term=state.term,
            match_index=match_index,
        )
    )


def holds_snapshot_entry(log: RaftLog, meta: SnapshotMeta) -> bool:
    return log.matches(meta.index, meta.term)


def on_snapshot_report(state: RaftState, peer: NodeId, *, delivered: bool) -> None:
    """The transport says how the stream to ``peer`` ended."""
    if state.leadership is None:
        return
    progress = state.leadership.progress[peer]
    if progress.state is not ProgressState.SNAPSHOT:
        return
    if not delivered:
        progress.snapshot_index = 0
    progress.become_probe()
    # Give the follower time to install; the next heartbeat answer wakes the probe.
    progress.probe_sent = True


def tick_snapshots(state: RaftState) -> None:
    """A lost snapshot or a lost report must not silence a follower for ever."""
    assert state.leadership is not None
    for progress in state.leadership.progress.values():
        if progress.state is ProgressState.SNAPSHOT:
            progress.snapshot_silent_ticks += 1
            if progress.snapshot_silent_ticks >= state.config.snapshot_ticks:
                progress.snapshot_index = 0
                progress.become_probe()

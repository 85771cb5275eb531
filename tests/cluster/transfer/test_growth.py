"""A node that serves for months: peers come and are killed, and nothing of them stays behind."""

import importlib.util
import os
from collections import Counter
from pathlib import Path

import pytest

spec = importlib.util.spec_from_file_location(
    "transfer_processes", Path(__file__).with_name("processes.py")
)
processes = importlib.util.module_from_spec(spec)
spec.loader.exec_module(processes)

pytestmark = [pytest.mark.cluster, pytest.mark.fault]

LIVES = 6
TRANSFERS = 40
IDS = list(range(8))
SETTINGS = {
    "chunk_bytes": 600_000,
    "quiesce_timeout_s": 0.3,
    "resume_grace_s": 0.5,
    "answer_timeout_s": 1.0,
}


def held_by(node):
    """What the kernel holds for a node's process, by kind, and what its engine holds."""
    folder = Path(f"/proc/{node.process.pid}")
    descriptors = Counter()
    for entry in (folder / "fd").iterdir():
        try:
            descriptors[os.readlink(entry).partition(":")[0]] += 1
        except FileNotFoundError:
            continue  # closed meanwhile
    mapped = sum("pdd-kv-" in line for line in (folder / "maps").read_text().splitlines())
    stats = node.stats()
    names = ("peers_known", "source_lanes", "target_lanes", "pending_grants", "shared_slots_lent")
    return {**descriptors, "mapped": mapped, **{name: stats[name] for name in names}}


def open_both(source, target, key, *, append=8):
    source.do("source_open", key=key, deadline_s=600.0)
    target.do(
        "target_open",
        key=key,
        source=source.peer,
        first_index=0,
        block_ids=IDS,
        deadline_s=600.0,
    )
    source.do(
        "source_append", key=key, first_index=0, block_ids=IDS[:append], last=append == len(IDS)
    )


@pytest.mark.parametrize("shared", [True, False], ids=["shm", "tcp"])
def test_killed_and_restarted_peers_leave_neither_descriptors_nor_memory(tmp_path, shared):
    settings = {**SETTINGS, "shared_memory": shared}
    survivor = processes.NodeProcess(tmp_path, "decode-0", settings=settings)
    held = []
    try:
        for life in range(1, LIVES + 1):
            peer = processes.NodeProcess(tmp_path, "prefill-0", boot_epoch=life, settings=settings)
            survivor.do("connect", peer=peer.peer)
            peer.do("connect", peer=survivor.peer)
            for number in range(TRANSFERS):
                open_both(peer, survivor, f"{life}.{number}")
                assert survivor.event()["event"] == "TargetCompleted"
                assert peer.event()["event"] == "SourceReleased"
            # It dies in the middle of a transfer in each direction.
            open_both(peer, survivor, f"{life}.to", append=4)
            open_both(survivor, peer, f"{life}.from", append=4)
            survivor.wait_until(lambda stats: stats["source_lanes"] and stats["target_lanes"])
            peer.kill()
            assert {survivor.event()["event"] for _ in range(2)} == {
                "TargetFailed",
                "SourceReleased",
            }
            survivor.do("disconnect", peer=peer.peer)  # as the daemon is told by a scheduler
            survivor.wait_until(
                lambda stats: stats["peers_known"] == 0 and stats["messages_in_flight"] == 0
            )
            peer.close()
            held.append(held_by(survivor))
        print(held)
        # The first life brings what UCX makes once. Nothing of a process depends on how many
        # peers it has had.
        assert held[1:] == [held[1]] * (LIVES - 1)
        stats = survivor.stats()
        assert stats["target_timers"] + stats["source_timers"] <= 2 * 1024
    finally:
        survivor.close()

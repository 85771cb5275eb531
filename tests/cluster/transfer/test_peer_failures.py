"""Peers are killed, stopped and restarted; the survivor lives, and other transfers go on."""

import importlib.util
import signal
from pathlib import Path

import pytest

spec = importlib.util.spec_from_file_location(
    "transfer_processes", Path(__file__).with_name("processes.py")
)
processes = importlib.util.module_from_spec(spec)
spec.loader.exec_module(processes)

pytestmark = [pytest.mark.cluster, pytest.mark.fault]

SOURCE_IDS = list(range(20, 36))
TARGET_IDS = list(range(16))
SLOW = {"faults": {"delay_s": 60.0}}
QUICK = {
    "chunk_bytes": 600_000,
    "quiesce_timeout_s": 0.3,
    "resume_grace_s": 0.5,
    "drain_timeout_s": 1.0,
    "answer_timeout_s": 1.0,
}


@pytest.fixture
def nodes(tmp_path):
    started = []

    def start(name, *, settings=None, **rest):
        node = processes.NodeProcess(tmp_path, name, settings={**QUICK, **(settings or {})}, **rest)
        started.append(node)
        return node

    yield start
    for node in started:
        node.close()


def begin(source, target, *, key="k", deadline_s=30.0, append=16):
    source.do("source_open", key=key, deadline_s=deadline_s)
    target.do(
        "target_open",
        key=key,
        source=source.peer,
        first_index=0,
        block_ids=TARGET_IDS,
        deadline_s=deadline_s,
    )
    if append:
        source.do(
            "source_append",
            key=key,
            first_index=0,
            block_ids=SOURCE_IDS[:append],
            last=append == len(SOURCE_IDS),
        )


def assert_transfer_works(source, target, *, key):
    source.do("fill", seed=9)
    begin(source, target, key=key)
    assert target.event()["event"] == "TargetCompleted"
    assert source.event()["event"] == "SourceReleased"
    sent = source.do("digests", block_ids=SOURCE_IDS)["digests"]
    assert target.do("digests", block_ids=TARGET_IDS)["digests"] == sent


def test_a_killed_source_fails_its_own_transfers_only(nodes):
    doomed, other, target = nodes("prefill-0"), nodes("prefill-1"), nodes("decode-0")
    begin(doomed, target, key="doomed", append=8)
    target.wait_for("chunks_received", 4)
    other.do("source_open", key="other", deadline_s=30.0)
    target.do(
        "target_open",
        key="other",
        source=other.peer,
        first_index=0,
        block_ids=list(range(40, 44)),
        deadline_s=30.0,
    )
    doomed.kill()
    failed = target.event()
    assert (failed["event"], failed["key"]) == ("TargetFailed", "doomed")
    assert failed["reason"] == "peer_lost"
    assert failed["bad_indices"] == list(range(8, 16))
    other.do("source_append", key="other", first_index=0, block_ids=[1, 2, 3, 4], last=True)
    assert target.event()["event"] == "TargetCompleted"
    target.wait_until(lambda stats: stats["quarantined_blocks"] == 0)


def test_a_killed_target_releases_the_source_which_then_serves_others(nodes):
    source, target, other = nodes("prefill-0"), nodes("decode-0"), nodes("decode-1")
    begin(source, target, key="doomed", append=8)
    target.wait_for("chunks_received", 4)
    target.kill()
    released = source.event()
    assert released["event"] == "SourceReleased"
    assert released["reason"] == "peer_lost"
    assert_transfer_works(source, other, key="next")


def test_a_source_killed_while_the_target_connects_is_noticed(nodes):
    source, target = nodes("prefill-0"), nodes("decode-0")
    source.kill()
    target.do(
        "target_open",
        key="k",
        source=source.peer,
        first_index=0,
        block_ids=TARGET_IDS,
        deadline_s=30.0,
    )
    failed = target.event()
    assert (failed["event"], failed["reason"]) == ("TargetFailed", "peer_lost")
    assert_transfer_works(nodes("prefill-1"), target, key="next")


def test_a_stopped_source_is_given_up_at_the_deadline_and_may_come_back(nodes):
    source, target, other = nodes("prefill-0"), nodes("decode-0"), nodes("prefill-1")
    begin(source, target, key="k", append=4, deadline_s=3.0)
    target.wait_for("chunks_received", 2)
    source.signal(signal.SIGSTOP)
    failed = target.event()
    assert (failed["event"], failed["reason"]) == ("TargetFailed", "deadline")
    assert_transfer_works(other, target, key="meanwhile")
    source.signal(signal.SIGCONT)
    assert source.event()["event"] == "SourceReleased"
    assert_transfer_works(source, target, key="back")


def test_a_target_stopped_in_the_middle_does_not_keep_the_sources_blocks(nodes):
    source, target, other = nodes("prefill-0"), nodes("decode-0"), nodes("decode-1")
    begin(source, target, key="k", append=4, deadline_s=3.0)
    target.wait_for("chunks_received", 2)
    target.signal(signal.SIGSTOP)
    source.do("source_append", key="k", first_index=4, block_ids=SOURCE_IDS[4:], last=True)
    released = source.event()
    assert released["reason"] == "deadline"
    source.wait_until(lambda stats: stats["staging_buffers_lent"] == 0)
    assert_transfer_works(source, other, key="meanwhile")
    target.signal(signal.SIGCONT)
    assert target.event()["event"] == "TargetFailed"
    assert_transfer_works(source, target, key="back")


@pytest.mark.parametrize("who", ["source", "target"])
def test_a_restarted_peer_on_the_same_address_is_another_peer(nodes, who):
    ranks = {"source": nodes("prefill-0"), "target": nodes("decode-0")}
    assert_transfer_works(ranks["source"], ranks["target"], key="first")
    ranks[who].kill()
    name = ranks[who].peer["name"]
    ranks[who] = nodes(name, boot_epoch=2)
    assert_transfer_works(ranks["source"], ranks["target"], key="second")


def test_a_message_to_a_former_life_moves_nothing(nodes):
    source, target = nodes("prefill-0"), nodes("decode-0")
    source.kill()
    reborn = nodes("prefill-0", boot_epoch=2)
    reborn.do("source_open", key="k", deadline_s=30.0)
    reborn.do("source_append", key="k", first_index=0, block_ids=SOURCE_IDS, last=True)
    stale = {**reborn.peer, "boot_epoch": 1}  # the scheduler has not heard of the restart
    target.do(
        "target_open",
        key="k",
        source=stale,
        first_index=0,
        block_ids=TARGET_IDS,
        deadline_s=30.0,
    )
    failed = target.event()
    assert (failed["event"], failed["reason"]) == ("TargetFailed", "refused")
    stats = reborn.stats()
    assert stats["refused_wrong_node"] >= 1
    assert stats.get("chunks_sent", 0) == 0

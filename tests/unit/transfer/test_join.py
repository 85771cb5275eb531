from pdd.transfer.join import (
    RecentSpeed,
    degraded_reasons,
    differences,
    transfer_fingerprint,
    transport_of,
)
from pdd.transfer.settings import TransferSettings
from pdd.transfer.values import Connection, PeerId

PEER = PeerId(uuid="0123456789", boot_epoch=2, rank=1)


def make_connection(*, lanes=("tcp/eth0",), received_bytes=1 << 30, bytes_per_s=5e9):
    return Connection(
        peer=PEER, lanes=lanes, received_bytes=received_bytes, bytes_per_s=bytes_per_s
    )


def judge(connection, *, rdma_expected=False, floor=1e9):
    return degraded_reasons([connection], rdma_expected=rdma_expected, floor_bytes_per_s=floor)


def test_equal_fingerprints_have_no_differences():
    ours = transfer_fingerprint(TransferSettings(), "ucx 1.21")
    assert differences(ours, dict(ours), peer="decode-0") == []


def test_each_difference_names_both_values():
    found = differences({"kv_dtype": "bf16", "a": "1"}, {"kv_dtype": "f16", "b": "2"}, peer="d-0")
    assert found == [
        "kv_dtype is bf16 here and f16 at d-0",
        "a is 1 here and unknown at d-0",
        "b is unknown here and 2 at d-0",
    ]


def test_what_a_reshard_bridges_is_no_difference():
    assert differences({"tp": "4"}, {"tp": "2"}, peer="d-0", may_differ=["tp"]) == []


def test_digests_on_one_side_only_are_refused():
    ours = transfer_fingerprint(TransferSettings(), "ucx 1.21")
    theirs = transfer_fingerprint(TransferSettings(digest=False), "ucx 1.21")
    assert differences(ours, theirs, peer="d-0") == [
        "transfer_digest is xxh3-64 here and none at d-0"
    ]


def test_tcp_where_rdma_was_expected_degrades_and_says_over_what():
    [reason] = judge(make_connection(), rdma_expected=True)
    assert "01234567.2#1 is reached over tcp/eth0, not over RDMA" in reason
    assert judge(make_connection(lanes=("rc_mlx5/mlx5_0:1", "tcp/eth0")), rdma_expected=True) == []


def test_a_connection_below_the_floor_degrades_once_it_has_been_used():
    [reason] = judge(make_connection(bytes_per_s=4e8))
    assert "sends 0.40 GB/s, below the floor of 1.00 GB/s" in reason
    assert judge(make_connection(bytes_per_s=4e8, received_bytes=1000)) == []
    assert judge(make_connection(bytes_per_s=0.0)) == []


def test_a_transport_is_named_by_its_fastest_lane():
    assert transport_of(["tcp/lo"]) == "tcp"
    assert transport_of(["tcp/eth0", "rc_mlx5/mlx5_0:1"]) == "rc_mlx5"
    assert transport_of(["tcp/lo", "shared_memory"]) == "shared_memory"
    assert transport_of(["tcp/eth0", "cuda_ipc/cuda"]) == "cuda_ipc"
    assert transport_of([]) == ""


def test_the_recent_speed_forgets_what_was_long_ago():
    speed = RecentSpeed(window_bytes=100)
    assert speed.observe(make_connection(received_bytes=0, bytes_per_s=0.0), 0.0) == 0.0
    assert speed.observe(make_connection(received_bytes=50, bytes_per_s=5.0), 0.0) == 5.0
    assert speed.observe(make_connection(received_bytes=1000, bytes_per_s=10.0), 0.0) == 10.0
    # 100 more in a second: the mean is 1100 bytes in 101 s.
    after = speed.observe(make_connection(received_bytes=1100, bytes_per_s=1100 / 101), 0.0)
    assert round(after, 6) == 100.0
    assert speed.observe(make_connection(received_bytes=1101, bytes_per_s=1.0), 0.0) == after

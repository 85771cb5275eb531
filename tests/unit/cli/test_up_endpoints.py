"""What ``pdd up`` says when the cluster is ready."""

from pdd.cli.up_run import endpoint_lines
from pdd.daemon.supervisor_state import ClusterRecord, DaemonRecord


def daemon(name: str, role: str, port: int, http: str = "") -> DaemonRecord:
    return DaemonRecord(name=name, role=role, pid=1, address=f"127.0.0.1:{port}", http=http)


def record(*nodes: DaemonRecord) -> ClusterRecord:
    return ClusterRecord(
        cluster_id="c",
        supervisor_pid=1,
        supervisor_start_ticks=1,
        temporary_dir="t",
        state="ready",
        http="http://127.0.0.1:8000",
        grpc="127.0.0.1:7070",
        model="m",
        nodes=nodes,
    )


FIRST = daemon("scheduler-0", "scheduler", 7070, "http://127.0.0.1:8000")
DECODE = daemon("decode-0", "decode", 7090)


def test_one_scheduler_is_one_line() -> None:
    assert endpoint_lines(record(FIRST, DECODE)) == [
        "http://127.0.0.1:8000/v1  (model m, gRPC 127.0.0.1:7070)"
    ]


def test_further_schedulers_have_a_line_each() -> None:
    second = daemon("scheduler-1", "scheduler", 7071, "http://127.0.0.1:8001")
    assert endpoint_lines(record(FIRST, second, DECODE)) == [
        "http://127.0.0.1:8000/v1  (model m, gRPC 127.0.0.1:7070)",
        "http://127.0.0.1:8001/v1  (scheduler-1, gRPC 127.0.0.1:7071)",
    ]

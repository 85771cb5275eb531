"""Which scheduler of a cluster on this machine a command asks."""

from dataclasses import replace
from pathlib import Path

import pytest

from pdd.cli import local
from pdd.core.errors import NodeUnavailable
from pdd.daemon.supervisor_nodes import NodeRow
from pdd.daemon.supervisor_state import ClusterRecord, DaemonRecord

HERE = Path("state")


def scheduler(number: int) -> DaemonRecord:
    return DaemonRecord(
        name=f"scheduler-{number}",
        role="scheduler",
        pid=number,
        address=f"127.0.0.1:{number}",
        http=f"http://127.0.0.1:1{number}",
    )


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The addresses that were asked; of the three schedulers only the third answers."""
    asked: list[str] = []

    def list_nodes(address: str, *, timeout_s: float) -> list[NodeRow]:
        asked.append(address)
        if address != "127.0.0.1:3":
            raise NodeUnavailable(f"{address} did not answer within {timeout_s:g} s")
        return []

    monkeypatch.setattr(local, "list_nodes", list_nodes)
    return asked


def there_are(monkeypatch: pytest.MonkeyPatch, *numbers: int, down: tuple[int, ...] = ()) -> None:
    nodes = (scheduler(number) for number in numbers)
    record = ClusterRecord(
        cluster_id="c",
        supervisor_pid=1,
        supervisor_start_ticks=1,
        temporary_dir="",
        state="ready",
        http=f"http://127.0.0.1:1{numbers[0]}",
        grpc=f"127.0.0.1:{numbers[0]}",
        nodes=tuple(replace(one, address="", http="") if one.pid in down else one for one in nodes),
    )
    monkeypatch.setattr(local, "read_record", lambda _: record)


def test_of_several_schedulers_the_first_that_answers_is_asked(
    monkeypatch: pytest.MonkeyPatch, asked: list[str]
) -> None:
    there_are(monkeypatch, 1, 2, 3)
    assert local.scheduler_address(HERE) == "127.0.0.1:3"
    assert asked == ["127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"]


def test_where_none_answers_the_first_one_s_error_is_told(
    monkeypatch: pytest.MonkeyPatch, asked: list[str]
) -> None:
    there_are(monkeypatch, 1, 2)
    assert local.scheduler_address(HERE) == "127.0.0.1:1"
    assert asked == ["127.0.0.1:1", "127.0.0.1:2"]


def test_one_that_is_being_started_again_is_passed_over(
    monkeypatch: pytest.MonkeyPatch, asked: list[str]
) -> None:
    there_are(monkeypatch, 1, 2, 3, down=(1,))
    assert local.scheduler_address(HERE) == "127.0.0.1:3"
    assert asked == ["127.0.0.1:2", "127.0.0.1:3"]


@pytest.mark.parametrize("numbers", [(1,), (1, 2, 3)])
def test_where_all_are_being_started_again_they_are_named(
    monkeypatch: pytest.MonkeyPatch, asked: list[str], numbers: tuple[int, ...]
) -> None:
    there_are(monkeypatch, *numbers, down=numbers)
    with pytest.raises(NodeUnavailable, match=r"no scheduler is up \(scheduler-1.*try later"):
        local.scheduler_address(HERE)
    assert asked == []


def test_a_lone_scheduler_is_asked_once(monkeypatch: pytest.MonkeyPatch, asked: list[str]) -> None:
    there_are(monkeypatch, 1)
    assert local.scheduler_address(HERE) == "127.0.0.1:1"
    assert asked == []


def test_a_chat_may_go_on_at_any_scheduler(monkeypatch: pytest.MonkeyPatch) -> None:
    there_are(monkeypatch, 2, 1, 3)
    assert local.http_urls(HERE) == (
        "http://127.0.0.1:12",
        "http://127.0.0.1:11",
        "http://127.0.0.1:13",
    )

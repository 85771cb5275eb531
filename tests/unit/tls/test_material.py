"""Files that change under a running daemon, by a clock that the test sets."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from pdd.core.errors import ConfigError
from pdd.tls.material import RenewedMaterial
from pdd.tls.paths import TlsPaths
from tests.unit.tls.certificates import NOW, Authority

DAY = timedelta(days=1)


class Clock:
    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "one")


@pytest.fixture
def renewed(authority: Authority, clock: Clock) -> RenewedMaterial:
    return RenewedMaterial(authority.issue("decode-0"), now=clock)


@pytest.fixture(autouse=True)
def logs() -> Iterator[list[Any]]:
    with capture_logs() as entries:
        yield entries


def told(logs: list[Any]) -> list[str]:
    return [entry["event"] for entry in logs]


def test_a_renewal_that_was_early_is_used_from_when_it_is_valid(
    authority: Authority, clock: Clock, renewed: RenewedMaterial, logs: list[Any]
) -> None:
    before = renewed.current()
    authority.issue("decode-0", now=NOW + DAY, force=True)
    for _ in range(2):
        assert renewed.current() is before
    assert told(logs) == ["certificate_not_renewed"]
    assert "is not valid before" in logs[0]["reason"]
    clock.now += DAY
    after = renewed.current()
    assert after.facts.expires == NOW + 11 * DAY
    assert renewed.current() is after
    assert told(logs) == ["certificate_not_renewed", "certificate_renewed"]


def test_a_clock_that_was_ahead_and_is_set_right_keeps_no_renewal_out(
    authority: Authority, clock: Clock, renewed: RenewedMaterial, logs: list[Any]
) -> None:
    before = renewed.current()
    clock.now = NOW + 20 * DAY
    authority.issue("decode-0", days=15, force=True)
    assert renewed.current() is before
    assert "expired" in logs[0]["reason"]
    clock.now = NOW
    assert renewed.current().facts.expires == NOW + 15 * DAY


def test_an_early_authority_is_waited_for_like_an_early_certificate(
    authority: Authority, clock: Clock, renewed: RenewedMaterial
) -> None:
    before = renewed.current()
    clock.now = NOW - 31 * DAY  # before the authority and the leaf
    authority.issue("decode-0", days=20, force=True)
    assert renewed.current() is before
    clock.now = NOW - DAY  # the authority is valid, the leaf not yet
    assert renewed.current() is before
    clock.now = NOW
    assert renewed.current().facts.expires == NOW + 20 * DAY


def test_a_fault_that_no_clock_mends_is_read_once_whatever_the_time(
    authority: Authority, clock: Clock, renewed: RenewedMaterial, logs: list[Any]
) -> None:
    """Early and of the wrong key: the files have to change, and are looked at when they do."""
    before = renewed.current()
    authority.issue("decode-0", now=NOW + DAY, force=True)
    key = authority.paths("decode-0").key
    right = key.rename(authority.folder / "right.key")
    authority.issue("decode-1").key.rename(key)
    for clock.now in (NOW, NOW + DAY, NOW + 2 * DAY):
        assert renewed.current() is before
    assert told(logs) == ["certificate_not_renewed"]
    right.replace(key)
    assert renewed.current().facts.expires == NOW + 11 * DAY


def test_files_that_are_not_there_at_start_are_a_fault_of_the_configuration(
    authority: Authority,
) -> None:
    folder = authority.folder
    paths = TlsPaths(ca=authority.ca, certificate=folder / "x.crt", key=folder / "x.key")
    with pytest.raises(ConfigError) as caught:
        RenewedMaterial(paths)
    assert [line.partition(": ")[0] for line in str(caught.value).splitlines()] == [
        "tls.certificate",
        "tls.key",
    ]


def test_a_file_that_is_gone_for_a_while_leaves_the_former_in_use(
    authority: Authority, renewed: RenewedMaterial
) -> None:
    before = renewed.current()
    key = authority.paths("decode-0").key
    right = key.read_bytes()
    key.unlink()
    assert renewed.current() is before
    key.write_bytes(right)
    key.chmod(0o600)
    assert renewed.current().facts == before.facts


def test_a_key_that_was_closed_to_others_afterwards_is_read_again(
    authority: Authority, renewed: RenewedMaterial, logs: list[Any]
) -> None:
    before = renewed.current()
    key = authority.issue("decode-0", days=15, force=True).key
    key.chmod(0o644)
    assert renewed.current() is before
    assert "chmod 0600" in logs[0]["reason"]
    key.chmod(0o600)
    assert renewed.current().facts.expires == NOW + 15 * DAY

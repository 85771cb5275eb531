"""The unit file: systemd itself checks it, on a copy whose paths exist."""

import shutil
import subprocess
from pathlib import Path

import pytest

UNIT = Path(__file__).parents[3] / "systemd" / "pdd@.service"


def directives(section: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    current = ""
    for line in UNIT.read_text().splitlines():
        if line.startswith("["):
            current = line.strip("[]")
        elif current == section and "=" in line and not line.startswith("#"):
            key, _, value = line.partition("=")
            found.setdefault(key, []).append(value)
    return found


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is missing")
def test_systemd_accepts_the_unit_without_a_complaint(tmp_path):
    executable = tmp_path / "pdd"
    executable.write_text("#!/bin/sh\n")
    executable.chmod(0o755)
    text = UNIT.read_text().replace("/usr/bin/pdd", str(executable))
    copy = tmp_path / "pdd@decode-0.service"
    copy.write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", str(copy)],
        capture_output=True,
        text=True,
        check=False,
    )
    about_us = [line for line in done.stderr.splitlines() if "pdd" in line]
    assert (done.returncode, about_us) == (0, []), done.stderr


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is missing")
def test_systemd_does_complain_about_a_broken_unit(tmp_path):
    copy = tmp_path / "pdd@decode-0.service"
    copy.write_text(UNIT.read_text().replace("Type=notify", "Type=notiffy"))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", str(copy)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "notiffy" in done.stderr


def test_the_instance_names_the_configuration_and_the_file_says_the_role():
    (command,) = directives("Service")["ExecStart"]
    assert command == "/usr/bin/pdd serve --config /etc/pdd/%i.toml"


def test_a_wrong_configuration_is_not_retried():
    service = directives("Service")
    assert service["Restart"] == ["on-failure"]
    assert service["RestartPreventExitStatus"] == ["2"]


def test_the_stop_limit_leaves_the_daemon_its_ten_seconds():
    assert int(directives("Service")["TimeoutStopSec"][0]) > 10


def test_machine_code_is_kept_in_a_folder_that_systemd_makes_for_the_daemon():
    service = directives("Service")
    assert service["CacheDirectory"] == ["pdd/%i"]
    assert "NUMBA_CACHE_DIR=/var/cache/pdd/%i/numba" in service["Environment"]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("Type", "notify"),
        ("NotifyAccess", "main"),
        ("KillMode", "mixed"),
        ("LimitMEMLOCK", "infinity"),
        ("ProtectSystem", "strict"),
        ("ProtectHome", "yes"),
        ("NoNewPrivileges", "yes"),
        ("PrivateTmp", "yes"),
        ("DevicePolicy", "closed"),
        ("RestrictAddressFamilies", "AF_UNIX AF_INET AF_INET6 AF_NETLINK"),
    ],
)
def test_the_unit_says(key, value):
    assert directives("Service")[key] == [value]

"""[tls] and [public_tls]: which keys belong together, and what their files must hold."""

from datetime import timedelta
from pathlib import Path

import pytest

from pdd.config.load import load_config
from pdd.config.sources import parse_set
from pdd.config.tls_files import member_paths, public_paths
from pdd.core.errors import ConfigError
from tests.unit.tls.certificates import NOW, Authority

DECODE = ("node.name=decode-0", "node.role=decode")
SCHEDULER = ("node.name=scheduler-0", "node.role=scheduler")


def load(*settings: str):
    return load_config(None, environment={}, flags=[parse_set(text) for text in settings]).config


def faults(*settings: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(*settings)
    return str(caught.value).splitlines()


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "one")


def tls_of(authority: Authority, name: str, **fields) -> tuple[str, ...]:
    paths = authority.issue(name, **fields)
    return (
        f"tls.ca={paths.ca}",
        f"tls.certificate={paths.certificate}",
        f"tls.key={paths.key}",
    )


def test_a_node_with_its_own_certificate_may_listen_beyond_loopback(authority) -> None:
    tls = tls_of(authority, "decode-0", hosts=("10.0.0.7", "gpu7.example.org"))
    config = load(*DECODE, *tls, "grpc.listen=10.0.0.7:7071", "node.schedulers=10.0.0.1:7070")
    assert member_paths(config) == authority.paths("decode-0")
    for host in ("10.0.0.7", "gpu7.example.org", "GPU7.example.org"):
        config = load(*DECODE, *tls, "grpc.listen=0.0.0.0:7071", f"grpc.advertise={host}")
        assert config.grpc.advertise == host


@pytest.mark.parametrize("missing", ["ca", "certificate", "key"])
def test_the_three_keys_belong_together(authority, missing) -> None:
    tls = [text for text in tls_of(authority, "decode-0") if not text.startswith(f"tls.{missing}=")]
    (fault,) = faults(*DECODE, *tls)
    assert fault.startswith("--set tls.")
    assert f"tls.{missing} is empty" in fault
    assert "ca, certificate, key belong together" in fault


def test_the_front_doors_keys_belong_together(authority) -> None:
    (fault,) = faults(*SCHEDULER, f"public_tls.client_ca={authority.ca}")
    assert "public_tls.certificate is empty" in fault
    assert "--set public_tls.client_ca" in fault


@pytest.mark.parametrize(
    ("name", "role", "words"),
    [
        ("decode-1", "decode", ["decode 'decode-1'", "decode 'decode-0'"]),
        ("decode-0", "prefill", ["prefill 'decode-0'", "decode 'decode-0'"]),
        ("decode-0", "client", ["client 'decode-0'", "--role decode"]),
    ],
)
def test_another_daemons_certificate_is_refused_with_both_named(
    authority, name, role, words
) -> None:
    (fault,) = faults(*DECODE, *tls_of(authority, name, role=role))
    assert fault.startswith("--set tls.certificate: ")
    for word in words:
        assert word in fault


def test_a_node_without_a_name_hears_of_that_and_of_no_certificate(authority) -> None:
    (fault,) = faults("node.role=decode", *tls_of(authority, "decode-0"))
    assert "node.name: is missing" in fault


@pytest.mark.parametrize(
    ("settings", "host"),
    [
        (["grpc.listen=10.0.0.8:0"], "10.0.0.8"),
        (["grpc.listen=0.0.0.0:0", "grpc.advertise=other.example.org"], "other.example.org"),
        ([], "127.0.0.1"),
    ],
)
def test_a_certificate_for_other_hosts_is_refused_before_peers_do(
    authority, settings, host
) -> None:
    (fault,) = faults(*DECODE, *tls_of(authority, "decode-0", hosts=("10.0.0.7",)), *settings)
    assert "is issued for 10.0.0.7" in fault
    assert f"--host {host}" in fault


def test_all_faults_of_the_files_are_told_at_once(authority) -> None:
    other = authority.issue("decode-1")
    ca, certificate, _ = tls_of(authority, "decode-0")
    found = faults(*DECODE, ca + "x", certificate, f"tls.key={other.key}x", "engine.block_size=20")
    assert [fault.split(": ")[0] for fault in found if "tls." in fault] == [
        "--set tls.ca",
        "--set tls.key",
    ]
    assert any("block_size" in fault for fault in found)


def test_an_address_of_all_hosts_needs_one_that_can_be_dialled(authority) -> None:
    (fault,) = faults(*DECODE, *tls_of(authority, "decode-0"), "grpc.listen=0.0.0.0:7071")
    assert "grpc.advertise is empty" in fault
    assert "0.0.0.0:7071" in fault


def test_a_scheduler_that_nobody_protects_is_not_dialled_beyond_loopback() -> None:
    (fault,) = faults(*DECODE, "node.schedulers=127.0.0.1:1,10.0.0.1:7070")
    assert "node.schedulers: 10.0.0.1:7070 is not a loopback address" in fault


@pytest.mark.parametrize("key", ["http.listen", "grpc.public_listen"])
def test_clients_are_served_beyond_loopback_with_public_tls(authority, key) -> None:
    (fault,) = faults(*SCHEDULER, f"{key}=0.0.0.0:8443")
    assert f"{key}: 0.0.0.0:8443 is not a loopback address" in fault
    assert "[public_tls]" in fault
    paths = authority.issue("front", role="scheduler")
    config = load(
        *SCHEDULER,
        f"{key}=0.0.0.0:8443",
        f"public_tls.certificate={paths.certificate}",
        f"public_tls.key={paths.key}",
    )
    found = public_paths(config)
    assert found is not None
    assert (found.ca, found.certificate) == (None, paths.certificate)


def test_only_a_scheduler_serves_clients() -> None:
    (fault,) = faults(*DECODE, "grpc.public_listen=127.0.0.1:9")
    assert "a decode node serves no clients" in fault


def test_an_expired_front_door_is_told_by_its_own_key(authority) -> None:
    paths = authority.issue("front", role="scheduler", now=NOW - timedelta(days=20))
    (fault,) = faults(
        *SCHEDULER,
        f"public_tls.certificate={paths.certificate}",
        f"public_tls.key={paths.key}",
    )
    assert fault.startswith("--set public_tls.certificate: ")
    assert "expired" in fault


@pytest.mark.parametrize("host", ["10.0.0.7:80", "0.0.0.0", "::", "bad host"])
def test_what_cannot_be_advertised_is_refused(host) -> None:
    (fault,) = faults(*DECODE, f"grpc.advertise={host}")
    assert "grpc.advertise" in fault


def test_no_public_port_is_said_by_an_empty_text() -> None:
    assert load(*SCHEDULER, "grpc.public_listen=").grpc.public_listen is None

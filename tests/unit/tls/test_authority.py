"""What is issued: verified by a library other than the one that made it, and by its own facts."""

import ssl
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography import x509
from hypothesis import given
from hypothesis import strategies as st

from pdd.core.errors import ConfigError
from pdd.tls.authority import CLOCK_SKEW, issue, make_authority
from pdd.tls.check import read_material
from pdd.tls.facts import facts_of
from pdd.tls.identity import CertificateRole
from tests.unit.tls.certificates import NOW, Authority, make_pair

AUTHORITY = make_authority("one", now=NOW, days=30)
_NAMES = st.from_regex(r"[a-z0-9][a-z0-9-]{0,62}", fullmatch=True)
_LABEL = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,20}[a-z0-9])?", fullmatch=True)
_HOSTS = st.one_of(
    st.lists(_LABEL, min_size=1, max_size=4).map(".".join),
    st.ip_addresses(v=4).filter(lambda address: not address.is_unspecified).map(str),
    st.ip_addresses(v=6).filter(lambda address: not address.is_unspecified).map(str),
)


@given(
    name=_NAMES,
    role=st.sampled_from(list(CertificateRole)),
    hosts=st.lists(_HOSTS, min_size=1, max_size=4, unique=True),
    days=st.integers(1, 30),
)
def test_what_is_issued_verifies_and_says_what_was_asked(name, role, hosts, days) -> None:
    pair = issue(AUTHORITY, name=name, role=role.value, hosts=hosts, now=NOW, days=days)
    certificate = x509.load_pem_x509_certificate(pair.certificate_pem)
    certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(AUTHORITY.certificate_pem))
    facts = facts_of(certificate)
    assert str(facts.identity) == f"pdd://one/{role}/{name}"
    assert sorted(facts.hosts) == sorted(hosts)
    assert facts.expires == NOW + timedelta(days=days)
    assert facts.valid_from == NOW - CLOCK_SKEW
    assert not facts.is_authority


def handshake(folder: Path, server: Authority, server_name: str, client_name: str) -> None:
    """TLS in memory with OpenSSL. Raises ssl.SSLError."""
    paths, client_paths = server.paths(server_name), server.paths(client_name)
    accepting = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    accepting.verify_mode = ssl.CERT_REQUIRED
    dialling = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    for context, own in ((accepting, paths), (dialling, client_paths)):
        context.load_verify_locations(server.ca)
        context.load_cert_chain(own.certificate, own.key)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        dialling.wrap_bio(to_client, to_server, server_hostname="127.0.0.1"),
        accepting.wrap_bio(to_server, to_client, server_side=True),
    ]
    for _ in range(6):
        for end in list(ends):
            try:
                end.do_handshake()
                ends.remove(end)
            except ssl.SSLWantReadError:
                continue
    assert not ends


@pytest.mark.parametrize("client", ["decode-1", "client-me"])
def test_openssl_takes_a_member_as_server_and_anybody_as_client(tmp_path, client) -> None:
    authority = Authority(tmp_path)
    authority.issue("scheduler-0")
    authority.issue(client)
    handshake(tmp_path, authority, "scheduler-0", client)


def test_openssl_refuses_a_clients_certificate_as_a_server(tmp_path) -> None:
    authority = Authority(tmp_path)
    authority.issue("client-me")
    authority.issue("decode-1")
    with pytest.raises(ssl.SSLError, match="purpose"):
        handshake(tmp_path, authority, "client-me", "decode-1")


def test_the_authority_may_sign_and_signs_no_other_authority() -> None:
    certificate = x509.load_pem_x509_certificate(AUTHORITY.certificate_pem)
    constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints)
    assert constraints.critical
    assert constraints.value == x509.BasicConstraints(ca=True, path_length=0)


@pytest.mark.parametrize(
    ("name", "role", "hosts", "words"),
    [
        ("Decode", "decode", ["h"], ["'Decode'"]),
        ("decode-0", "king", ["h"], ["king"]),
        ("decode-0", "decode", [], ["--host", "decode"]),
        ("decode-0", "decode", ["*.example.org"], ["'*.example.org'", "wildcards"]),
        ("decode-0", "decode", ["10.0.0.1:7070"], ["'10.0.0.1:7070'", "ports"]),
        ("decode-0", "decode", ["0.0.0.0"], ["0.0.0.0", "dialled"]),
        ("decode-0", "decode", ["::"], ["dialled"]),
        ("decode-0", "decode", ["a" * 254], ["DNS name"]),
    ],
)
def test_what_cannot_be_issued_is_refused_by_name(name, role, hosts, words) -> None:
    with pytest.raises(ConfigError) as caught:
        make_pair(AUTHORITY, name, role, *hosts)
    for word in words:
        assert word in str(caught.value)


def test_nothing_outlasts_its_authority_and_the_error_says_how_long_is_left() -> None:
    with pytest.raises(ConfigError, match=r"--days 31 outlasts.*--days 30 or less"):
        issue(AUTHORITY, name="d", role="decode", hosts=["h"], now=NOW, days=31)


def test_a_cluster_has_a_name_like_a_nodes() -> None:
    with pytest.raises(ConfigError, match="--cluster is 'Big Cluster'"):
        make_authority("Big Cluster", now=NOW, days=1)


def test_a_key_of_another_authority_signs_nothing() -> None:
    other = make_authority("one", now=NOW, days=30)
    mixed = type(AUTHORITY)(certificate_pem=AUTHORITY.certificate_pem, key_pem=other.key_pem)
    with pytest.raises(ConfigError, match=r"ca\.key does not belong to ca\.crt"):
        make_pair(mixed, "decode-0", "decode", "h")


def test_names_of_any_length_fit(tmp_path) -> None:
    authority = Authority(tmp_path, "c" * 63)
    paths = authority.issue("n" * 63, role="scheduler")
    material, faults = read_material(paths, now=NOW)
    assert faults == []
    assert material is not None
    assert material.facts.identity.name == "n" * 63

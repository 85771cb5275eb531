"""Files: modes, nothing overwritten, nothing half written; and every fault that one may have."""

import os
import stat
from datetime import timedelta

import pytest
from cryptography.hazmat.primitives import serialization

from pdd.core.errors import ConfigError
from pdd.tls import files
from pdd.tls.authority import make_authority
from pdd.tls.check import read_material
from pdd.tls.files import read_pair, write_pair
from pdd.tls.paths import TlsPaths
from tests.unit.tls.certificates import NOW, Authority


def mode_of(path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_key_is_its_owners_and_a_certificate_everybodys(tmp_path) -> None:
    certificate, key = write_pair(
        tmp_path / "certs", "ca", make_authority("one", now=NOW, days=1), force=False
    )
    assert (mode_of(key), mode_of(certificate)) == (0o600, 0o644)
    assert mode_of(tmp_path / "certs") == 0o700
    assert sorted(os.listdir(tmp_path / "certs")) == ["ca.crt", "ca.key"]


@pytest.mark.parametrize("left", ["ca.crt", "ca.key"])
def test_what_is_there_is_not_overwritten_unless_forced(tmp_path, left) -> None:
    (tmp_path / left).write_text("precious")
    issued = make_authority("one", now=NOW, days=1)
    with pytest.raises(ConfigError, match=rf"{left} exists.*--force"):
        write_pair(tmp_path, "ca", issued, force=False)
    assert os.listdir(tmp_path) == [left]
    assert (tmp_path / left).read_text() == "precious"
    write_pair(tmp_path, "ca", issued, force=True)
    assert read_pair(tmp_path, "ca") == issued
    assert mode_of(tmp_path / "ca.key") == 0o600


def test_one_who_was_faster_is_not_overwritten_either(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(files.Path, "exists", lambda path: False)
    (tmp_path / "ca.key").write_text("precious")
    with pytest.raises(ConfigError, match="exists"):
        write_pair(tmp_path, "ca", make_authority("one", now=NOW, days=1), force=False)
    assert (tmp_path / "ca.key").read_text() == "precious"
    assert os.listdir(tmp_path) == ["ca.key"]


def test_a_folder_that_cannot_be_made_is_named(tmp_path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"--dir .*file/certs"):
        write_pair(
            tmp_path / "file" / "certs", "ca", make_authority("one", now=NOW, days=1), force=False
        )


def test_a_folder_without_an_authority_is_named_with_the_way_out(tmp_path) -> None:
    with pytest.raises(ConfigError, match=r"ca\.crt: No such file.*pdd certs init"):
        read_pair(tmp_path, "ca")


def faults_of(paths: TlsPaths, *, now=NOW) -> list[tuple[str, str]]:
    material, faults = read_material(paths, now=now)
    assert (material is None) == bool(faults)
    return [(fault.field, fault.message) for fault in faults]


@pytest.fixture
def authority(tmp_path) -> Authority:
    return Authority(tmp_path / "one")


def test_a_good_set_has_no_fault_and_one_that_the_group_may_read_neither(authority) -> None:
    paths = authority.issue("decode-0")
    assert faults_of(paths) == []
    paths.key.chmod(0o640)
    assert faults_of(paths) == []


def test_files_that_are_not_there_are_each_a_fault(authority) -> None:
    paths = TlsPaths(ca=authority.ca, certificate=authority.folder / "x", key=authority.ca / "y")
    assert [field for field, _ in faults_of(paths)] == ["certificate", "key"]


@pytest.mark.parametrize("field", ["ca", "certificate", "key"])
def test_what_is_no_pem_is_named(authority, field) -> None:
    paths = authority.issue("decode-0")
    getattr(paths, field).write_bytes(b"\xff nonsense")
    assert (field, True) in [(name, "PEM" in message) for name, message in faults_of(paths)]


def test_a_key_of_another_certificate_is_a_fault_that_names_both_files(authority) -> None:
    paths = authority.issue("decode-0")
    other = authority.issue("decode-1")
    ((field, message),) = faults_of(
        TlsPaths(ca=paths.ca, certificate=paths.certificate, key=other.key)
    )
    assert field == "key"
    assert "decode-1.key" in message
    assert "decode-0.crt" in message


def test_a_certificate_of_another_authority_is_a_fault(authority, tmp_path) -> None:
    other = Authority(tmp_path / "other").issue("decode-0")
    ((field, message),) = faults_of(
        TlsPaths(ca=authority.ca, certificate=other.certificate, key=other.key)
    )
    assert field == "certificate"
    assert "not signed by" in message


def test_a_front_doors_certificate_need_not_be_of_its_clients_authority(authority, tmp_path):
    other = Authority(tmp_path / "other").issue("decode-0")
    paths = TlsPaths(
        ca=authority.ca, certificate=other.certificate, key=other.key, is_own_authority=False
    )
    assert faults_of(paths) == []


@pytest.mark.parametrize(
    ("later", "fields"),
    [
        (timedelta(days=9), []),
        (timedelta(days=11), ["certificate"]),
        (timedelta(days=31), ["ca", "certificate"]),
        (-timedelta(days=1), ["certificate"]),
        (-timedelta(days=31), ["ca", "certificate"]),
    ],
)
def test_what_is_not_valid_now_is_a_fault(authority, later, fields) -> None:
    assert [field for field, _ in faults_of(authority.issue("decode-0"), now=NOW + later)] == fields


def test_faults_of_time_and_no_others_tell_which_certificate_will_be_valid(authority) -> None:
    paths = authority.issue("decode-0")
    expires = {"ca": NOW + timedelta(days=30), "certificate": NOW + timedelta(days=10)}
    for at in (NOW + timedelta(days=31), NOW - timedelta(days=31)):
        faults = read_material(paths, now=at)[1]
        assert {fault.field: fault.untimely.expires for fault in faults} == expires
    paths.key.chmod(0o644)
    (fault,) = read_material(paths, now=NOW)[1]
    assert fault.untimely is None


def test_a_certificate_in_the_authoritys_place_is_a_fault(authority) -> None:
    paths = authority.issue("decode-0")
    found = faults_of(TlsPaths(ca=paths.certificate, certificate=paths.certificate, key=paths.key))
    assert found[0][0] == "ca"
    assert "pdd://one/decode/decode-0" in found[0][1]


def test_a_key_that_everybody_may_read_is_a_fault(authority) -> None:
    paths = authority.issue("decode-0")
    paths.key.chmod(0o644)
    ((field, message),) = faults_of(paths)
    assert field == "key"
    assert "mode 0644" in message


def test_a_key_that_is_gone_once_it_was_read_is_judged_by_what_was_read(
    authority, monkeypatch
) -> None:
    paths = authority.issue("decode-0")
    paths.key.chmod(0o644)
    load = serialization.load_pem_private_key

    def gone(*arguments, **options):
        paths.key.unlink()
        return load(*arguments, **options)

    monkeypatch.setattr(serialization, "load_pem_private_key", gone)
    ((field, message),) = faults_of(paths)
    assert field == "key"
    assert "mode 0644" in message


def test_one_of_several_authorities_will_do(authority, tmp_path) -> None:
    """Renewing an authority: both are trusted while certificates are replaced."""
    paths = authority.issue("decode-0")
    other = Authority(tmp_path / "other")
    authority.ca.write_bytes(other.ca.read_bytes() + authority.ca.read_bytes())
    assert faults_of(paths) == []

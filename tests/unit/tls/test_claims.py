"""What a certificate lets its holder claim."""

import pytest

from pdd.tls.claims import PeerRefused, caller_of, check_claim
from pdd.tls.identity import CertificateIdentity, CertificateRole, cluster_of_authority

DECODE = CertificateIdentity(cluster="one", role=CertificateRole.DECODE, name="decode-0")


def context(*uris: str, **more: list[bytes]) -> dict[str, list[bytes]]:
    return {"peer_uri": [uri.encode() for uri in uris], **more}


def test_the_caller_is_whom_its_one_uri_names() -> None:
    assert caller_of(context(str(DECODE), "spiffe://other"), cluster="one") == DECODE


@pytest.mark.parametrize(
    ("uris", "words"),
    [
        ([], "no pdd:// identity"),
        (["spiffe://one/decode/decode-0"], "no pdd:// identity"),
        (["pdd://one/decode/a", "pdd://one/decode/b"], "must name one"),
        (["pdd://two/decode/decode-0"], "cluster 'two'.*cluster 'one'"),
        (["pdd://one/king/decode-0"], "king"),
        (["pdd://one/decode"], "pdd://CLUSTER/ROLE/NAME"),
        (["pdd://one/decode/decode-0/x"], "pdd://CLUSTER/ROLE/NAME"),
        (["pdd://one/decode/Decode"], "pdd://CLUSTER/ROLE/NAME"),
        (["pdd://one/decode/decode-0\n"], "pdd://CLUSTER/ROLE/NAME"),
        (["pdd://one"], "pdd://CLUSTER/ROLE/NAME"),
    ],
)
def test_a_certificate_that_names_nobody_here_is_refused(uris, words) -> None:
    with pytest.raises(PeerRefused, match=words):
        caller_of(context(*uris), cluster="one")


def test_a_dns_name_or_common_name_cannot_pose_as_an_identity() -> None:
    with pytest.raises(PeerRefused):
        caller_of(
            context(
                peer_dns=[str(DECODE).encode()],
                x509_common_name=[str(DECODE).encode()],
                x509_subject_alternative_name=[str(DECODE).encode()],
            ),
            cluster="one",
        )


def test_a_node_claims_its_own_name_and_a_plain_caller_any() -> None:
    check_claim(DECODE, name="decode-0")
    check_claim(DECODE, name="decode-0", roles=(CertificateRole.DECODE,))
    check_claim(None, name="anybody")


@pytest.mark.parametrize(
    ("role", "name", "claimed", "roles"),
    [
        ("decode", "decode-1", "decode-0", (CertificateRole.DECODE,)),
        ("decode", "decode-0", "decode-0", (CertificateRole.PREFILL,)),
        ("client", "decode-0", "decode-0", (CertificateRole.DECODE, CertificateRole.PREFILL)),
        ("scheduler", "decode-0", "decode-0", (CertificateRole.DECODE, CertificateRole.PREFILL)),
    ],
)
def test_another_name_or_role_is_refused_with_both_sides_named(role, name, claimed, roles) -> None:
    caller = CertificateIdentity(cluster="one", role=CertificateRole(role), name=name)
    with pytest.raises(PeerRefused) as caught:
        check_claim(caller, name=claimed, roles=roles)
    assert f"{role}/{name}" in str(caught.value)
    assert f"{roles[0]}/{claimed}" in str(caught.value)


@pytest.mark.parametrize("uri", ["pdd://", "pdd://one/decode", "pdd://One", "http://one"])
def test_an_authority_names_a_cluster(uri) -> None:
    assert cluster_of_authority("pdd://one") == "one"
    with pytest.raises(ValueError, match="pdd://CLUSTER"):
        cluster_of_authority(uri)

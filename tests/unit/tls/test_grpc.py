"""Real gRPC servers on loopback, and everybody who should not get in."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from structlog.testing import capture_logs

from pdd.core.errors import ConfigError
from pdd.tls.paths import TlsPaths
from pdd.tls.public import PublicTls
from pdd.tls.security import PLAIN, TlsSecurity
from tests.unit.tls.certificates import NOW, Authority

OPTIONS = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0)]
WAIT_S = 20.0


@contextlib.asynccontextmanager
async def serving(bind: Any, caller: Any = None) -> AsyncIterator[str]:
    """Answers with who called."""

    async def whoami(request: bytes, context: Any) -> bytes:
        return str(caller(context) if caller else "anybody").encode()

    server = grpc.aio.server()
    handler = grpc.unary_unary_rpc_method_handler(whoami)
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("t", {"w": handler})])
    port = bind(server, "127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(grace=None)


async def ask(channel: grpc.aio.Channel) -> str:
    async with channel:
        return (await channel.unary_unary("/t/w")(b"", timeout=WAIT_S)).decode()


async def ask_as(security: Any, address: str) -> str:
    return await ask(security.channel(address, options=OPTIONS))


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "one")


async def test_a_member_is_known_by_its_certificate(authority: Authority) -> None:
    scheduler = authority.security("scheduler-0")
    async with serving(scheduler.bind, scheduler.caller) as address:
        decode = authority.security("decode-0")
        assert await ask_as(decode, address) == "pdd://one/decode/decode-0"
        client = authority.security("me", role="client", hosts=())
        assert await ask_as(client, address) == "pdd://one/client/me"
        call = client.blocking_channel(address, options=OPTIONS)
        with call:
            answer = await asyncio.to_thread(call.unary_unary("/t/w"), b"", timeout=WAIT_S)
        assert answer == b"pdd://one/client/me"


async def test_nobody_else_gets_an_answer(authority: Authority, tmp_path: Path) -> None:
    scheduler = authority.security("scheduler-0")
    # Of the same names, by another authority; it trusts ours, so only the server can refuse it.
    foreign = Authority(tmp_path / "two").issue("decode-0")
    strangers = {
        "a foreign authority": TlsSecurity(
            TlsPaths(
                ca=_both(authority, tmp_path), certificate=foreign.certificate, key=foreign.key
            )
        ),
        "expired": authority.expired("decode-0"),
    }
    async with serving(scheduler.bind, scheduler.caller) as address:
        channels = {name: s.channel(address, options=OPTIONS) for name, s in strangers.items()}
        channels["plain"] = grpc.aio.insecure_channel(address, options=OPTIONS)
        channels["no certificate"] = grpc.aio.secure_channel(
            address, grpc.ssl_channel_credentials(authority.ca.read_bytes()), options=OPTIONS
        )
        for name, channel in channels.items():
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await ask(channel)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE, name


def _both(authority: Authority, tmp_path: Path) -> Path:
    path = tmp_path / "both.crt"
    path.write_bytes(authority.ca.read_bytes() + (tmp_path / "two" / "ca.crt").read_bytes())
    return path


async def test_a_server_of_another_authority_or_host_is_not_spoken_to(
    authority: Authority, tmp_path: Path
) -> None:
    decode = authority.security("decode-0")
    foreign = Authority(tmp_path / "two").security("scheduler-0")
    elsewhere = authority.security("scheduler-0", hosts=("10.0.0.1", "head.example.org"))
    for server in (foreign, elsewhere):
        async with serving(server.bind) as address:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await ask_as(decode, address)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_clients_certificate_serves_nothing(authority: Authority) -> None:
    client = authority.security("me", role="client")
    async with serving(client.bind) as address:
        with pytest.raises(grpc.aio.AioRpcError):
            await ask_as(authority.security("decode-0"), address)


async def test_a_renewed_certificate_is_used_without_a_restart(authority: Authority) -> None:
    server = TlsSecurity(authority.issue("scheduler-0", hosts=("10.0.0.1",)))
    decode = authority.security("decode-0")
    async with serving(server.bind) as address:
        with pytest.raises(grpc.aio.AioRpcError):
            await ask_as(decode, address)
        before = server.version()
        authority.issue("scheduler-0", force=True)
        assert await ask_as(decode, address) == "anybody"
        assert server.version() is not before


async def test_a_renewal_that_is_half_done_or_wrong_changes_nothing(authority: Authority) -> None:
    server = TlsSecurity(authority.issue("scheduler-0"))
    decode = authority.security("decode-0")
    async with serving(server.bind) as address:
        before = server.version()
        other = authority.issue("scheduler-1")
        other.key.replace(authority.paths("scheduler-0").key)
        with capture_logs() as logs:
            assert await ask_as(decode, address) == "anybody"
            assert await ask_as(decode, address) == "anybody"
        assert [entry["event"] for entry in logs] == ["certificate_not_renewed"]
        assert "does not belong" in logs[0]["reason"]
        authority.paths("scheduler-0").certificate.unlink()
        assert await ask_as(decode, address) == "anybody"
        assert server.version() is before


@pytest.mark.parametrize(
    ("name", "role"),
    [("decode-1", "decode"), ("decode-0", "client"), ("decode-0", "prefill")],
)
async def test_a_renewal_that_names_somebody_else_changes_nothing(
    authority: Authority, name: str, role: str
) -> None:
    scheduler = authority.security("scheduler-0")
    decode = authority.security("decode-0")
    async with serving(scheduler.bind, scheduler.caller) as address:
        before = decode.version()
        authority.issue(name, role=role, file="decode-0", force=True)
        with capture_logs() as logs:
            for _ in range(2):
                assert await ask_as(decode, address) == "pdd://one/decode/decode-0"
        assert decode.version() is before
        (told,) = logs
        assert told["event"] == "certificate_not_renewed"
        for word in ("decode-0.crt", f"pdd://one/{role}/{name}", "pdd://one/decode/decode-0"):
            assert word in told["reason"]
        authority.issue("decode-0", force=True)
        assert await ask_as(decode, address) == "pdd://one/decode/decode-0"
        assert decode.version() is not before


def test_a_renewal_of_another_cluster_or_of_nobody_changes_nothing(
    authority: Authority, tmp_path: Path
) -> None:
    """The authority's file was replaced too, so that each pair is whole and signed."""
    decode = authority.security("decode-0")
    paths, before = authority.paths("decode-0"), decode.version()
    two = Authority(tmp_path / "two", "two")
    other = two.issue("decode-0")
    authority.ca.write_bytes(authority.ca.read_bytes() + two.ca.read_bytes())
    pairs = [other, TlsPaths(ca=two.ca, certificate=two.ca, key=two.folder / "ca.key")]
    for pair, words in zip(pairs, ("pdd://two/decode/decode-0", "no pdd:// identity"), strict=True):
        paths.certificate.write_bytes(pair.certificate.read_bytes())
        paths.key.write_bytes(pair.key.read_bytes())
        with capture_logs() as logs:
            assert decode.version() is before
        (told,) = logs
        assert words in told["reason"]


def test_a_front_doors_renewal_may_name_anybody(authority: Authority) -> None:
    public = PublicTls(_front_door(authority.issue("front", role="scheduler"), ca=None))
    before = public.material()
    authority.issue("shop", role="client", file="front", force=True)
    assert public.material().facts.serial != before.facts.serial


async def test_plain_connections_stay_on_this_machine() -> None:
    async with serving(PLAIN.bind, PLAIN.caller) as address:
        assert await ask_as(PLAIN, address) == "None"
    server = grpc.aio.server()
    for address in ("0.0.0.0:0", "[::]:0", "10.0.0.1:7070", "head.example.org:7070"):
        with pytest.raises(ConfigError, match="pdd certs init"):
            PLAIN.bind(server, address)
        for dial in (PLAIN.channel, PLAIN.blocking_channel):
            with pytest.raises(ConfigError, match="loopback"):
                dial(address, options=OPTIONS)


def test_a_front_doors_files_are_told_by_its_own_keys(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        PublicTls(_front_door(TlsPaths(ca=None, certificate=tmp_path, key=tmp_path), ca=tmp_path))
    assert [line.partition(": ")[0] for line in str(caught.value).splitlines()] == [
        "public_tls.client_ca",
        "public_tls.certificate",
        "public_tls.key",
    ]


def test_files_that_do_not_fit_are_told_all_at_once(authority: Authority) -> None:
    one, other = authority.issue("decode-0"), authority.issue("decode-1")
    paths = TlsPaths(ca=one.ca, certificate=one.certificate, key=other.key)
    with pytest.raises(ConfigError) as caught:
        TlsSecurity(paths, now=lambda: NOW + timedelta(days=11))
    assert len(str(caught.value).splitlines()) == 2


def test_a_certificate_without_an_identity_makes_no_member(authority: Authority) -> None:
    ca = TlsPaths(ca=authority.ca, certificate=authority.ca, key=authority.folder / "ca.key")
    with pytest.raises(ConfigError, match="pdd:// identity"):
        TlsSecurity(ca)


def _front_door(paths: TlsPaths, *, ca: Path | None) -> TlsPaths:
    return TlsPaths(ca=ca, certificate=paths.certificate, key=paths.key, is_own_authority=False)


class TestTheFrontDoor:
    async def test_anybody_who_knows_its_authority_gets_in(self, authority: Authority) -> None:
        paths = authority.issue("scheduler-0")
        public = PublicTls(_front_door(paths, ca=None))
        async with serving(public.bind) as address:
            channel = grpc.aio.secure_channel(
                address, grpc.ssl_channel_credentials(authority.ca.read_bytes()), options=OPTIONS
            )
            assert await ask(channel) == "anybody"

    async def test_with_a_clients_authority_only_its_clients_do(self, authority: Authority) -> None:
        paths = authority.issue("scheduler-0")
        public = PublicTls(_front_door(paths, ca=paths.ca))
        async with serving(public.bind) as address:
            client = authority.security("me", role="client", hosts=())
            assert await ask_as(client, address) == "anybody"
            channel = grpc.aio.secure_channel(
                address, grpc.ssl_channel_credentials(authority.ca.read_bytes()), options=OPTIONS
            )
            with pytest.raises(grpc.aio.AioRpcError):
                await ask(channel)

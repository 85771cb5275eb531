"""Rules about [tls] and [public_tls]: which keys belong together, and who may listen where. Pure.

What the files themselves must hold is checked by ``tls_files``.
"""

from collections.abc import Iterator

from pdd.config.broken import BrokenRelation
from pdd.config.sections import Config
from pdd.config.types import HostPort, is_unspecified
from pdd.core.identity import Role
from pdd.tls.loopback import plain_fault

_PUBLIC_ADVICE = (
    "give [public_tls] certificate and key, or listen on 127.0.0.1 or [::1] behind a proxy that "
    "speaks TLS"
)


def broken_tls_relations(config: Config) -> Iterator[BrokenRelation]:
    """Yield every rule that ``config`` breaks."""
    yield from _incomplete("tls", config.tls.model_dump(), needed=("ca", "certificate", "key"))
    yield from _incomplete(
        "public_tls", config.public_tls.model_dump(), needed=("certificate", "key")
    )
    yield from _plain(config)
    is_node = config.node.role is not Role.SCHEDULER
    is_wildcard = is_unspecified(config.grpc.listen.host)
    if is_node and is_wildcard and config.tls.certificate and not config.grpc.advertise:
        yield BrokenRelation(
            keys=("grpc.advertise", "grpc.listen"),
            message=f"grpc.advertise is empty, and others cannot dial grpc.listen "
            f"({config.grpc.listen}); name the host under which they reach this node",
        )
    if is_node and config.grpc.public_listen is not None:
        yield BrokenRelation(
            keys=("grpc.public_listen",),
            message=f"grpc.public_listen is {config.grpc.public_listen}, and a {config.node.role} "
            "node serves no clients; only a scheduler does",
        )


def _incomplete(
    section: str, values: dict[str, str], *, needed: tuple[str, ...]
) -> Iterator[BrokenRelation]:
    given = [key for key, value in values.items() if value]
    missing = [key for key in needed if not values[key]]
    if given and missing:
        yield BrokenRelation(
            keys=tuple(f"{section}.{key}" for key in (*missing, *given)),
            message=f"{section}.{missing[0]} is empty, and {section}.{given[0]} is set; "
            f"{', '.join(needed)} belong together: give all of them or none",
        )


def _plain(config: Config) -> Iterator[BrokenRelation]:
    """Servers and dialled addresses beyond loopback that nothing protects."""
    if not config.tls.certificate:
        if not config.grpc.listen.is_loopback:
            yield _plain_member("grpc.listen", config.grpc.listen)
        if config.node.role is not Role.SCHEDULER:
            for address in config.node.schedulers:
                if not address.is_loopback:
                    yield _plain_member("node.schedulers", address)
    if not config.public_tls.certificate:
        public = {
            "http.listen": config.http.listen,
            "grpc.public_listen": config.grpc.public_listen,
        }
        for key, listen in public.items():
            if listen is not None and not listen.is_loopback:
                yield BrokenRelation(
                    keys=(key,),
                    message=f"{key}: {listen} is not a loopback address, and without "
                    f"[public_tls] clients are served plain TCP on loopback only; {_PUBLIC_ADVICE}",
                )


def _plain_member(key: str, address: HostPort) -> BrokenRelation:
    return BrokenRelation(keys=(key,), message=plain_fault(key, str(address)))

"""Rules between keys. Each names the keys that it compares, so that a fault can name its origin."""

from collections.abc import Iterator
from itertools import combinations

from pdd.config.broken import BrokenRelation
from pdd.config.sections import Config
from pdd.config.tls_relations import broken_tls_relations
from pdd.core.identity import Role

_GROUP_SIZES = (3, 5)


def broken_relations(config: Config) -> Iterator[BrokenRelation]:
    """Yield every rule that ``config`` breaks. Pure."""
    engine = config.engine
    if 0 < engine.max_num_batched_tokens < engine.max_num_seqs:
        yield BrokenRelation(
            keys=("engine.max_num_batched_tokens", "engine.max_num_seqs"),
            message=f"engine.max_num_batched_tokens ({engine.max_num_batched_tokens}) must be at "
            f"least engine.max_num_seqs ({engine.max_num_seqs}), else a full batch does not fit "
            "into one step",
        )
    if engine.block_size % 16:
        yield BrokenRelation(
            keys=("engine.block_size",),
            message=f"engine.block_size ({engine.block_size}) must be a multiple of 16, or 0",
        )
    yield from broken_tls_relations(config)
    if config.node.role is Role.SCHEDULER:
        yield from _of_a_scheduler(config)
    elif not config.node.schedulers:
        yield BrokenRelation(
            keys=("node.schedulers",),
            message=f"node.schedulers is empty, but a {config.node.role} node needs one to join",
        )


def _of_a_scheduler(config: Config) -> Iterator[BrokenRelation]:
    scheduler = config.scheduler
    if scheduler.node_timeout_s < 3 * config.node.status_interval_s:
        yield BrokenRelation(
            keys=("scheduler.node_timeout_s", "node.status_interval_s"),
            message=f"scheduler.node_timeout_s ({scheduler.node_timeout_s:g}) must be at least 3 x "
            f"node.status_interval_s ({config.node.status_interval_s:g}), else one late message "
            "loses a node",
        )
    yield from _of_a_group(config)
    listens = {
        "http.listen": config.http.listen,
        "grpc.listen": config.grpc.listen,
        "grpc.public_listen": config.grpc.public_listen,
    }
    for one, other in combinations(listens, 2):
        address = listens[one]
        if address is not None and address == listens[other] and address.port:
            yield BrokenRelation(keys=(one, other), message=f"{one} and {other} are both {address}")


def _of_a_group(config: Config) -> Iterator[BrokenRelation]:
    raft, name = config.raft, config.node.name
    if not raft.replicas and not raft.schedulers:
        return
    if raft.replicas.keys() != raft.schedulers.keys():
        differ = ", ".join(sorted(raft.replicas.keys() ^ raft.schedulers.keys()))
        yield BrokenRelation(
            keys=("raft.replicas", "raft.schedulers"),
            message=f"raft.replicas and raft.schedulers must name the same schedulers; {differ} is "
            "in one of them only",
        )
    if name not in raft.replicas:
        yield BrokenRelation(
            keys=("raft.replicas", "node.name"),
            message=f"raft.replicas names {', '.join(sorted(raft.replicas)) or 'nobody'}, and this "
            f"is {name}: name it too",
        )
    if len(raft.replicas) not in _GROUP_SIZES:
        yield BrokenRelation(
            keys=("raft.replicas",),
            message=f"raft.replicas has {len(raft.replicas)} schedulers; a group has 3 or 5",
        )
    for address in raft.replicas.values():
        if not address.is_loopback and not config.tls.certificate:
            yield BrokenRelation(
                keys=("raft.replicas", "tls.certificate"),
                message=f"raft.replicas has {address}, beyond loopback: give [tls] ca, certificate "
                "and key",
            )
            break

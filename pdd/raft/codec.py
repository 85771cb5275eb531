"""Messages and entries to and from bytes: msgpack arrays by position.

    envelope = [version, cluster_id, voters_hash, kind, source, target, term, *fields of the kind]
    entry    = [index, term, kind, data]

Versions of the envelope: 1 (first). A decoder reads OLDEST_READABLE_VERSION .. VERSION; a sender
writes VERSION, lowered to what the peer's handshake names. A field is only ever added at the end of
its kind, with a default for older senders.

A decoder meets bytes from outside: it raises `DecodeError`, and nothing else, for whatever is not
a message, with the reason and never with the bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgpack

from pdd.core.errors import PddError
from pdd.raft.config import RaftConfig, voters_hash
from pdd.raft.messages import (
    AppendRequest,
    AppendResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    InstallSnapshot,
    Message,
    PreVoteRequest,
    PreVoteResponse,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)
from pdd.raft.values import Entry, EntryKind, NodeId, SnapshotMeta

VERSION = 1
OLDEST_READABLE_VERSION = 1
MAX_NUMBER = 2**63 - 1
MAX_NAME_CHARS = 256
_ENTRY_FIELD_COUNT = 4
_ENTRY_KINDS = {int(kind): kind for kind in EntryKind}


_pack = msgpack.Packer().pack
"""`msgpack.packb` makes a packer, with a buffer of 1 MiB, for each call. One thread only: the
loop's."""


class DecodeError(PddError):
    """These bytes are not a message this replica understands."""


class ForeignClusterError(DecodeError):
    """A well-formed message of another cluster, or of one with other voters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Which cluster a message belongs to."""

    cluster_id: str
    voters_hash: bytes

    @classmethod
    def of(cls, config: RaftConfig) -> Identity:
        return cls(cluster_id=config.cluster_id, voters_hash=voters_hash(config.voters))


def encode_message(message: Message, identity: Identity) -> bytes:
    kind, fields = _KINDS[type(message)]
    payload: bytes = _pack(
        [
            VERSION,
            identity.cluster_id,
            identity.voters_hash,
            kind,
            message.source,
            message.target,
            message.term,
            *fields(message),
        ]
    )
    return payload


def decode_message(data: bytes, identity: Identity) -> Message:
    """Raises: DecodeError, ForeignClusterError."""
    values = _Values(unpack_list(data))
    version = values.number("version")
    if not OLDEST_READABLE_VERSION <= version <= VERSION:
        raise DecodeError(
            f"message version {version}; this replica reads "
            f"{OLDEST_READABLE_VERSION} to {VERSION}: upgrade the older one first"
        )
    cluster_id, voters = values.name("cluster_id"), values.blob("voters_hash")
    if cluster_id != identity.cluster_id:
        raise ForeignClusterError(
            f"message of cluster {cluster_id!r}, this is {identity.cluster_id!r}: "
            "check the peer's address and raft.cluster_id"
        )
    if voters != identity.voters_hash:
        raise ForeignClusterError(
            f"peer's voters hash to {voters.hex()}, ours to {identity.voters_hash.hex()}: "
            "raft.voters must be the same on every replica"
        )
    decoder = _DECODERS.get(values.number("kind"))
    if decoder is None:
        raise DecodeError("unknown kind of message")
    common = {
        "source": NodeId(values.name("source")),
        "target": NodeId(values.name("target")),
        "term": values.number("term"),
    }
    message = decoder(common, values)
    values.finish()
    return message


def unpack_entries(rows: object) -> list[Entry]:
    """Of a message or of a WAL batch, where an entry is its own tuple. Raises: DecodeError."""
    if not isinstance(rows, list):
        raise DecodeError("entries are not a list")
    entries = []
    for row in rows:
        if type(row) is not list or len(row) != _ENTRY_FIELD_COUNT:
            raise DecodeError(f"an entry is not a list of {_ENTRY_FIELD_COUNT} values")
        index, term, kind, data = row
        if type(index) is not int or not 0 <= index <= MAX_NUMBER:
            raise DecodeError(f"index is not a number from 0 to {MAX_NUMBER}")
        if type(term) is not int or not 0 <= term <= MAX_NUMBER:
            raise DecodeError(f"term is not a number from 0 to {MAX_NUMBER}")
        if type(data) is not bytes:
            raise DecodeError("data is not bytes")
        known_kind = _ENTRY_KINDS.get(kind) if type(kind) is int else None
        if known_kind is None:
            raise DecodeError("unknown kind of entry: written by a newer version?")
        entries.append(Entry(index, term, known_kind, data))
    return entries


def unpack_list(data: bytes) -> list[Any]:
    """Raises: DecodeError."""
    try:
        values = msgpack.unpackb(data, strict_map_key=True)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise DecodeError(f"not msgpack ({type(error).__name__})") from error
    if not isinstance(values, list):
        raise DecodeError("not a list")
    return values


class _Values:
    """Takes typed values from a list, one after the other."""

    __slots__ = ("_position", "_values")

    def __init__(self, values: list[Any]) -> None:
        self._values = values
        self._position = 0

    def any(self, name: str) -> object:
        if self._position >= len(self._values):
            raise DecodeError(f"ends before {name}")
        value: object = self._values[self._position]
        self._position += 1
        return value

    def number(self, name: str) -> int:
        value = self.any(name)
        if type(value) is not int or not 0 <= value <= MAX_NUMBER:
            raise DecodeError(f"{name} is not a number from 0 to {MAX_NUMBER}")
        return value

    def flag(self, name: str) -> bool:
        value = self.any(name)
        if type(value) is not bool:
            raise DecodeError(f"{name} is not true or false")
        return value

    def blob(self, name: str) -> bytes:
        value = self.any(name)
        if type(value) is not bytes:
            raise DecodeError(f"{name} is not bytes")
        return value

    def name(self, name: str) -> str:
        value = self.any(name)
        if type(value) is not str or len(value) > MAX_NAME_CHARS:
            raise DecodeError(f"{name} is not text of at most {MAX_NAME_CHARS} characters")
        return value

    def finish(self) -> None:
        if self._position != len(self._values):
            raise DecodeError(f"{len(self._values) - self._position} values too many")


def _decode_append(common: dict[str, Any], values: _Values) -> Message:
    return AppendRequest(
        **common,
        prev_index=values.number("prev_index"),
        prev_term=values.number("prev_term"),
        commit_index=values.number("commit_index"),
        entries=unpack_entries(values.any("entries")),
    )


_DECODERS: dict[int, Callable[[dict[str, Any], _Values], Message]] = {
    1: lambda common, v: VoteRequest(
        **common,
        last_index=v.number("last_index"),
        last_term=v.number("last_term"),
        is_transfer=v.flag("is_transfer"),
    ),
    2: lambda common, v: VoteResponse(**common, granted=v.flag("granted")),
    3: lambda common, v: PreVoteRequest(
        **common, last_index=v.number("last_index"), last_term=v.number("last_term")
    ),
    4: lambda common, v: PreVoteResponse(**common, granted=v.flag("granted")),
    5: _decode_append,
    6: lambda common, v: AppendResponse(
        **common,
        match_index=v.number("match_index"),
        rejected=v.flag("rejected"),
        hint_index=v.number("hint_index"),
        hint_term=v.number("hint_term"),
    ),
    7: lambda common, v: HeartbeatRequest(
        **common,
        commit_index=v.number("commit_index"),
        read_sequence=v.number("read_sequence"),
        hash_index=v.number("hash_index"),
        state_hash=v.blob("state_hash"),
    ),
    8: lambda common, v: HeartbeatResponse(**common, read_sequence=v.number("read_sequence")),
    9: lambda common, v: InstallSnapshot(
        **common,
        meta=SnapshotMeta(index=v.number("snapshot index"), term=v.number("snapshot term")),
        data=v.blob("data"),
    ),
    10: lambda common, v: TimeoutNow(**common),
}

_KINDS: dict[type[Message], tuple[int, Callable[[Any], list[Any]]]] = {
    VoteRequest: (1, lambda m: [m.last_index, m.last_term, m.is_transfer]),
    VoteResponse: (2, lambda m: [m.granted]),
    PreVoteRequest: (3, lambda m: [m.last_index, m.last_term]),
    PreVoteResponse: (4, lambda m: [m.granted]),
    AppendRequest: (
        5,
        lambda m: [m.prev_index, m.prev_term, m.commit_index, m.entries],
    ),
    AppendResponse: (6, lambda m: [m.match_index, m.rejected, m.hint_index, m.hint_term]),
    HeartbeatRequest: (
        7,
        lambda m: [m.commit_index, m.read_sequence, m.hash_index, m.state_hash],
    ),
    HeartbeatResponse: (8, lambda m: [m.read_sequence]),
    InstallSnapshot: (9, lambda m: [m.meta.index, m.meta.term, m.data]),
    TimeoutNow: (10, lambda m: []),
}

from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class OutcomeKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OUTCOME_KIND_UNSPECIFIED: _ClassVar[OutcomeKind]
    OUTCOME_KIND_OK: _ClassVar[OutcomeKind]
    OUTCOME_KIND_REJECTED: _ClassVar[OutcomeKind]
    OUTCOME_KIND_UNKNOWN: _ClassVar[OutcomeKind]
OUTCOME_KIND_UNSPECIFIED: OutcomeKind
OUTCOME_KIND_OK: OutcomeKind
OUTCOME_KIND_REJECTED: OutcomeKind
OUTCOME_KIND_UNKNOWN: OutcomeKind

class ReplicaHello(_message.Message):
    __slots__ = ("replica", "cluster_id", "voters_hash", "newest_version", "oldest_version")
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    VOTERS_HASH_FIELD_NUMBER: _ClassVar[int]
    NEWEST_VERSION_FIELD_NUMBER: _ClassVar[int]
    OLDEST_VERSION_FIELD_NUMBER: _ClassVar[int]
    replica: str
    cluster_id: str
    voters_hash: bytes
    newest_version: int
    oldest_version: int
    def __init__(self, replica: _Optional[str] = ..., cluster_id: _Optional[str] = ..., voters_hash: _Optional[bytes] = ..., newest_version: _Optional[int] = ..., oldest_version: _Optional[int] = ...) -> None: ...

class DeliverRequest(_message.Message):
    __slots__ = ("hello", "messages")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    hello: ReplicaHello
    messages: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, hello: _Optional[_Union[ReplicaHello, _Mapping]] = ..., messages: _Optional[_Iterable[bytes]] = ...) -> None: ...

class DeliverResponse(_message.Message):
    __slots__ = ("hello",)
    HELLO_FIELD_NUMBER: _ClassVar[int]
    hello: ReplicaHello
    def __init__(self, hello: _Optional[_Union[ReplicaHello, _Mapping]] = ...) -> None: ...

class InstallSnapshotRequest(_message.Message):
    __slots__ = ("header", "chunk")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    header: SnapshotHeader
    chunk: bytes
    def __init__(self, header: _Optional[_Union[SnapshotHeader, _Mapping]] = ..., chunk: _Optional[bytes] = ...) -> None: ...

class SnapshotHeader(_message.Message):
    __slots__ = ("hello", "message", "size_bytes", "crc32")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    CRC32_FIELD_NUMBER: _ClassVar[int]
    hello: ReplicaHello
    message: bytes
    size_bytes: int
    crc32: int
    def __init__(self, hello: _Optional[_Union[ReplicaHello, _Mapping]] = ..., message: _Optional[bytes] = ..., size_bytes: _Optional[int] = ..., crc32: _Optional[int] = ...) -> None: ...

class InstallSnapshotResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SubmitRequest(_message.Message):
    __slots__ = ("submissions",)
    SUBMISSIONS_FIELD_NUMBER: _ClassVar[int]
    submissions: _containers.RepeatedCompositeFieldContainer[Submission]
    def __init__(self, submissions: _Optional[_Iterable[_Union[Submission, _Mapping]]] = ...) -> None: ...

class Submission(_message.Message):
    __slots__ = ("submission_id", "command", "query", "stale_query")
    SUBMISSION_ID_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    QUERY_FIELD_NUMBER: _ClassVar[int]
    STALE_QUERY_FIELD_NUMBER: _ClassVar[int]
    submission_id: int
    command: Command
    query: bytes
    stale_query: bytes
    def __init__(self, submission_id: _Optional[int] = ..., command: _Optional[_Union[Command, _Mapping]] = ..., query: _Optional[bytes] = ..., stale_query: _Optional[bytes] = ...) -> None: ...

class Command(_message.Message):
    __slots__ = ("session_id", "sequence", "body")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    sequence: int
    body: bytes
    def __init__(self, session_id: _Optional[str] = ..., sequence: _Optional[int] = ..., body: _Optional[bytes] = ...) -> None: ...

class SubmitResponse(_message.Message):
    __slots__ = ("outcomes",)
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    outcomes: _containers.RepeatedCompositeFieldContainer[SubmissionOutcome]
    def __init__(self, outcomes: _Optional[_Iterable[_Union[SubmissionOutcome, _Mapping]]] = ...) -> None: ...

class SubmissionOutcome(_message.Message):
    __slots__ = ("submission_id", "kind", "result", "reason", "leader_address")
    SUBMISSION_ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    LEADER_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    submission_id: int
    kind: OutcomeKind
    result: bytes
    reason: str
    leader_address: str
    def __init__(self, submission_id: _Optional[int] = ..., kind: _Optional[_Union[OutcomeKind, str]] = ..., result: _Optional[bytes] = ..., reason: _Optional[str] = ..., leader_address: _Optional[str] = ...) -> None: ...

class WatchRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WatchResponse(_message.Message):
    __slots__ = ("snapshot", "entries")
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    snapshot: bytes
    entries: _containers.RepeatedCompositeFieldContainer[WatchedEntry]
    def __init__(self, snapshot: _Optional[bytes] = ..., entries: _Optional[_Iterable[_Union[WatchedEntry, _Mapping]]] = ...) -> None: ...

class WatchedEntry(_message.Message):
    __slots__ = ("index", "body")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    index: int
    body: bytes
    def __init__(self, index: _Optional[int] = ..., body: _Optional[bytes] = ...) -> None: ...

class GetStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetStatusResponse(_message.Message):
    __slots__ = ("replica", "role", "term", "leader", "leader_address", "commit_index", "applied_index", "last_index", "snapshot_index", "state_hash", "longest_pause_us", "dropped_message_count")
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    LEADER_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    COMMIT_INDEX_FIELD_NUMBER: _ClassVar[int]
    APPLIED_INDEX_FIELD_NUMBER: _ClassVar[int]
    LAST_INDEX_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_INDEX_FIELD_NUMBER: _ClassVar[int]
    STATE_HASH_FIELD_NUMBER: _ClassVar[int]
    LONGEST_PAUSE_US_FIELD_NUMBER: _ClassVar[int]
    DROPPED_MESSAGE_COUNT_FIELD_NUMBER: _ClassVar[int]
    replica: str
    role: str
    term: int
    leader: str
    leader_address: str
    commit_index: int
    applied_index: int
    last_index: int
    snapshot_index: int
    state_hash: bytes
    longest_pause_us: int
    dropped_message_count: int
    def __init__(self, replica: _Optional[str] = ..., role: _Optional[str] = ..., term: _Optional[int] = ..., leader: _Optional[str] = ..., leader_address: _Optional[str] = ..., commit_index: _Optional[int] = ..., applied_index: _Optional[int] = ..., last_index: _Optional[int] = ..., snapshot_index: _Optional[int] = ..., state_hash: _Optional[bytes] = ..., longest_pause_us: _Optional[int] = ..., dropped_message_count: _Optional[int] = ...) -> None: ...

class TransferLeadershipRequest(_message.Message):
    __slots__ = ("target",)
    TARGET_FIELD_NUMBER: _ClassVar[int]
    target: str
    def __init__(self, target: _Optional[str] = ...) -> None: ...

class TransferLeadershipResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class TakeSnapshotRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class TakeSnapshotResponse(_message.Message):
    __slots__ = ("snapshot_index",)
    SNAPSHOT_INDEX_FIELD_NUMBER: _ClassVar[int]
    snapshot_index: int
    def __init__(self, snapshot_index: _Optional[int] = ...) -> None: ...

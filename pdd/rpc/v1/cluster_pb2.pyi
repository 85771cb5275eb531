from pdd.rpc.v1 import inference_pb2 as _inference_pb2
from pdd.rpc.v1 import raft_pb2 as _raft_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class NodeIdentity(_message.Message):
    __slots__ = ("name", "uuid", "boot_epoch")
    NAME_FIELD_NUMBER: _ClassVar[int]
    UUID_FIELD_NUMBER: _ClassVar[int]
    BOOT_EPOCH_FIELD_NUMBER: _ClassVar[int]
    name: str
    uuid: str
    boot_epoch: int
    def __init__(self, name: _Optional[str] = ..., uuid: _Optional[str] = ..., boot_epoch: _Optional[int] = ...) -> None: ...

class NodeMessage(_message.Message):
    __slots__ = ("hello", "status", "frames", "failed", "transfer_done", "tokens", "blocks_held", "held", "found", "cache_position", "cache_delta", "cache_snapshot")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_DONE_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_HELD_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    FOUND_FIELD_NUMBER: _ClassVar[int]
    CACHE_POSITION_FIELD_NUMBER: _ClassVar[int]
    CACHE_DELTA_FIELD_NUMBER: _ClassVar[int]
    CACHE_SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    status: NodeStatus
    frames: FrameBatch
    failed: NodeRequestFailed
    transfer_done: TransferDone
    tokens: TokenColumns
    blocks_held: BlocksHeld
    held: HeldRequests
    found: HeldRequest
    cache_position: CachePosition
    cache_delta: CacheDelta
    cache_snapshot: CacheSnapshotPart
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., status: _Optional[_Union[NodeStatus, _Mapping]] = ..., frames: _Optional[_Union[FrameBatch, _Mapping]] = ..., failed: _Optional[_Union[NodeRequestFailed, _Mapping]] = ..., transfer_done: _Optional[_Union[TransferDone, _Mapping]] = ..., tokens: _Optional[_Union[TokenColumns, _Mapping]] = ..., blocks_held: _Optional[_Union[BlocksHeld, _Mapping]] = ..., held: _Optional[_Union[HeldRequests, _Mapping]] = ..., found: _Optional[_Union[HeldRequest, _Mapping]] = ..., cache_position: _Optional[_Union[CachePosition, _Mapping]] = ..., cache_delta: _Optional[_Union[CacheDelta, _Mapping]] = ..., cache_snapshot: _Optional[_Union[CacheSnapshotPart, _Mapping]] = ...) -> None: ...

class CachePosition(_message.Message):
    __slots__ = ("sequence",)
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    def __init__(self, sequence: _Optional[int] = ...) -> None: ...

class CacheDelta(_message.Message):
    __slots__ = ("first_sequence", "last_sequence", "cleared", "removed", "stored")
    FIRST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    LAST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    CLEARED_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    STORED_FIELD_NUMBER: _ClassVar[int]
    first_sequence: int
    last_sequence: int
    cleared: bool
    removed: bytes
    stored: bytes
    def __init__(self, first_sequence: _Optional[int] = ..., last_sequence: _Optional[int] = ..., cleared: _Optional[bool] = ..., removed: _Optional[bytes] = ..., stored: _Optional[bytes] = ...) -> None: ...

class CacheSnapshotPart(_message.Message):
    __slots__ = ("as_of_sequence", "part_index", "part_count", "keys")
    AS_OF_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    PART_INDEX_FIELD_NUMBER: _ClassVar[int]
    PART_COUNT_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    as_of_sequence: int
    part_index: int
    part_count: int
    keys: bytes
    def __init__(self, as_of_sequence: _Optional[int] = ..., part_index: _Optional[int] = ..., part_count: _Optional[int] = ..., keys: _Optional[bytes] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("identity", "role", "address", "protocol_version", "fingerprint", "block_count", "block_size", "block_bytes", "max_model_len", "max_num_seqs", "model", "ucx_worker_addresses", "vocab_size", "pid", "role_is_pinned", "holds_requests", "forking", "pulls")
    class FingerprintEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    BLOCK_COUNT_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    BLOCK_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_MODEL_LEN_FIELD_NUMBER: _ClassVar[int]
    MAX_NUM_SEQS_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    UCX_WORKER_ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    ROLE_IS_PINNED_FIELD_NUMBER: _ClassVar[int]
    HOLDS_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    FORKING_FIELD_NUMBER: _ClassVar[int]
    PULLS_FIELD_NUMBER: _ClassVar[int]
    identity: NodeIdentity
    role: str
    address: str
    protocol_version: int
    fingerprint: _containers.ScalarMap[str, str]
    block_count: int
    block_size: int
    block_bytes: int
    max_model_len: int
    max_num_seqs: int
    model: str
    ucx_worker_addresses: _containers.RepeatedScalarFieldContainer[bytes]
    vocab_size: int
    pid: int
    role_is_pinned: bool
    holds_requests: bool
    forking: str
    pulls: bool
    def __init__(self, identity: _Optional[_Union[NodeIdentity, _Mapping]] = ..., role: _Optional[str] = ..., address: _Optional[str] = ..., protocol_version: _Optional[int] = ..., fingerprint: _Optional[_Mapping[str, str]] = ..., block_count: _Optional[int] = ..., block_size: _Optional[int] = ..., block_bytes: _Optional[int] = ..., max_model_len: _Optional[int] = ..., max_num_seqs: _Optional[int] = ..., model: _Optional[str] = ..., ucx_worker_addresses: _Optional[_Iterable[bytes]] = ..., vocab_size: _Optional[int] = ..., pid: _Optional[int] = ..., role_is_pinned: _Optional[bool] = ..., holds_requests: _Optional[bool] = ..., forking: _Optional[str] = ..., pulls: _Optional[bool] = ...) -> None: ...

class HeldRequests(_message.Message):
    __slots__ = ("requests", "complete")
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    requests: _containers.RepeatedCompositeFieldContainer[HeldRequest]
    complete: bool
    def __init__(self, requests: _Optional[_Iterable[_Union[HeldRequest, _Mapping]]] = ..., complete: _Optional[bool] = ...) -> None: ...

class HeldRequest(_message.Message):
    __slots__ = ("submit", "first_token", "is_running", "output_token_count", "age_s", "first_token_age_s", "ready_age_s", "ended_age_s")
    SUBMIT_FIELD_NUMBER: _ClassVar[int]
    FIRST_TOKEN_FIELD_NUMBER: _ClassVar[int]
    IS_RUNNING_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    AGE_S_FIELD_NUMBER: _ClassVar[int]
    FIRST_TOKEN_AGE_S_FIELD_NUMBER: _ClassVar[int]
    READY_AGE_S_FIELD_NUMBER: _ClassVar[int]
    ENDED_AGE_S_FIELD_NUMBER: _ClassVar[int]
    submit: Submit
    first_token: FirstToken
    is_running: bool
    output_token_count: int
    age_s: float
    first_token_age_s: float
    ready_age_s: float
    ended_age_s: float
    def __init__(self, submit: _Optional[_Union[Submit, _Mapping]] = ..., first_token: _Optional[_Union[FirstToken, _Mapping]] = ..., is_running: _Optional[bool] = ..., output_token_count: _Optional[int] = ..., age_s: _Optional[float] = ..., first_token_age_s: _Optional[float] = ..., ready_age_s: _Optional[float] = ..., ended_age_s: _Optional[float] = ...) -> None: ...

class NodeStatus(_message.Message):
    __slots__ = ("free_block_count", "running_sequence_count", "waiting_sequence_count", "degraded_reason", "transfer_counters", "links", "blocks", "held_request_count")
    class TransferCountersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    FREE_BLOCK_COUNT_FIELD_NUMBER: _ClassVar[int]
    RUNNING_SEQUENCE_COUNT_FIELD_NUMBER: _ClassVar[int]
    WAITING_SEQUENCE_COUNT_FIELD_NUMBER: _ClassVar[int]
    DEGRADED_REASON_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_COUNTERS_FIELD_NUMBER: _ClassVar[int]
    LINKS_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    HELD_REQUEST_COUNT_FIELD_NUMBER: _ClassVar[int]
    free_block_count: int
    running_sequence_count: int
    waiting_sequence_count: int
    degraded_reason: str
    transfer_counters: _containers.ScalarMap[str, float]
    links: _containers.RepeatedCompositeFieldContainer[PeerLink]
    blocks: BlockStates
    held_request_count: int
    def __init__(self, free_block_count: _Optional[int] = ..., running_sequence_count: _Optional[int] = ..., waiting_sequence_count: _Optional[int] = ..., degraded_reason: _Optional[str] = ..., transfer_counters: _Optional[_Mapping[str, float]] = ..., links: _Optional[_Iterable[_Union[PeerLink, _Mapping]]] = ..., blocks: _Optional[_Union[BlockStates, _Mapping]] = ..., held_request_count: _Optional[int] = ...) -> None: ...

class BlockStates(_message.Message):
    __slots__ = ("free_count", "cached_count", "active_count", "leased_count", "quarantined_count", "total_count", "lost_count", "doubled_count", "check_count")
    FREE_COUNT_FIELD_NUMBER: _ClassVar[int]
    CACHED_COUNT_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_COUNT_FIELD_NUMBER: _ClassVar[int]
    LEASED_COUNT_FIELD_NUMBER: _ClassVar[int]
    QUARANTINED_COUNT_FIELD_NUMBER: _ClassVar[int]
    TOTAL_COUNT_FIELD_NUMBER: _ClassVar[int]
    LOST_COUNT_FIELD_NUMBER: _ClassVar[int]
    DOUBLED_COUNT_FIELD_NUMBER: _ClassVar[int]
    CHECK_COUNT_FIELD_NUMBER: _ClassVar[int]
    free_count: int
    cached_count: int
    active_count: int
    leased_count: int
    quarantined_count: int
    total_count: int
    lost_count: int
    doubled_count: int
    check_count: int
    def __init__(self, free_count: _Optional[int] = ..., cached_count: _Optional[int] = ..., active_count: _Optional[int] = ..., leased_count: _Optional[int] = ..., quarantined_count: _Optional[int] = ..., total_count: _Optional[int] = ..., lost_count: _Optional[int] = ..., doubled_count: _Optional[int] = ..., check_count: _Optional[int] = ...) -> None: ...

class PeerLink(_message.Message):
    __slots__ = ("peer", "transport", "lanes", "received_bytes", "bytes_per_s", "refused_reason")
    PEER_FIELD_NUMBER: _ClassVar[int]
    TRANSPORT_FIELD_NUMBER: _ClassVar[int]
    LANES_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_BYTES_FIELD_NUMBER: _ClassVar[int]
    BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    REFUSED_REASON_FIELD_NUMBER: _ClassVar[int]
    peer: str
    transport: str
    lanes: _containers.RepeatedScalarFieldContainer[str]
    received_bytes: int
    bytes_per_s: float
    refused_reason: str
    def __init__(self, peer: _Optional[str] = ..., transport: _Optional[str] = ..., lanes: _Optional[_Iterable[str]] = ..., received_bytes: _Optional[int] = ..., bytes_per_s: _Optional[float] = ..., refused_reason: _Optional[str] = ...) -> None: ...

class FrameBatch(_message.Message):
    __slots__ = ("frames",)
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    frames: _containers.RepeatedCompositeFieldContainer[TokenFrame]
    def __init__(self, frames: _Optional[_Iterable[_Union[TokenFrame, _Mapping]]] = ...) -> None: ...

class TokenColumns(_message.Message):
    __slots__ = ("request_ids", "generations", "token_indexes", "token_ids", "text_offsets", "texts", "choice_indexes")
    REQUEST_IDS_FIELD_NUMBER: _ClassVar[int]
    GENERATIONS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_INDEXES_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TEXT_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    TEXTS_FIELD_NUMBER: _ClassVar[int]
    CHOICE_INDEXES_FIELD_NUMBER: _ClassVar[int]
    request_ids: _containers.RepeatedScalarFieldContainer[str]
    generations: _containers.RepeatedScalarFieldContainer[int]
    token_indexes: _containers.RepeatedScalarFieldContainer[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    text_offsets: _containers.RepeatedScalarFieldContainer[int]
    texts: _containers.RepeatedScalarFieldContainer[str]
    choice_indexes: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, request_ids: _Optional[_Iterable[str]] = ..., generations: _Optional[_Iterable[int]] = ..., token_indexes: _Optional[_Iterable[int]] = ..., token_ids: _Optional[_Iterable[int]] = ..., text_offsets: _Optional[_Iterable[int]] = ..., texts: _Optional[_Iterable[str]] = ..., choice_indexes: _Optional[_Iterable[int]] = ...) -> None: ...

class TokenFrame(_message.Message):
    __slots__ = ("request_id", "generation", "tokens", "finish", "choice_index")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    FINISH_FIELD_NUMBER: _ClassVar[int]
    CHOICE_INDEX_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    generation: int
    tokens: _inference_pb2.Tokens
    finish: NodeFinish
    choice_index: int
    def __init__(self, request_id: _Optional[str] = ..., generation: _Optional[int] = ..., tokens: _Optional[_Union[_inference_pb2.Tokens, _Mapping]] = ..., finish: _Optional[_Union[NodeFinish, _Mapping]] = ..., choice_index: _Optional[int] = ...) -> None: ...

class NodeFinish(_message.Message):
    __slots__ = ("reason", "stop_string", "stop_token_id", "cached_tokens", "computed_prompt_tokens", "transferred_bytes", "queue_s", "prefill_s", "transfer_s", "decode_s", "forked_prompt_tokens", "pulled_tokens", "pulled_bytes", "pull_s")
    REASON_FIELD_NUMBER: _ClassVar[int]
    STOP_STRING_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPUTED_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TRANSFERRED_BYTES_FIELD_NUMBER: _ClassVar[int]
    QUEUE_S_FIELD_NUMBER: _ClassVar[int]
    PREFILL_S_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_S_FIELD_NUMBER: _ClassVar[int]
    DECODE_S_FIELD_NUMBER: _ClassVar[int]
    FORKED_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PULLED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PULLED_BYTES_FIELD_NUMBER: _ClassVar[int]
    PULL_S_FIELD_NUMBER: _ClassVar[int]
    reason: str
    stop_string: str
    stop_token_id: int
    cached_tokens: int
    computed_prompt_tokens: int
    transferred_bytes: int
    queue_s: float
    prefill_s: float
    transfer_s: float
    decode_s: float
    forked_prompt_tokens: int
    pulled_tokens: int
    pulled_bytes: int
    pull_s: float
    def __init__(self, reason: _Optional[str] = ..., stop_string: _Optional[str] = ..., stop_token_id: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., computed_prompt_tokens: _Optional[int] = ..., transferred_bytes: _Optional[int] = ..., queue_s: _Optional[float] = ..., prefill_s: _Optional[float] = ..., transfer_s: _Optional[float] = ..., decode_s: _Optional[float] = ..., forked_prompt_tokens: _Optional[int] = ..., pulled_tokens: _Optional[int] = ..., pulled_bytes: _Optional[int] = ..., pull_s: _Optional[float] = ...) -> None: ...

class NodeRequestFailed(_message.Message):
    __slots__ = ("request_id", "generation", "kind", "message")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    generation: int
    kind: str
    message: str
    def __init__(self, request_id: _Optional[str] = ..., generation: _Optional[int] = ..., kind: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class TransferDone(_message.Message):
    __slots__ = ("request_id", "generation", "transferred_bytes", "transfer_s")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    TRANSFERRED_BYTES_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_S_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    generation: int
    transferred_bytes: int
    transfer_s: float
    def __init__(self, request_id: _Optional[str] = ..., generation: _Optional[int] = ..., transferred_bytes: _Optional[int] = ..., transfer_s: _Optional[float] = ...) -> None: ...

class SchedulerMessage(_message.Message):
    __slots__ = ("welcome", "submits", "cancels", "first_token", "peers_joined", "peer_left", "ask_blocks", "claims", "seek", "ask_cache_snapshot")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    SUBMITS_FIELD_NUMBER: _ClassVar[int]
    CANCELS_FIELD_NUMBER: _ClassVar[int]
    FIRST_TOKEN_FIELD_NUMBER: _ClassVar[int]
    PEERS_JOINED_FIELD_NUMBER: _ClassVar[int]
    PEER_LEFT_FIELD_NUMBER: _ClassVar[int]
    ASK_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    CLAIMS_FIELD_NUMBER: _ClassVar[int]
    SEEK_FIELD_NUMBER: _ClassVar[int]
    ASK_CACHE_SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    submits: SubmitBatch
    cancels: CancelBatch
    first_token: FirstToken
    peers_joined: PeersJoined
    peer_left: PeerLeft
    ask_blocks: AskBlocks
    claims: ClaimBatch
    seek: Seek
    ask_cache_snapshot: AskCacheSnapshot
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., submits: _Optional[_Union[SubmitBatch, _Mapping]] = ..., cancels: _Optional[_Union[CancelBatch, _Mapping]] = ..., first_token: _Optional[_Union[FirstToken, _Mapping]] = ..., peers_joined: _Optional[_Union[PeersJoined, _Mapping]] = ..., peer_left: _Optional[_Union[PeerLeft, _Mapping]] = ..., ask_blocks: _Optional[_Union[AskBlocks, _Mapping]] = ..., claims: _Optional[_Union[ClaimBatch, _Mapping]] = ..., seek: _Optional[_Union[Seek, _Mapping]] = ..., ask_cache_snapshot: _Optional[_Union[AskCacheSnapshot, _Mapping]] = ...) -> None: ...

class Seek(_message.Message):
    __slots__ = ("request_id", "resume_key")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    RESUME_KEY_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    resume_key: bytes
    def __init__(self, request_id: _Optional[str] = ..., resume_key: _Optional[bytes] = ...) -> None: ...

class AskCacheSnapshot(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("protocol_version", "life")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    LIFE_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    life: str
    def __init__(self, protocol_version: _Optional[int] = ..., life: _Optional[str] = ...) -> None: ...

class ClaimBatch(_message.Message):
    __slots__ = ("claims",)
    CLAIMS_FIELD_NUMBER: _ClassVar[int]
    claims: _containers.RepeatedCompositeFieldContainer[Claim]
    def __init__(self, claims: _Optional[_Iterable[_Union[Claim, _Mapping]]] = ...) -> None: ...

class Claim(_message.Message):
    __slots__ = ("request_id", "generation", "first_token_index")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    FIRST_TOKEN_INDEX_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    generation: int
    first_token_index: int
    def __init__(self, request_id: _Optional[str] = ..., generation: _Optional[int] = ..., first_token_index: _Optional[int] = ...) -> None: ...

class PeersJoined(_message.Message):
    __slots__ = ("peers", "complete")
    PEERS_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    peers: _containers.RepeatedCompositeFieldContainer[PeerNode]
    complete: bool
    def __init__(self, peers: _Optional[_Iterable[_Union[PeerNode, _Mapping]]] = ..., complete: _Optional[bool] = ...) -> None: ...

class PeerLeft(_message.Message):
    __slots__ = ("identity",)
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    identity: NodeIdentity
    def __init__(self, identity: _Optional[_Union[NodeIdentity, _Mapping]] = ...) -> None: ...

class AskBlocks(_message.Message):
    __slots__ = ("request_id", "generation")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    generation: int
    def __init__(self, request_id: _Optional[str] = ..., generation: _Optional[int] = ...) -> None: ...

class BlocksHeld(_message.Message):
    __slots__ = ("request_id", "generation", "ranks")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    generation: int
    ranks: _containers.RepeatedCompositeFieldContainer[RankBlocks]
    def __init__(self, request_id: _Optional[str] = ..., generation: _Optional[int] = ..., ranks: _Optional[_Iterable[_Union[RankBlocks, _Mapping]]] = ...) -> None: ...

class RankBlocks(_message.Message):
    __slots__ = ("block_ids",)
    BLOCK_IDS_FIELD_NUMBER: _ClassVar[int]
    block_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, block_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class SubmitBatch(_message.Message):
    __slots__ = ("submits",)
    SUBMITS_FIELD_NUMBER: _ClassVar[int]
    submits: _containers.RepeatedCompositeFieldContainer[Submit]
    def __init__(self, submits: _Optional[_Iterable[_Union[Submit, _Mapping]]] = ...) -> None: ...

class Submit(_message.Message):
    __slots__ = ("request_id", "generation", "kind", "prompt_token_ids", "sampling", "cache_salt", "priority", "deadline_s", "source", "grammar_kind", "grammar_value", "allowed_token_ids", "emitted_token_ids", "resume", "emitted_logprobs", "arrived_age_s", "placed_age_s", "first_token_age_s", "choices", "resume_key", "pull", "lends")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_S_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    GRAMMAR_KIND_FIELD_NUMBER: _ClassVar[int]
    GRAMMAR_VALUE_FIELD_NUMBER: _ClassVar[int]
    ALLOWED_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    EMITTED_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    RESUME_FIELD_NUMBER: _ClassVar[int]
    EMITTED_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    ARRIVED_AGE_S_FIELD_NUMBER: _ClassVar[int]
    PLACED_AGE_S_FIELD_NUMBER: _ClassVar[int]
    FIRST_TOKEN_AGE_S_FIELD_NUMBER: _ClassVar[int]
    CHOICES_FIELD_NUMBER: _ClassVar[int]
    RESUME_KEY_FIELD_NUMBER: _ClassVar[int]
    PULL_FIELD_NUMBER: _ClassVar[int]
    LENDS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    generation: int
    kind: str
    prompt_token_ids: _containers.RepeatedScalarFieldContainer[int]
    sampling: _inference_pb2.SamplingParameters
    cache_salt: str
    priority: int
    deadline_s: float
    source: PeerNode
    grammar_kind: str
    grammar_value: str
    allowed_token_ids: _containers.RepeatedScalarFieldContainer[int]
    emitted_token_ids: _containers.RepeatedScalarFieldContainer[int]
    resume: bytes
    emitted_logprobs: _containers.RepeatedCompositeFieldContainer[_inference_pb2.TokenLogprobs]
    arrived_age_s: float
    placed_age_s: float
    first_token_age_s: float
    choices: _containers.RepeatedCompositeFieldContainer[SubmitChoice]
    resume_key: bytes
    pull: Pull
    lends: bool
    def __init__(self, request_id: _Optional[str] = ..., generation: _Optional[int] = ..., kind: _Optional[str] = ..., prompt_token_ids: _Optional[_Iterable[int]] = ..., sampling: _Optional[_Union[_inference_pb2.SamplingParameters, _Mapping]] = ..., cache_salt: _Optional[str] = ..., priority: _Optional[int] = ..., deadline_s: _Optional[float] = ..., source: _Optional[_Union[PeerNode, _Mapping]] = ..., grammar_kind: _Optional[str] = ..., grammar_value: _Optional[str] = ..., allowed_token_ids: _Optional[_Iterable[int]] = ..., emitted_token_ids: _Optional[_Iterable[int]] = ..., resume: _Optional[bytes] = ..., emitted_logprobs: _Optional[_Iterable[_Union[_inference_pb2.TokenLogprobs, _Mapping]]] = ..., arrived_age_s: _Optional[float] = ..., placed_age_s: _Optional[float] = ..., first_token_age_s: _Optional[float] = ..., choices: _Optional[_Iterable[_Union[SubmitChoice, _Mapping]]] = ..., resume_key: _Optional[bytes] = ..., pull: _Optional[_Union[Pull, _Mapping]] = ..., lends: _Optional[bool] = ...) -> None: ...

class Pull(_message.Message):
    __slots__ = ("source", "token_count", "wait_s")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    source: PeerNode
    token_count: int
    wait_s: float
    def __init__(self, source: _Optional[_Union[PeerNode, _Mapping]] = ..., token_count: _Optional[int] = ..., wait_s: _Optional[float] = ...) -> None: ...

class SubmitChoice(_message.Message):
    __slots__ = ("index", "emitted_token_ids")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    EMITTED_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    index: int
    emitted_token_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, index: _Optional[int] = ..., emitted_token_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class PeerNode(_message.Message):
    __slots__ = ("identity", "address", "ucx_worker_addresses", "fingerprint")
    class FingerprintEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    UCX_WORKER_ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    identity: NodeIdentity
    address: str
    ucx_worker_addresses: _containers.RepeatedScalarFieldContainer[bytes]
    fingerprint: _containers.ScalarMap[str, str]
    def __init__(self, identity: _Optional[_Union[NodeIdentity, _Mapping]] = ..., address: _Optional[str] = ..., ucx_worker_addresses: _Optional[_Iterable[bytes]] = ..., fingerprint: _Optional[_Mapping[str, str]] = ...) -> None: ...

class CancelBatch(_message.Message):
    __slots__ = ("request_ids",)
    REQUEST_IDS_FIELD_NUMBER: _ClassVar[int]
    request_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, request_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class FirstToken(_message.Message):
    __slots__ = ("request_id", "generation", "token_id", "frame", "choices")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    FRAME_FIELD_NUMBER: _ClassVar[int]
    CHOICES_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    generation: int
    token_id: int
    frame: TokenFrame
    choices: _containers.RepeatedCompositeFieldContainer[ChoiceToken]
    def __init__(self, request_id: _Optional[str] = ..., generation: _Optional[int] = ..., token_id: _Optional[int] = ..., frame: _Optional[_Union[TokenFrame, _Mapping]] = ..., choices: _Optional[_Iterable[_Union[ChoiceToken, _Mapping]]] = ...) -> None: ...

class ChoiceToken(_message.Message):
    __slots__ = ("index", "token_id")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    index: int
    token_id: int
    def __init__(self, index: _Optional[int] = ..., token_id: _Optional[int] = ...) -> None: ...

class ListNodesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListNodesResponse(_message.Message):
    __slots__ = ("nodes", "stale_reason")
    NODES_FIELD_NUMBER: _ClassVar[int]
    STALE_REASON_FIELD_NUMBER: _ClassVar[int]
    nodes: _containers.RepeatedCompositeFieldContainer[NodeInfo]
    stale_reason: str
    def __init__(self, nodes: _Optional[_Iterable[_Union[NodeInfo, _Mapping]]] = ..., stale_reason: _Optional[str] = ...) -> None: ...

class NodeInfo(_message.Message):
    __slots__ = ("identity", "role", "state", "state_reason", "address", "block_count", "free_block_count", "running_sequence_count", "waiting_sequence_count", "pid", "model", "links", "blocks", "duty")
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    STATE_REASON_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_COUNT_FIELD_NUMBER: _ClassVar[int]
    FREE_BLOCK_COUNT_FIELD_NUMBER: _ClassVar[int]
    RUNNING_SEQUENCE_COUNT_FIELD_NUMBER: _ClassVar[int]
    WAITING_SEQUENCE_COUNT_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    LINKS_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    DUTY_FIELD_NUMBER: _ClassVar[int]
    identity: NodeIdentity
    role: str
    state: str
    state_reason: str
    address: str
    block_count: int
    free_block_count: int
    running_sequence_count: int
    waiting_sequence_count: int
    pid: int
    model: str
    links: _containers.RepeatedCompositeFieldContainer[PeerLink]
    blocks: BlockStates
    duty: NodeRole
    def __init__(self, identity: _Optional[_Union[NodeIdentity, _Mapping]] = ..., role: _Optional[str] = ..., state: _Optional[str] = ..., state_reason: _Optional[str] = ..., address: _Optional[str] = ..., block_count: _Optional[int] = ..., free_block_count: _Optional[int] = ..., running_sequence_count: _Optional[int] = ..., waiting_sequence_count: _Optional[int] = ..., pid: _Optional[int] = ..., model: _Optional[str] = ..., links: _Optional[_Iterable[_Union[PeerLink, _Mapping]]] = ..., blocks: _Optional[_Union[BlockStates, _Mapping]] = ..., duty: _Optional[_Union[NodeRole, _Mapping]] = ...) -> None: ...

class NodeRole(_message.Message):
    __slots__ = ("node", "role", "next_role", "configured_role", "decided_by", "reason", "is_pinned", "held_request_count", "waits_for")
    NODE_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    NEXT_ROLE_FIELD_NUMBER: _ClassVar[int]
    CONFIGURED_ROLE_FIELD_NUMBER: _ClassVar[int]
    DECIDED_BY_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    IS_PINNED_FIELD_NUMBER: _ClassVar[int]
    HELD_REQUEST_COUNT_FIELD_NUMBER: _ClassVar[int]
    WAITS_FOR_FIELD_NUMBER: _ClassVar[int]
    node: str
    role: str
    next_role: str
    configured_role: str
    decided_by: str
    reason: str
    is_pinned: bool
    held_request_count: int
    waits_for: str
    def __init__(self, node: _Optional[str] = ..., role: _Optional[str] = ..., next_role: _Optional[str] = ..., configured_role: _Optional[str] = ..., decided_by: _Optional[str] = ..., reason: _Optional[str] = ..., is_pinned: _Optional[bool] = ..., held_request_count: _Optional[int] = ..., waits_for: _Optional[str] = ...) -> None: ...

class SetNodeRoleRequest(_message.Message):
    __slots__ = ("node", "role", "message")
    NODE_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    node: str
    role: str
    message: str
    def __init__(self, node: _Optional[str] = ..., role: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class SetNodeRoleResponse(_message.Message):
    __slots__ = ("is_changed", "role")
    IS_CHANGED_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    is_changed: bool
    role: NodeRole
    def __init__(self, is_changed: _Optional[bool] = ..., role: _Optional[_Union[NodeRole, _Mapping]] = ...) -> None: ...

class GetRolesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetRolesResponse(_message.Message):
    __slots__ = ("mode", "idle_reason", "pools", "nodes", "switches", "stale_reason")
    MODE_FIELD_NUMBER: _ClassVar[int]
    IDLE_REASON_FIELD_NUMBER: _ClassVar[int]
    POOLS_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    SWITCHES_FIELD_NUMBER: _ClassVar[int]
    STALE_REASON_FIELD_NUMBER: _ClassVar[int]
    mode: str
    idle_reason: str
    pools: _containers.RepeatedCompositeFieldContainer[RolePool]
    nodes: _containers.RepeatedCompositeFieldContainer[NodeRole]
    switches: _containers.RepeatedCompositeFieldContainer[RoleSwitch]
    stale_reason: str
    def __init__(self, mode: _Optional[str] = ..., idle_reason: _Optional[str] = ..., pools: _Optional[_Iterable[_Union[RolePool, _Mapping]]] = ..., nodes: _Optional[_Iterable[_Union[NodeRole, _Mapping]]] = ..., switches: _Optional[_Iterable[_Union[RoleSwitch, _Mapping]]] = ..., stale_reason: _Optional[str] = ...) -> None: ...

class RolePool(_message.Message):
    __slots__ = ("role", "node_count", "load_nodes", "pressure", "wanted_count", "count_min")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    NODE_COUNT_FIELD_NUMBER: _ClassVar[int]
    LOAD_NODES_FIELD_NUMBER: _ClassVar[int]
    PRESSURE_FIELD_NUMBER: _ClassVar[int]
    WANTED_COUNT_FIELD_NUMBER: _ClassVar[int]
    COUNT_MIN_FIELD_NUMBER: _ClassVar[int]
    role: str
    node_count: int
    load_nodes: float
    pressure: float
    wanted_count: int
    count_min: int
    def __init__(self, role: _Optional[str] = ..., node_count: _Optional[int] = ..., load_nodes: _Optional[float] = ..., pressure: _Optional[float] = ..., wanted_count: _Optional[int] = ..., count_min: _Optional[int] = ...) -> None: ...

class RoleSwitch(_message.Message):
    __slots__ = ("node", "source", "target", "by", "stage", "reason", "age_s", "held_request_count", "duration_s")
    NODE_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    AGE_S_FIELD_NUMBER: _ClassVar[int]
    HELD_REQUEST_COUNT_FIELD_NUMBER: _ClassVar[int]
    DURATION_S_FIELD_NUMBER: _ClassVar[int]
    node: str
    source: str
    target: str
    by: str
    stage: str
    reason: str
    age_s: float
    held_request_count: int
    duration_s: float
    def __init__(self, node: _Optional[str] = ..., source: _Optional[str] = ..., target: _Optional[str] = ..., by: _Optional[str] = ..., stage: _Optional[str] = ..., reason: _Optional[str] = ..., age_s: _Optional[float] = ..., held_request_count: _Optional[int] = ..., duration_s: _Optional[float] = ...) -> None: ...

class CordonNodeRequest(_message.Message):
    __slots__ = ("node", "message", "is_drain")
    NODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    IS_DRAIN_FIELD_NUMBER: _ClassVar[int]
    node: str
    message: str
    is_drain: bool
    def __init__(self, node: _Optional[str] = ..., message: _Optional[str] = ..., is_drain: _Optional[bool] = ...) -> None: ...

class CordonNodeResponse(_message.Message):
    __slots__ = ("is_changed", "state")
    IS_CHANGED_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    is_changed: bool
    state: DrainState
    def __init__(self, is_changed: _Optional[bool] = ..., state: _Optional[_Union[DrainState, _Mapping]] = ...) -> None: ...

class UncordonNodeRequest(_message.Message):
    __slots__ = ("node",)
    NODE_FIELD_NUMBER: _ClassVar[int]
    node: str
    def __init__(self, node: _Optional[str] = ...) -> None: ...

class UncordonNodeResponse(_message.Message):
    __slots__ = ("is_changed",)
    IS_CHANGED_FIELD_NUMBER: _ClassVar[int]
    is_changed: bool
    def __init__(self, is_changed: _Optional[bool] = ...) -> None: ...

class GetDrainStateRequest(_message.Message):
    __slots__ = ("node",)
    NODE_FIELD_NUMBER: _ClassVar[int]
    node: str
    def __init__(self, node: _Optional[str] = ...) -> None: ...

class GetDrainStateResponse(_message.Message):
    __slots__ = ("state", "stale_reason")
    STATE_FIELD_NUMBER: _ClassVar[int]
    STALE_REASON_FIELD_NUMBER: _ClassVar[int]
    state: DrainState
    stale_reason: str
    def __init__(self, state: _Optional[_Union[DrainState, _Mapping]] = ..., stale_reason: _Optional[str] = ...) -> None: ...

class DrainState(_message.Message):
    __slots__ = ("is_cordoned", "is_draining", "is_drained", "is_lost", "held_request_count", "began_request_count", "drain_s", "message")
    IS_CORDONED_FIELD_NUMBER: _ClassVar[int]
    IS_DRAINING_FIELD_NUMBER: _ClassVar[int]
    IS_DRAINED_FIELD_NUMBER: _ClassVar[int]
    IS_LOST_FIELD_NUMBER: _ClassVar[int]
    HELD_REQUEST_COUNT_FIELD_NUMBER: _ClassVar[int]
    BEGAN_REQUEST_COUNT_FIELD_NUMBER: _ClassVar[int]
    DRAIN_S_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    is_cordoned: bool
    is_draining: bool
    is_drained: bool
    is_lost: bool
    held_request_count: int
    began_request_count: int
    drain_s: float
    message: str
    def __init__(self, is_cordoned: _Optional[bool] = ..., is_draining: _Optional[bool] = ..., is_drained: _Optional[bool] = ..., is_lost: _Optional[bool] = ..., held_request_count: _Optional[int] = ..., began_request_count: _Optional[int] = ..., drain_s: _Optional[float] = ..., message: _Optional[str] = ...) -> None: ...

class ListDecisionsRequest(_message.Message):
    __slots__ = ("request_id",)
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    def __init__(self, request_id: _Optional[str] = ...) -> None: ...

class ListDecisionsResponse(_message.Message):
    __slots__ = ("decisions", "stale_reason")
    DECISIONS_FIELD_NUMBER: _ClassVar[int]
    STALE_REASON_FIELD_NUMBER: _ClassVar[int]
    decisions: _containers.RepeatedCompositeFieldContainer[Decision]
    stale_reason: str
    def __init__(self, decisions: _Optional[_Iterable[_Union[Decision, _Mapping]]] = ..., stale_reason: _Optional[str] = ...) -> None: ...

class LocateBlocksRequest(_message.Message):
    __slots__ = ("what",)
    WHAT_FIELD_NUMBER: _ClassVar[int]
    what: str
    def __init__(self, what: _Optional[str] = ...) -> None: ...

class LocateBlocksResponse(_message.Message):
    __slots__ = ("request_id", "generation", "phase", "path", "owner", "watermark_tokens", "output_tokens", "tenant", "nodes", "prompt_keys", "key", "holders", "scheduler", "stale_reason")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    WATERMARK_TOKENS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    PROMPT_KEYS_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    HOLDERS_FIELD_NUMBER: _ClassVar[int]
    SCHEDULER_FIELD_NUMBER: _ClassVar[int]
    STALE_REASON_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    generation: int
    phase: str
    path: str
    owner: str
    watermark_tokens: int
    output_tokens: int
    tenant: str
    nodes: _containers.RepeatedCompositeFieldContainer[HeldOnNode]
    prompt_keys: _containers.RepeatedScalarFieldContainer[bytes]
    key: bytes
    holders: _containers.RepeatedScalarFieldContainer[str]
    scheduler: str
    stale_reason: str
    def __init__(self, request_id: _Optional[str] = ..., generation: _Optional[int] = ..., phase: _Optional[str] = ..., path: _Optional[str] = ..., owner: _Optional[str] = ..., watermark_tokens: _Optional[int] = ..., output_tokens: _Optional[int] = ..., tenant: _Optional[str] = ..., nodes: _Optional[_Iterable[_Union[HeldOnNode, _Mapping]]] = ..., prompt_keys: _Optional[_Iterable[bytes]] = ..., key: _Optional[bytes] = ..., holders: _Optional[_Iterable[str]] = ..., scheduler: _Optional[str] = ..., stale_reason: _Optional[str] = ...) -> None: ...

class HeldOnNode(_message.Message):
    __slots__ = ("node", "role", "leased_block_count", "is_answered", "ranks")
    NODE_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    LEASED_BLOCK_COUNT_FIELD_NUMBER: _ClassVar[int]
    IS_ANSWERED_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    node: str
    role: str
    leased_block_count: int
    is_answered: bool
    ranks: _containers.RepeatedCompositeFieldContainer[RankBlocks]
    def __init__(self, node: _Optional[str] = ..., role: _Optional[str] = ..., leased_block_count: _Optional[int] = ..., is_answered: _Optional[bool] = ..., ranks: _Optional[_Iterable[_Union[RankBlocks, _Mapping]]] = ...) -> None: ...

class Decision(_message.Message):
    __slots__ = ("request_id", "generation", "age_s", "outcome", "path", "reason", "waited_s", "repeated_count", "choices", "path_inputs", "tenant", "scheduler")
    class PathInputsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    AGE_S_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    WAITED_S_FIELD_NUMBER: _ClassVar[int]
    REPEATED_COUNT_FIELD_NUMBER: _ClassVar[int]
    CHOICES_FIELD_NUMBER: _ClassVar[int]
    PATH_INPUTS_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    SCHEDULER_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    generation: int
    age_s: float
    outcome: str
    path: str
    reason: str
    waited_s: float
    repeated_count: int
    choices: _containers.RepeatedCompositeFieldContainer[Choice]
    path_inputs: _containers.ScalarMap[str, float]
    tenant: str
    scheduler: str
    def __init__(self, request_id: _Optional[str] = ..., generation: _Optional[int] = ..., age_s: _Optional[float] = ..., outcome: _Optional[str] = ..., path: _Optional[str] = ..., reason: _Optional[str] = ..., waited_s: _Optional[float] = ..., repeated_count: _Optional[int] = ..., choices: _Optional[_Iterable[_Union[Choice, _Mapping]]] = ..., path_inputs: _Optional[_Mapping[str, float]] = ..., tenant: _Optional[str] = ..., scheduler: _Optional[str] = ...) -> None: ...

class Choice(_message.Message):
    __slots__ = ("role", "candidates", "other_counts")
    class OtherCountsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    ROLE_FIELD_NUMBER: _ClassVar[int]
    CANDIDATES_FIELD_NUMBER: _ClassVar[int]
    OTHER_COUNTS_FIELD_NUMBER: _ClassVar[int]
    role: str
    candidates: _containers.RepeatedCompositeFieldContainer[Candidate]
    other_counts: _containers.ScalarMap[str, int]
    def __init__(self, role: _Optional[str] = ..., candidates: _Optional[_Iterable[_Union[Candidate, _Mapping]]] = ..., other_counts: _Optional[_Mapping[str, int]] = ...) -> None: ...

class Candidate(_message.Message):
    __slots__ = ("node", "is_chosen", "dropped_by", "dropped_reason", "inputs", "scores", "total")
    class InputsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    class ScoresEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    NODE_FIELD_NUMBER: _ClassVar[int]
    IS_CHOSEN_FIELD_NUMBER: _ClassVar[int]
    DROPPED_BY_FIELD_NUMBER: _ClassVar[int]
    DROPPED_REASON_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    SCORES_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    node: str
    is_chosen: bool
    dropped_by: str
    dropped_reason: str
    inputs: _containers.ScalarMap[str, float]
    scores: _containers.ScalarMap[str, float]
    total: float
    def __init__(self, node: _Optional[str] = ..., is_chosen: _Optional[bool] = ..., dropped_by: _Optional[str] = ..., dropped_reason: _Optional[str] = ..., inputs: _Optional[_Mapping[str, float]] = ..., scores: _Optional[_Mapping[str, float]] = ..., total: _Optional[float] = ...) -> None: ...

class ListReplicasRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListReplicasResponse(_message.Message):
    __slots__ = ("replicas",)
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    replicas: _containers.RepeatedCompositeFieldContainer[ReplicaInfo]
    def __init__(self, replicas: _Optional[_Iterable[_Union[ReplicaInfo, _Mapping]]] = ...) -> None: ...

class ReplicaInfo(_message.Message):
    __slots__ = ("name", "address", "fault", "status")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    FAULT_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    name: str
    address: str
    fault: str
    status: _raft_pb2.GetStatusResponse
    def __init__(self, name: _Optional[str] = ..., address: _Optional[str] = ..., fault: _Optional[str] = ..., status: _Optional[_Union[_raft_pb2.GetStatusResponse, _Mapping]] = ...) -> None: ...

class TransferGroupRequest(_message.Message):
    __slots__ = ("target",)
    TARGET_FIELD_NUMBER: _ClassVar[int]
    target: str
    def __init__(self, target: _Optional[str] = ...) -> None: ...

class TransferGroupResponse(_message.Message):
    __slots__ = ("former",)
    FORMER_FIELD_NUMBER: _ClassVar[int]
    former: str
    def __init__(self, former: _Optional[str] = ...) -> None: ...

class SnapshotReplicaRequest(_message.Message):
    __slots__ = ("replica",)
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    replica: str
    def __init__(self, replica: _Optional[str] = ...) -> None: ...

class SnapshotReplicaResponse(_message.Message):
    __slots__ = ("snapshot_index",)
    SNAPSHOT_INDEX_FIELD_NUMBER: _ClassVar[int]
    snapshot_index: int
    def __init__(self, snapshot_index: _Optional[int] = ...) -> None: ...

from pdd.rpc.v1 import cluster_pb2 as _cluster_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AskRequest(_message.Message):
    __slots__ = ("items",)
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[HolderItem]
    def __init__(self, items: _Optional[_Iterable[_Union[HolderItem, _Mapping]]] = ...) -> None: ...

class HolderItem(_message.Message):
    __slots__ = ("hello", "request", "all_told", "news")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    ALL_TOLD_FIELD_NUMBER: _ClassVar[int]
    NEWS_FIELD_NUMBER: _ClassVar[int]
    hello: HolderHello
    request: ToldRequest
    all_told: AllTold
    news: RequestNews
    def __init__(self, hello: _Optional[_Union[HolderHello, _Mapping]] = ..., request: _Optional[_Union[ToldRequest, _Mapping]] = ..., all_told: _Optional[_Union[AllTold, _Mapping]] = ..., news: _Optional[_Union[RequestNews, _Mapping]] = ...) -> None: ...

class HolderHello(_message.Message):
    __slots__ = ("scheduler", "version")
    SCHEDULER_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    scheduler: str
    version: int
    def __init__(self, scheduler: _Optional[str] = ..., version: _Optional[int] = ...) -> None: ...

class AllTold(_message.Message):
    __slots__ = ("claims",)
    CLAIMS_FIELD_NUMBER: _ClassVar[int]
    claims: _containers.RepeatedCompositeFieldContainer[HeardClaim]
    def __init__(self, claims: _Optional[_Iterable[_Union[HeardClaim, _Mapping]]] = ...) -> None: ...

class HeardClaim(_message.Message):
    __slots__ = ("resume_key", "scheduler", "age_s")
    RESUME_KEY_FIELD_NUMBER: _ClassVar[int]
    SCHEDULER_FIELD_NUMBER: _ClassVar[int]
    AGE_S_FIELD_NUMBER: _ClassVar[int]
    resume_key: bytes
    scheduler: str
    age_s: float
    def __init__(self, resume_key: _Optional[bytes] = ..., scheduler: _Optional[str] = ..., age_s: _Optional[float] = ...) -> None: ...

class ToldRequest(_message.Message):
    __slots__ = ("parameters", "prompt_token_count", "tenant", "affinity_key", "keys", "age_s", "phase", "plan", "granted_token_count", "is_whole", "interruption", "output_token_count", "choice_count", "open_choices", "first_token_choices")
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    AFFINITY_KEY_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    AGE_S_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    GRANTED_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    IS_WHOLE_FIELD_NUMBER: _ClassVar[int]
    INTERRUPTION_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    CHOICE_COUNT_FIELD_NUMBER: _ClassVar[int]
    OPEN_CHOICES_FIELD_NUMBER: _ClassVar[int]
    FIRST_TOKEN_CHOICES_FIELD_NUMBER: _ClassVar[int]
    parameters: _cluster_pb2.Submit
    prompt_token_count: int
    tenant: str
    affinity_key: str
    keys: bytes
    age_s: float
    phase: str
    plan: PlacePlan
    granted_token_count: int
    is_whole: bool
    interruption: str
    output_token_count: int
    choice_count: int
    open_choices: _containers.RepeatedScalarFieldContainer[int]
    first_token_choices: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, parameters: _Optional[_Union[_cluster_pb2.Submit, _Mapping]] = ..., prompt_token_count: _Optional[int] = ..., tenant: _Optional[str] = ..., affinity_key: _Optional[str] = ..., keys: _Optional[bytes] = ..., age_s: _Optional[float] = ..., phase: _Optional[str] = ..., plan: _Optional[_Union[PlacePlan, _Mapping]] = ..., granted_token_count: _Optional[int] = ..., is_whole: _Optional[bool] = ..., interruption: _Optional[str] = ..., output_token_count: _Optional[int] = ..., choice_count: _Optional[int] = ..., open_choices: _Optional[_Iterable[int]] = ..., first_token_choices: _Optional[_Iterable[int]] = ...) -> None: ...

class PlacePlan(_message.Message):
    __slots__ = ("path", "prefill", "decode", "reason", "pull_token_count", "pull_wait_s")
    PATH_FIELD_NUMBER: _ClassVar[int]
    PREFILL_FIELD_NUMBER: _ClassVar[int]
    DECODE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    PULL_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    PULL_WAIT_S_FIELD_NUMBER: _ClassVar[int]
    path: str
    prefill: str
    decode: str
    reason: str
    pull_token_count: int
    pull_wait_s: float
    def __init__(self, path: _Optional[str] = ..., prefill: _Optional[str] = ..., decode: _Optional[str] = ..., reason: _Optional[str] = ..., pull_token_count: _Optional[int] = ..., pull_wait_s: _Optional[float] = ...) -> None: ...

class RequestNews(_message.Message):
    __slots__ = ("request_id", "generation", "over", "first_token", "ready", "started", "grew", "finished", "failed", "ended", "node", "choice_index", "is_over")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    OVER_FIELD_NUMBER: _ClassVar[int]
    FIRST_TOKEN_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    STARTED_FIELD_NUMBER: _ClassVar[int]
    GREW_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    CHOICE_INDEX_FIELD_NUMBER: _ClassVar[int]
    IS_OVER_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    generation: int
    over: NewsOver
    first_token: NewsFirstToken
    ready: NewsReady
    started: NewsStarted
    grew: NewsGrew
    finished: NewsFinished
    failed: _cluster_pb2.NodeRequestFailed
    ended: NewsEnded
    node: str
    choice_index: int
    is_over: bool
    def __init__(self, request_id: _Optional[str] = ..., generation: _Optional[int] = ..., over: _Optional[_Union[NewsOver, _Mapping]] = ..., first_token: _Optional[_Union[NewsFirstToken, _Mapping]] = ..., ready: _Optional[_Union[NewsReady, _Mapping]] = ..., started: _Optional[_Union[NewsStarted, _Mapping]] = ..., grew: _Optional[_Union[NewsGrew, _Mapping]] = ..., finished: _Optional[_Union[NewsFinished, _Mapping]] = ..., failed: _Optional[_Union[_cluster_pb2.NodeRequestFailed, _Mapping]] = ..., ended: _Optional[_Union[NewsEnded, _Mapping]] = ..., node: _Optional[str] = ..., choice_index: _Optional[int] = ..., is_over: _Optional[bool] = ...) -> None: ...

class NewsOver(_message.Message):
    __slots__ = ("output_token_count",)
    OUTPUT_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    output_token_count: int
    def __init__(self, output_token_count: _Optional[int] = ...) -> None: ...

class NewsFirstToken(_message.Message):
    __slots__ = ("finish",)
    FINISH_FIELD_NUMBER: _ClassVar[int]
    finish: _cluster_pb2.NodeFinish
    def __init__(self, finish: _Optional[_Union[_cluster_pb2.NodeFinish, _Mapping]] = ...) -> None: ...

class NewsReady(_message.Message):
    __slots__ = ("transferred_bytes", "transfer_s")
    TRANSFERRED_BYTES_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_S_FIELD_NUMBER: _ClassVar[int]
    transferred_bytes: int
    transfer_s: float
    def __init__(self, transferred_bytes: _Optional[int] = ..., transfer_s: _Optional[float] = ...) -> None: ...

class NewsStarted(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class NewsGrew(_message.Message):
    __slots__ = ("output_token_count",)
    OUTPUT_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    output_token_count: int
    def __init__(self, output_token_count: _Optional[int] = ...) -> None: ...

class NewsFinished(_message.Message):
    __slots__ = ("finish", "output_token_count")
    FINISH_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    finish: _cluster_pb2.NodeFinish
    output_token_count: int
    def __init__(self, finish: _Optional[_Union[_cluster_pb2.NodeFinish, _Mapping]] = ..., output_token_count: _Optional[int] = ...) -> None: ...

class NewsEnded(_message.Message):
    __slots__ = ("why", "has_output")
    WHY_FIELD_NUMBER: _ClassVar[int]
    HAS_OUTPUT_FIELD_NUMBER: _ClassVar[int]
    why: str
    has_output: bool
    def __init__(self, why: _Optional[str] = ..., has_output: _Optional[bool] = ...) -> None: ...

class AskResponse(_message.Message):
    __slots__ = ("items",)
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[LeaderItem]
    def __init__(self, items: _Optional[_Iterable[_Union[LeaderItem, _Mapping]]] = ...) -> None: ...

class LeaderItem(_message.Message):
    __slots__ = ("request_id", "generation", "welcome", "place", "taken", "refused", "alive")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    TAKEN_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    ALIVE_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    generation: int
    welcome: LeaderWelcome
    place: PlaceGiven
    taken: PlaceTaken
    refused: PlaceRefused
    alive: LeaderAlive
    def __init__(self, request_id: _Optional[str] = ..., generation: _Optional[int] = ..., welcome: _Optional[_Union[LeaderWelcome, _Mapping]] = ..., place: _Optional[_Union[PlaceGiven, _Mapping]] = ..., taken: _Optional[_Union[PlaceTaken, _Mapping]] = ..., refused: _Optional[_Union[PlaceRefused, _Mapping]] = ..., alive: _Optional[_Union[LeaderAlive, _Mapping]] = ...) -> None: ...

class LeaderWelcome(_message.Message):
    __slots__ = ("version",)
    VERSION_FIELD_NUMBER: _ClassVar[int]
    version: int
    def __init__(self, version: _Optional[int] = ...) -> None: ...

class LeaderAlive(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PlaceGiven(_message.Message):
    __slots__ = ("plan", "granted_token_count", "is_whole", "interruption")
    PLAN_FIELD_NUMBER: _ClassVar[int]
    GRANTED_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    IS_WHOLE_FIELD_NUMBER: _ClassVar[int]
    INTERRUPTION_FIELD_NUMBER: _ClassVar[int]
    plan: PlacePlan
    granted_token_count: int
    is_whole: bool
    interruption: str
    def __init__(self, plan: _Optional[_Union[PlacePlan, _Mapping]] = ..., granted_token_count: _Optional[int] = ..., is_whole: _Optional[bool] = ..., interruption: _Optional[str] = ...) -> None: ...

class PlaceTaken(_message.Message):
    __slots__ = ("interruption", "is_whole")
    INTERRUPTION_FIELD_NUMBER: _ClassVar[int]
    IS_WHOLE_FIELD_NUMBER: _ClassVar[int]
    interruption: str
    is_whole: bool
    def __init__(self, interruption: _Optional[str] = ..., is_whole: _Optional[bool] = ...) -> None: ...

class PlaceRefused(_message.Message):
    __slots__ = ("kind", "message", "field", "code", "retry_after_s")
    KIND_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    FIELD_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_S_FIELD_NUMBER: _ClassVar[int]
    kind: str
    message: str
    field: str
    code: str
    retry_after_s: float
    def __init__(self, kind: _Optional[str] = ..., message: _Optional[str] = ..., field: _Optional[str] = ..., code: _Optional[str] = ..., retry_after_s: _Optional[float] = ...) -> None: ...

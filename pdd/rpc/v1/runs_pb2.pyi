from pdd.rpc.v1 import cluster_pb2 as _cluster_pb2
from pdd.rpc.v1 import decisions_pb2 as _decisions_pb2
from pdd.rpc.v1 import inference_pb2 as _inference_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ClaimRequest(_message.Message):
    __slots__ = ("scheduler", "resume_key", "released_by")
    SCHEDULER_FIELD_NUMBER: _ClassVar[int]
    RESUME_KEY_FIELD_NUMBER: _ClassVar[int]
    RELEASED_BY_FIELD_NUMBER: _ClassVar[int]
    scheduler: str
    resume_key: bytes
    released_by: str
    def __init__(self, scheduler: _Optional[str] = ..., resume_key: _Optional[bytes] = ..., released_by: _Optional[str] = ...) -> None: ...

class ClaimResponse(_message.Message):
    __slots__ = ("holder",)
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    holder: str
    def __init__(self, holder: _Optional[str] = ...) -> None: ...

class RememberRequest(_message.Message):
    __slots__ = ("scheduler", "resume_key")
    SCHEDULER_FIELD_NUMBER: _ClassVar[int]
    RESUME_KEY_FIELD_NUMBER: _ClassVar[int]
    scheduler: str
    resume_key: bytes
    def __init__(self, scheduler: _Optional[str] = ..., resume_key: _Optional[bytes] = ...) -> None: ...

class RememberResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class FollowRequest(_message.Message):
    __slots__ = ("scheduler", "request_id", "tenant", "path", "idempotency_key", "known_token_counts")
    SCHEDULER_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    IDEMPOTENCY_KEY_FIELD_NUMBER: _ClassVar[int]
    KNOWN_TOKEN_COUNTS_FIELD_NUMBER: _ClassVar[int]
    scheduler: str
    request_id: str
    tenant: str
    path: str
    idempotency_key: str
    known_token_counts: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, scheduler: _Optional[str] = ..., request_id: _Optional[str] = ..., tenant: _Optional[str] = ..., path: _Optional[str] = ..., idempotency_key: _Optional[str] = ..., known_token_counts: _Optional[_Iterable[int]] = ...) -> None: ...

class FollowResponse(_message.Message):
    __slots__ = ("items",)
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[FollowItem]
    def __init__(self, items: _Optional[_Iterable[_Union[FollowItem, _Mapping]]] = ...) -> None: ...

class FollowItem(_message.Message):
    __slots__ = ("job", "plan", "frame", "end", "failed")
    JOB_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    FRAME_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    job: _cluster_pb2.Submit
    plan: _decisions_pb2.PlacePlan
    frame: _cluster_pb2.TokenFrame
    end: RunEnd
    failed: _decisions_pb2.PlaceRefused
    def __init__(self, job: _Optional[_Union[_cluster_pb2.Submit, _Mapping]] = ..., plan: _Optional[_Union[_decisions_pb2.PlacePlan, _Mapping]] = ..., frame: _Optional[_Union[_cluster_pb2.TokenFrame, _Mapping]] = ..., end: _Optional[_Union[RunEnd, _Mapping]] = ..., failed: _Optional[_Union[_decisions_pb2.PlaceRefused, _Mapping]] = ...) -> None: ...

class RunEnd(_message.Message):
    __slots__ = ("finish", "usage")
    FINISH_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    finish: _cluster_pb2.NodeFinish
    usage: _inference_pb2.Usage
    def __init__(self, finish: _Optional[_Union[_cluster_pb2.NodeFinish, _Mapping]] = ..., usage: _Optional[_Union[_inference_pb2.Usage, _Mapping]] = ...) -> None: ...

class EndRequest(_message.Message):
    __slots__ = ("scheduler", "request_id", "tenant")
    SCHEDULER_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    scheduler: str
    request_id: str
    tenant: str
    def __init__(self, scheduler: _Optional[str] = ..., request_id: _Optional[str] = ..., tenant: _Optional[str] = ...) -> None: ...

class EndResponse(_message.Message):
    __slots__ = ("failed",)
    FAILED_FIELD_NUMBER: _ClassVar[int]
    failed: _decisions_pb2.PlaceRefused
    def __init__(self, failed: _Optional[_Union[_decisions_pb2.PlaceRefused, _Mapping]] = ...) -> None: ...

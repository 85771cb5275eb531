from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SetOverrideRequest(_message.Message):
    __slots__ = ("key", "value")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    key: str
    value: str
    def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...

class SetOverrideResponse(_message.Message):
    __slots__ = ("is_changed",)
    IS_CHANGED_FIELD_NUMBER: _ClassVar[int]
    is_changed: bool
    def __init__(self, is_changed: _Optional[bool] = ...) -> None: ...

class ListOverridesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListOverridesResponse(_message.Message):
    __slots__ = ("overrides", "stale_reason")
    OVERRIDES_FIELD_NUMBER: _ClassVar[int]
    STALE_REASON_FIELD_NUMBER: _ClassVar[int]
    overrides: _containers.RepeatedCompositeFieldContainer[Override]
    stale_reason: str
    def __init__(self, overrides: _Optional[_Iterable[_Union[Override, _Mapping]]] = ..., stale_reason: _Optional[str] = ...) -> None: ...

class Override(_message.Message):
    __slots__ = ("key", "value", "configured_value", "fault")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    CONFIGURED_VALUE_FIELD_NUMBER: _ClassVar[int]
    FAULT_FIELD_NUMBER: _ClassVar[int]
    key: str
    value: str
    configured_value: str
    fault: str
    def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ..., configured_value: _Optional[str] = ..., fault: _Optional[str] = ...) -> None: ...

class SetQuotaRequest(_message.Message):
    __slots__ = ("tenant", "requests_max", "tokens_per_minute_max")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_MAX_FIELD_NUMBER: _ClassVar[int]
    TOKENS_PER_MINUTE_MAX_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    requests_max: int
    tokens_per_minute_max: int
    def __init__(self, tenant: _Optional[str] = ..., requests_max: _Optional[int] = ..., tokens_per_minute_max: _Optional[int] = ...) -> None: ...

class SetQuotaResponse(_message.Message):
    __slots__ = ("is_changed",)
    IS_CHANGED_FIELD_NUMBER: _ClassVar[int]
    is_changed: bool
    def __init__(self, is_changed: _Optional[bool] = ...) -> None: ...

class ListQuotasRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListQuotasResponse(_message.Message):
    __slots__ = ("quotas", "stale_reason")
    QUOTAS_FIELD_NUMBER: _ClassVar[int]
    STALE_REASON_FIELD_NUMBER: _ClassVar[int]
    quotas: _containers.RepeatedCompositeFieldContainer[Quota]
    stale_reason: str
    def __init__(self, quotas: _Optional[_Iterable[_Union[Quota, _Mapping]]] = ..., stale_reason: _Optional[str] = ...) -> None: ...

class Quota(_message.Message):
    __slots__ = ("tenant", "requests_max", "tokens_per_minute_max")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_MAX_FIELD_NUMBER: _ClassVar[int]
    TOKENS_PER_MINUTE_MAX_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    requests_max: int
    tokens_per_minute_max: int
    def __init__(self, tenant: _Optional[str] = ..., requests_max: _Optional[int] = ..., tokens_per_minute_max: _Optional[int] = ...) -> None: ...

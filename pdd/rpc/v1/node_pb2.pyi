from pdd.rpc.v1 import cluster_pb2 as _cluster_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RelayRequest(_message.Message):
    __slots__ = ("source", "source_rank", "source_address", "target", "target_rank", "payload")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    SOURCE_RANK_FIELD_NUMBER: _ClassVar[int]
    SOURCE_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    TARGET_RANK_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    source: _cluster_pb2.NodeIdentity
    source_rank: int
    source_address: str
    target: _cluster_pb2.NodeIdentity
    target_rank: int
    payload: bytes
    def __init__(self, source: _Optional[_Union[_cluster_pb2.NodeIdentity, _Mapping]] = ..., source_rank: _Optional[int] = ..., source_address: _Optional[str] = ..., target: _Optional[_Union[_cluster_pb2.NodeIdentity, _Mapping]] = ..., target_rank: _Optional[int] = ..., payload: _Optional[bytes] = ...) -> None: ...

class RelayResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

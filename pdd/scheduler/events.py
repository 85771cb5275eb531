"""What the scheduler core is told. All frozen; the driver makes them from RPCs and timers."""

from dataclasses import dataclass
from enum import StrEnum

from pdd.core.frames import Finish
from pdd.core.identity import NodeIdentity, NodeName, RequestId, Role
from pdd.core.requests import GenerateRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeJoined:
    """A node attached. ``block_size`` in tokens. A former life of the same name is gone."""

    identity: NodeIdentity
    role: Role
    address: str
    block_count: int
    block_size: int
    max_model_len: int
    max_num_seqs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReported:
    """A node's periodic status: it is alive, and this is what its engine counts."""

    node: NodeName
    free_block_count: int
    running_sequence_count: int
    waiting_sequence_count: int
    degraded_reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLost:
    """A node's stream broke."""

    identity: NodeIdentity
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestArrived:
    """A checked request."""

    request: GenerateRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestCancelled:
    """Its client is gone. Idempotent."""

    request_id: RequestId


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstTokenSampled:
    """Output token 0 exists. ``finish`` is set unless another node goes on."""

    request_id: RequestId
    generation: int
    node: NodeName
    token_id: int
    finish: Finish


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeReady:
    """The decode node can go on after the first token."""

    request_id: RequestId
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceStarted:
    """The first tokens of a local job have come."""

    request_id: RequestId
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceFinished:
    """The node that generates says that the output is complete."""

    request_id: RequestId
    generation: int
    node: NodeName
    finish: Finish


class FailureKind(StrEnum):
    """Why a node could not go on; ``NodeRequestFailed.kind`` of cluster.proto."""

    INVALID = "invalid"  # the client's fault: no other node would do better
    ENGINE = "engine"  # the engine died or refused: another attempt may succeed
    DEADLINE = "deadline"  # the time that the scheduler gave the job is over


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFailed:
    """A node cannot go on with a request."""

    request_id: RequestId
    generation: int
    node: NodeName
    message: str
    kind: FailureKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """Time has passed. Sent at least once a second."""


Event = (
    NodeJoined
    | NodeReported
    | NodeLost
    | RequestArrived
    | RequestCancelled
    | FirstTokenSampled
    | DecodeReady
    | SequenceStarted
    | SequenceFinished
    | JobFailed
    | Tick
)

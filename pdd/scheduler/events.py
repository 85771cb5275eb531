"""What the scheduler core is told. All frozen; the driver makes them from RPCs and timers."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from pdd.core.frames import EngineFacts, Finish
from pdd.core.identity import Forking, NodeIdentity, NodeName, RequestId, Role
from pdd.core.requests import GenerateRequest
from pdd.core.values import frozen
from pdd.scheduler.group_events import GroupEvent
from pdd.scheduler.quotas import Quota
from pdd.scheduler.settings import SchedulerSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldSequence:
    """A request that a node has from a scheduler that is gone.

    ``output_token_count``: what it has said, in all. ``prefill_node``: who computed its prompt, if
    not the node itself. ``first_facts``: what that one counted. Ages in seconds; None: not yet.
    """

    request: GenerateRequest
    keys: bytes
    generation: int
    output_token_count: int
    prefill_node: NodeName | None
    first_facts: EngineFacts
    arrived_age_s: float
    placed_age_s: float
    first_token_age_s: float | None
    ready_age_s: float | None
    ended_age_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeJoined:
    """A node attached. A former life of the same name is gone.

    ``role``: as its configuration names it; ``is_pinned``: and no other. ``block_size`` in tokens,
    ``block_bytes`` over all layers and ranks, 0 where it is not known. ``forking``: what several
    choices of one prompt share there. ``pulls``: it can pull a prefix, and lend one.
    ``held``: sequences that run there and belong to nobody; they are taken over.
    """

    identity: NodeIdentity
    role: Role
    address: str
    block_count: int
    block_size: int
    max_model_len: int
    max_num_seqs: int
    block_bytes: int = 0
    is_pinned: bool = False
    held: tuple[HeldSequence, ...] = ()
    forking: Forking = Forking.NONE
    pulls: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceFound:
    """A client has come back for what a member has from a scheduler that is gone, and it runs."""

    node: NodeName
    held: HeldSequence


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputRecovered:
    """All that a node holds of a sequence that does not run there any more has been read.

    ``finish``: how it ended; None: it did not, and is to go on somewhere.
    """

    node: NodeName
    held: HeldSequence
    finish: Finish | None


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


@frozen
class RequestArrived:
    """A checked request.

    ``keys``: the keys of its prompt's full blocks, 16 bytes each, joined, as
    ``pdd.directory.keys`` makes them; empty where nobody made them. ``caller_key``: what its client
    calls it (``prompt_cache_key``, else ``user``); requests with equal ones go the same way.
    """

    request: GenerateRequest
    keys: bytes = b""
    caller_key: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestCancelled:
    """Its client is gone. Idempotent. ``output_token_count``: what it has had, of all choices that
    had not ended; None: not known."""

    request_id: RequestId
    output_token_count: int | None = None


@frozen
class FirstTokenSampled:
    """Output token 0 of a choice exists. ``finish`` is a handover if another node goes on."""

    request_id: RequestId
    generation: int
    node: NodeName
    token_id: int
    finish: Finish
    choice_index: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeReady:
    """The decode node can go on after the first token.

    ``transfer_s``: from its ticket to the last verified block; 0 where it is not known.
    """

    request_id: RequestId
    generation: int
    transferred_bytes: int = 0
    transfer_s: float = 0.0


@frozen
class SequenceStarted:
    """The first tokens of a local job have come."""

    request_id: RequestId
    generation: int


@frozen
class SequenceFinished:
    """The node that generates says that the output of a choice is complete.

    ``output_token_count``: of the choice, over all attempts; 0 where it is not known.
    """

    request_id: RequestId
    generation: int
    node: NodeName
    finish: Finish
    output_token_count: int = 0
    choice_index: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceGrew:
    """The output of a choice has reached ``Request.grows_at_tokens``.

    ``output_token_count``: of that choice, over all attempts.
    """

    request_id: RequestId
    generation: int
    output_token_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BlocksEvicted:
    """A node's prefix cache no longer holds these blocks. ``keys``: joined, 16 bytes each.

    That blocks were stored needs no event: decisions ask the block directory.
    """

    identity: NodeIdentity
    keys: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheCleared:
    """A node's prefix cache is empty."""

    identity: NodeIdentity


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCordoned:
    """An operator takes a node out: it finishes what it has and is given nothing new.

    ``is_drain``: tell when it has finished. Holds for the node's name, over restarts.
    """

    node: NodeName
    message: str = ""
    is_drain: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeUncordoned:
    """An operator gives a node back."""

    node: NodeName


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRoleSet:
    """An operator sets a node's role. Holds for its name, over restarts, until it is released."""

    node: NodeName
    role: Role
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRoleGiven:
    """A controller has left a node with this role, perhaps in an earlier life of the scheduler."""

    node: NodeName
    role: Role


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRoleReleased:
    """An operator leaves a node's role to the controller, or to its configuration."""

    node: NodeName


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsChanged:
    """Policy, paths, queue and its limit go by these from now on; what has a place keeps it."""

    settings: SchedulerSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotasChanged:
    """What each of these tenants may have. All there are: a tenant that is not named has no limit.
    What it has already goes on."""

    quotas: Mapping[str, Quota]


class FailureKind(StrEnum):
    """Why a node could not go on; ``NodeRequestFailed.kind`` of cluster.proto."""

    INVALID = "invalid"  # the client's fault: no other node would do better
    ENGINE = "engine"  # the engine died or refused: another attempt may succeed
    DEADLINE = "deadline"  # the time that the scheduler gave the job is over
    STOPPED = "stopped"  # given back through no fault: another attempt, here or elsewhere


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
    | SequenceFound
    | OutputRecovered
    | NodeReported
    | NodeLost
    | RequestArrived
    | RequestCancelled
    | FirstTokenSampled
    | DecodeReady
    | SequenceStarted
    | SequenceFinished
    | SequenceGrew
    | BlocksEvicted
    | CacheCleared
    | NodeCordoned
    | NodeUncordoned
    | NodeRoleSet
    | NodeRoleGiven
    | NodeRoleReleased
    | SettingsChanged
    | QuotasChanged
    | JobFailed
    | Tick
    | GroupEvent
)

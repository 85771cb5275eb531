"""What the scheduler core wants done, in the order given. The driver obeys at once.

A failed effect (a node whose stream broke meanwhile) needs no answer: the loss of the node comes
back as an event of its own.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from pdd.core.errors import PddError
from pdd.core.frames import Finish
from pdd.core.identity import NodeIdentity, NodeName, RequestId
from pdd.core.requests import GenerateRequest, Plan, PlannedPull
from pdd.core.values import frozen
from pdd.scheduler.roles.book import RoleNews


@frozen
class Submit:
    """Start a job for ``choices``, those of the request that have not ended. ``kind`` as in
    ``Submit.kind`` of cluster.proto.

    ``source``: for a decode job, the node whose blocks it waits for; for a prefill job with
    ``pull``, the decode node, which is told by the same field to lend. ``deadline_s``: time left.
    The driver adds the output tokens that the client has already.
    """

    node: NodeName
    request: GenerateRequest
    generation: int
    kind: str
    source: NodeName | None
    deadline_s: float
    choices: tuple[int, ...] = (0,)
    pull: PlannedPull | None = None


@frozen
class Cancel:
    """Forget a request on a node, whatever phase it is in."""

    node: NodeName
    request_id: RequestId


@frozen
class GiveFirstToken:
    """Hand output token 0 of every choice that goes on to the decode node, by choice."""

    node: NodeName
    request_id: RequestId
    generation: int
    token_ids: Mapping[int, int]


@frozen
class Announce:
    """The request is accepted: tell its client the plan. Once per request."""

    request_id: RequestId
    plan: Plan


@frozen
class StageTimes:
    """Seconds; disjoint, and their sum is the time from arrival to end.

    ``transfer_s`` is the part of the transfer that the client waited for: from the first token to
    the moment at which the decode node could go on.
    """

    queue_s: float
    prefill_s: float
    transfer_s: float
    decode_s: float


@frozen
class Complete:
    """The request has finished by itself. ``plan`` is the path that was really taken.

    ``prompt_recomputed``: blocks were to come and did not, so that the decode node computed prompt
    positions itself (more than the last one, which it may always have to); the path is local then.
    """

    request_id: RequestId
    plan: Plan
    prompt_token_count: int
    finish: Finish
    times: StageTimes
    cached_tokens: int
    transferred_bytes: int
    decode_computed_prompt_tokens: int
    pulled_tokens: int = 0
    pulled_bytes: int = 0
    prompt_recomputed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Fail:
    """The request is over without success. Before ``Announce`` this is a refusal."""

    request_id: RequestId
    error: PddError


@dataclass(frozen=True, slots=True, kw_only=True)
class Disconnect:
    """Cut a node's stream: it was silent too long, or a newer life of it has joined."""

    identity: NodeIdentity
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetNode:
    """A lost node did not come back: it is no member any more. Should it join, it is a new one."""

    node: NodeName


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeDrained:
    """A node that is being drained has finished all it had. Once per drain."""

    identity: NodeIdentity
    drained_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class IntroducePeers:
    """Tell a node with whom it exchanges blocks; it connects to them at once.

    ``complete``: these are all of its peers; what it knew before is void.
    """

    node: NodeName
    peers: tuple[NodeIdentity, ...]
    complete: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DismissPeer:
    """Tell a node that a peer has left; it closes its connection to that life of it."""

    node: NodeName
    peer: NodeIdentity


Effect = (
    Submit
    | Cancel
    | GiveFirstToken
    | Announce
    | Complete
    | Fail
    | Disconnect
    | ForgetNode
    | NodeDrained
    | IntroducePeers
    | DismissPeer
    | RoleNews
)

"""Small builders: a test spells out only what it is about."""

from typing import Any

from pdd.core.frames import EngineFacts, Finish, FinishReason, Frame
from pdd.core.identity import NodeIdentity, NodeName, RequestId, Role
from pdd.core.requests import DEFAULT_TENANT, GenerateRequest
from pdd.core.sampling import Sampling
from pdd.scheduler.core import SchedulerCore
from pdd.scheduler.effects import Effect
from pdd.scheduler.events import Event, NodeJoined
from pdd.scheduler.prefixes import PrefixDirectory
from pdd.scheduler.settings import PathMode, PathSettings, SchedulerSettings

BLOCK_SIZE = 16


def make_identity(name: str, *, boot_epoch: int = 1, uuid: str | None = None) -> NodeIdentity:
    """A node's life; the uuid follows from the name."""
    return NodeIdentity(name=NodeName(name), uuid=uuid or f"uuid-{name}", boot_epoch=boot_epoch)


def make_joined(name: str, *, boot_epoch: int = 1, **changes: Any) -> NodeJoined:
    """A node joins; its role is the first word of its name. 100 usable blocks of 16 tokens."""
    fields: dict[str, Any] = {
        "identity": make_identity(name, boot_epoch=boot_epoch),
        "role": Role(name.split("-")[0]),
        "address": f"{name}:1",
        "block_count": 101,
        "block_size": BLOCK_SIZE,
        "max_model_len": 8192,
        "max_num_seqs": 16,
    }
    return NodeJoined(**{**fields, **changes})


def make_request(
    request_id: str = "r1",
    *,
    prompt_token_count: int = 32,
    max_tokens: int = 16,
    deadline_s: float = 600.0,
    prompt_token_ids: tuple[int, ...] | None = None,
    tenant: str = DEFAULT_TENANT,
    priority: int = 0,
    **sampling: Any,
) -> GenerateRequest:
    """A checked request. 32 + 16 tokens are 3 blocks."""
    return GenerateRequest(
        request_id=RequestId(request_id),
        prompt_token_ids=prompt_token_ids or tuple(range(1, prompt_token_count + 1)),
        sampling=Sampling(max_tokens=max_tokens, **sampling),
        tenant=tenant,
        priority=priority,
        deadline_s=deadline_s,
    )


def make_finish(reason: FinishReason = FinishReason.STOP, **facts: Any) -> Finish:
    """The end of a job on one node."""
    return Finish(reason=reason, facts=EngineFacts(**facts))


def make_frame(
    token_ids: tuple[int, ...] = (7,),
    *,
    request_id: str = "r1",
    first_token_index: int = 0,
    text_offset: int = 0,
    text: str = "",
    finish: Finish | None = None,
) -> Frame:
    """Tokens of one step."""
    return Frame(
        request_id=RequestId(request_id),
        first_token_index=first_token_index,
        token_ids=token_ids,
        text_offset=text_offset,
        text=text,
        finish=finish,
    )


class Cluster:
    """A scheduler core with nodes, at a time that only the test moves.

    Prompts go to a prefill node wherever that is possible, unless a test says otherwise.
    """

    def __init__(
        self,
        *nodes: str | NodeJoined,
        directory: PrefixDirectory | None = None,
        **settings: Any,
    ) -> None:
        settings.setdefault("path", PathSettings(mode=PathMode.DISAGGREGATED))
        self.core = SchedulerCore(SchedulerSettings(**settings), directory=directory)
        self.now_s = 1000.0
        for node in nodes:
            self.step(node if isinstance(node, NodeJoined) else make_joined(node))

    def step(self, event: Event, *, after_s: float = 0.0) -> list[Effect]:
        """One event, ``after_s`` seconds later; invariants hold afterwards."""
        self.now_s += after_s
        effects = self.core.step(event, now_s=self.now_s)
        self.core.check()
        return effects

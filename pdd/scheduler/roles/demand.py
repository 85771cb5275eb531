"""How many nodes' worth of work each duty has, from what live requests hold. No counter can leak.

*Prefill*: nodes that have a prompt to compute, sampled with every tick, and the time that the
prompts ahead would take, over the horizon within which they should be done.

*Decode*: the fuller of blocks and sequences of each node, without the leases of requests that still
wait for their prompt: those would make decode look full where prefill is slow. Requests that wait
for room count by how long an output takes, and for both duties in the proportion in which that room
is held by prompts in the making. A pool that is in use and too slow (``tpot_s``) counts as full to
the extent that it is too slow.

A node that is cordoned or lost counts neither as a node nor with its work; one that changes its
duty counts with its work, for the old one.
"""

from dataclasses import dataclass

from pdd.core.identity import NodeState, Role
from pdd.core.requests import Path
from pdd.scheduler.nodes import Node
from pdd.scheduler.requests import Phase, Request
from pdd.scheduler.roles.controller import Loads, PoolLoad
from pdd.scheduler.roles.settings import RoleSettings
from pdd.scheduler.state import State

_SLOW_LOAD_MIN = 0.3
"""Slow decoding on a pool that is emptier than this is not for want of nodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """``nodes``: work by duty, in nodes. ``waits_for_prefill``: who waits for room waits for
    prompts to be computed rather than for outputs to end."""

    nodes: dict[Role, float]
    waits_for_prefill: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _DecodeUse:
    """In nodes. ``running``: by what decodes or is about to; ``promised``: for prompts in the
    making."""

    running: float
    promised: float

    @property
    def promised_fraction(self) -> float:
        total = self.running + self.promised
        return self.promised / total if total > 0.0 else 0.0


def loads(state: State) -> Loads:
    """As they are believed to be."""
    working = [node for node in state.nodes.values() if node.takes_work]
    smooth = state.roles.smooth.nodes
    return {
        role: PoolLoad(
            node_count=sum(node.role is role for node in working),
            load_nodes=smooth.get(role, 0.0),
        )
        for role in (Role.PREFILL, Role.DECODE)
    }


def _present(state: State) -> list[Node]:
    return [
        node for node in state.nodes.values() if node.state in (NodeState.READY, NodeState.DEGRADED)
    ]


def measure(state: State, *, now_s: float) -> Measured:
    """At this moment."""
    settings = state.settings.roles
    present = _present(state)
    prefills = [node for node in present if node.role is Role.PREFILL]
    decodes = [node for node in present if node.role is Role.DECODE]
    use = _decode_use(state, decodes)
    waiting = [
        request
        for request_id in state.queue
        if (request := state.requests[request_id]).blocked_s is not None
    ]
    busy = float(sum(bool(node.queued_tokens) for node in prefills))
    ahead_s = sum(_ahead_s(state, node, now_s) for node in prefills)
    ahead_s += use.promised_fraction * _prompts_s(state, waiting, prefills)
    ahead_s += _prompts_s(state, _early(state), prefills)
    decode = use.running + (1.0 - use.promised_fraction) * _outputs_nodes(
        state, waiting, decodes, settings
    )
    return Measured(
        nodes={
            Role.PREFILL: busy + ahead_s / settings.backlog_horizon_s,
            Role.DECODE: max(decode, _slow_nodes(state, decodes, use, settings)),
        },
        waits_for_prefill=use.promised_fraction > 0.5,
    )


def _ahead_s(state: State, node: Node, now_s: float) -> float:
    per_s = state.estimates.prefill(node.name).per_s
    return node.backlog_tokens(tokens_per_s=per_s, now_s=now_s) / per_s


def _early(state: State) -> list[Request]:
    """Those that wait for prompts ahead of theirs, and hold nothing meanwhile."""
    queued = map(state.requests.__getitem__, state.queue)
    return [request for request in queued if request.early_s is not None]


def _prompts_s(state: State, waiting: list[Request], prefills: list[Node]) -> float:
    """Seconds that one prefill node takes for the prompts that wait."""
    if not waiting or not prefills:
        return 0.0
    per_s = sum(state.estimates.prefill(node.name).per_s for node in prefills) / len(prefills)
    return sum(len(request.request.prompt_token_ids) for request in waiting) / per_s


def _decode_use(state: State, decodes: list[Node]) -> _DecodeUse:
    running = promised = 0.0
    for node in decodes:
        waiting = [
            request_id
            for request_id in node.leases
            if _waits_for_prompt(state.requests[request_id])
        ]
        blocks = sum(node.leases[request_id] for request_id in waiting)
        held = node.usable_block_count - node.unleased_block_count()
        sequences = sum(node.sequences[request_id] for request_id in waiting)
        running += _fullness(node, held - blocks, node.sequence_count - sequences)
        promised += _fullness(node, blocks, sequences)
    return _DecodeUse(running=running, promised=promised)


def _waits_for_prompt(request: Request) -> bool:
    return request.phase is Phase.PREFILLING and request.path() is Path.DISAGGREGATED


def _fullness(node: Node, blocks: int, sequences: int) -> float:
    return max(blocks / node.usable_block_count, sequences / node.max_num_seqs)


def _outputs_nodes(
    state: State, waiting: list[Request], decodes: list[Node], settings: RoleSettings
) -> float:
    """Decode nodes that who waits would fill, as far as it is there for the horizon."""
    if not waiting or not decodes:
        return float(bool(waiting))
    blocks = sum(node.usable_block_count for node in decodes) / len(decodes)
    sequences = sum(node.max_num_seqs for node in decodes) / len(decodes)
    per_s = sum(state.estimates.decode(node.name).per_s for node in decodes) / len(decodes)
    nodes = 0.0
    for request in waiting:
        tokens = state.estimates.expected_output_tokens(request.request.sampling.max_tokens)
        choices = len(request.open_choices)
        held = decodes[0].choice_blocks(
            prompt_token_count=len(request.request.prompt_token_ids),
            output_token_count=tokens,
            choice_count=choices,
        )
        there = min(tokens / per_s / settings.backlog_horizon_s, 1.0)
        nodes += there * max(held / blocks, choices / sequences)
    return nodes


def _slow_nodes(
    state: State, decodes: list[Node], use: _DecodeUse, settings: RoleSettings
) -> float:
    """Decode nodes that the pool counts as where it is in use and slower than ``tpot_s``."""
    if not decodes or use.running < _SLOW_LOAD_MIN * len(decodes):
        return 0.0
    rates = [
        rate.per_s
        for node in decodes
        if (rate := state.estimates.decode(node.name)).sample_count
        >= state.settings.estimates.sample_count_min
    ]
    if not rates:
        return 0.0
    tpot_s = len(rates) / sum(rates)
    if tpot_s <= settings.tpot_s:
        return 0.0
    return len(decodes) * settings.decode_load_target * min(tpot_s / settings.tpot_s, 2.0)

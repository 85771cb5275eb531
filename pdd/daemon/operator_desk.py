"""What an operator asks of a scheduler by hand: cordons, and why a request went where it went."""

import time

import structlog

from pdd.cell.operations import Cordoned, Status, Uncordoned
from pdd.cell.state import CORDONS_MAX
from pdd.control.cluster_ports import UnknownNode
from pdd.core.identity import NodeName, NodeState, RequestId
from pdd.core.ports import Clock
from pdd.daemon.agreement import Agreement, AgreementUnavailable
from pdd.rpc.v1 import cluster_pb2
from pdd.scheduler.core import SchedulerCore
from pdd.scheduler.decision_record import CandidateRecord, ChoiceRecord, DecisionRecord
from pdd.scheduler.nodes import Node

log = structlog.get_logger(__name__)


class OperatorDesk:
    """Implements ``ClusterOperator``: says what is asked to the agreement, and turns records into
    messages."""

    def __init__(self, *, core: SchedulerCore, clock: Clock, agreement: Agreement) -> None:
        self._core = core
        self._clock = clock
        self._agreement = agreement

    async def cordon(self, name: str, *, message: str, is_drain: bool) -> bool:
        """Take a node out; whether that changed anything. What is agreed on reaches the core
        before this returns.

        Raises:
            UnknownNode: nobody of that name has joined.
            AgreementUnavailable: the schedulers could not agree in time.
        """
        known_node(self._core, name)
        before = self._agreement.state.cordons.get(name)
        at_ms = time.time_ns() // 1_000_000
        status = await self._agreement.say(
            Cordoned(node=name, message=message, is_drain=is_drain, at_ms=at_ms)
        )
        if status is Status.FULL:
            raise AgreementUnavailable(
                f"{CORDONS_MAX} nodes are cordoned, the most; uncordon some that are gone"
            )
        is_changed = before is None or (is_drain and not before.is_drain)
        if is_changed:
            log.info("node_cordoned", node=name, drain=is_drain, why=message)
        return is_changed

    async def uncordon(self, name: str) -> bool:
        """Give a node back; whether that changed anything. Raises likewise."""
        if name not in self._agreement.state.cordons:
            known_node(self._core, name)
        status = await self._agreement.say(Uncordoned(node=name))
        if status is Status.APPLIED:
            log.info("node_uncordoned", node=name)
        return status is Status.APPLIED

    def drain_state(self, name: str) -> cluster_pb2.DrainState:
        """How far a node is from holding nothing. Raises UnknownNode."""
        node = known_node(self._core, name)
        cordon = self._core.cordon_of(node.name)
        state = cluster_pb2.DrainState(
            held_request_count=len(node.leases),
            is_cordoned=cordon is not None,
            is_lost=node.state is NodeState.LOST,
        )
        if cordon is not None:
            state.is_draining = cordon.is_drain
            state.began_request_count = cordon.request_count
            state.message = cordon.message
            if cordon.drained_s is not None:
                state.is_drained = True
                state.drain_s = cordon.drained_s - cordon.since_s
        return state

    def decisions(self, request_id: str) -> list[cluster_pb2.Decision]:
        """How a request was placed, oldest decision first; empty if none is remembered."""
        now_s = self._clock()
        return [
            _decision(decision, now_s)
            for decision in self._core.why(RequestId(request_id), now_s=now_s)
        ]


def known_node(core: SchedulerCore, name: str) -> Node:
    """The member of that name. Raises UnknownNode."""
    node = core.nodes.get(NodeName(name))
    if node is None:
        there = ", ".join(sorted(core.nodes)) or "none"
        raise UnknownNode(f"no node {name!r}; there are {there}")
    return node


def _decision(decision: DecisionRecord, now_s: float) -> cluster_pb2.Decision:
    prefill, decode = decision.choices()
    message = cluster_pb2.Decision(
        request_id=decision.request_id,
        tenant=decision.tenant,
        generation=decision.generation,
        age_s=max(now_s - decision.decided_s, 0.0),
        outcome=decision.outcome.value,
        path=decision.path.value if decision.path is not None else "",
        reason=decision.reason,
        waited_s=decision.waited_s,
        repeated_count=decision.repeated_count,
        path_inputs=decision.path_inputs,
    )
    for role, choice in (("prefill", prefill), ("decode", decode)):
        if choice is not None:
            message.choices.append(_choice(role, choice))
    return message


def _choice(role: str, choice: ChoiceRecord) -> cluster_pb2.Choice:
    return cluster_pb2.Choice(
        role=role,
        candidates=[_candidate(candidate) for candidate in choice.candidates],
        other_counts={name or "worse": count for name, count in choice.other_count.items()},
    )


def _candidate(candidate: CandidateRecord) -> cluster_pb2.Candidate:
    return cluster_pb2.Candidate(
        node=candidate.node,
        is_chosen=candidate.is_chosen,
        dropped_by=candidate.dropped_by,
        dropped_reason=candidate.dropped_why,
        inputs=candidate.inputs,
        scores=candidate.scores,
        total=candidate.total,
    )

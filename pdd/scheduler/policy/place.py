"""One request, all nodes: the decision, with everything that it rests on."""

from collections.abc import Iterable, Mapping
from heapq import nsmallest

import numpy as np

from pdd.core.identity import NodeName, Role
from pdd.core.requests import Path, PlannedPull
from pdd.core.values import frozen
from pdd.scheduler.estimates import Estimates
from pdd.scheduler.nodes import Node, not_ready_reason
from pdd.scheduler.policy.candidate import Candidate, Candidates, Mask, Question
from pdd.scheduler.policy.decider import PathInputs, decide, looks_back
from pdd.scheduler.policy.filters import why_not_choices
from pdd.scheduler.policy.profile import Choice, Profile
from pdd.scheduler.policy.pull import (
    NO_PULL,
    PullInputs,
    decide_pull,
    missing_tokens,
    pull_reason,
)
from pdd.scheduler.pools import (
    BLOCK_BYTES,
    BLOCK_TOKENS,
    CACHED,
    COMPLETION_S,
    INBOUND_BYTES,
    LOAD,
    QUEUED,
    REMAINDER,
    TOKENS_MAX,
    WORKED_UNTIL,
    Column,
    Nodes,
    Pool,
    Pools,
    Table,
)
from pdd.scheduler.prefixes import KEY_SIZE_BYTES, Homes, Preference, PrefixDirectory
from pdd.scheduler.settings import PathMode, SchedulerSettings

_REASON_COUNT_MAX = 3
_EARLY_FULLS = 4
"""Prompts ahead of a new one may fill its prefill node so many times before it is too early."""
_EARLY_AGEING = 8
"""A second's wait counts as a second less of them, divided by this."""


@frozen
class Considered:
    """What a decision rests on; a choice is None where none was to make."""

    prefill: Choice | None = None
    decode: Choice | None = None
    path_inputs: PathInputs | None = None


@frozen
class Placement:
    """A decision. ``decode`` is None when the prefill node's one token is the whole answer."""

    path: Path
    prefill: Candidate | None
    decode: Candidate | None
    reason: str
    considered: Considered
    pull: PlannedPull | None = None

    @property
    def pulled_tokens(self) -> int:
        """Prompt tokens that the prefill node has from the decode node."""
        if self.pull is None or self.prefill is None:
            return 0
        return self.pull.token_count - self.prefill.cached_tokens


@frozen
class NoRoom:
    """Nothing can take the request now.

    ``ever``: whether waiting for the present nodes can help. ``is_own``: the obstacle is this
    request's own, not that the nodes are full: no room is kept for it. ``is_early``: there is room,
    which it could not use for long. ``field``: of the request, which asks for too much where
    waiting cannot help.
    """

    reason: str
    ever: bool
    considered: Considered
    is_own: bool = False
    is_early: bool = False
    field: str = "max_tokens"


class Policy:
    """The parts that the settings name, and what they remember of earlier decisions."""

    def __init__(
        self, settings: SchedulerSettings, *, estimates: Estimates, directory: PrefixDirectory
    ) -> None:
        self.change(settings)
        self._estimates = estimates
        self._directory = directory
        self.homes = {
            role: Homes(role=role, entry_count_max=settings.policy.affinity_entry_count_max)
            for role in (Role.PREFILL, Role.DECODE)
        }

    def change(self, settings: SchedulerSettings) -> None:
        """Decide by these from now on. What earlier decisions have taught stays."""
        policy = settings.policy
        self._settings = settings
        self._prefill = Profile(
            filters=policy.prefill_filters, scorers=policy.prefill_scorers, settings=policy
        )
        self._decode = Profile(
            filters=policy.decode_filters, scorers=policy.decode_scorers, settings=policy
        )

    def place(self, question: Question, nodes: Nodes) -> Placement | NoRoom:
        """Decide. Changes nothing but the order in which preferences are forgotten."""
        pools = nodes.pools()
        table = self._filled_in(question, pools)
        key = question.caller or question.chain.keys[-KEY_SIZE_BYTES:]
        key = key or question.request.request_id.encode()

        local_reason = self._only_local(question, pools.prefill)
        prefill_choice = None
        if not local_reason:
            candidates = self._candidates(Role.PREFILL, question, pools.prefill, table, nodes)
            prefill_choice = self._prefill.choose(candidates, question, key=key)
            if prefill_choice.chosen is None:
                failed = prefill_choice.emptied_by == "rested"
                local_reason = (
                    "the prefill nodes have just failed it"
                    if failed
                    else "no prefill node has room for the prompt"
                )
        source = prefill_choice.chosen if prefill_choice is not None else None
        if source is not None and question.request.sampling.max_tokens == 1:
            return Placement(
                path=Path.DISAGGREGATED,
                prefill=source,
                decode=None,
                reason="one token: the prefill node has it",
                considered=Considered(prefill=prefill_choice),
            )
        if not pools.decode.names:
            considered = Considered(prefill=prefill_choice)
            reason = not_ready_reason(nodes.values(), Role.DECODE)
            return NoRoom(reason=reason, ever=False, considered=considered)
        candidates = self._candidates(Role.DECODE, question, pools.decode, table, nodes)
        if source is not None:
            self._add_transfer(candidates, source)
        decode_choice = self._decode.choose(candidates, question, key=key)
        target = decode_choice.chosen
        considered = Considered(prefill=prefill_choice, decode=decode_choice)
        if target is None:
            return _no_room(question, decode_choice, considered)
        pull = None
        if source is None:
            path, reason = Path.LOCAL, local_reason
        else:
            pulled = self._pull_inputs(question, source, target)
            pull = decide_pull(pulled, self._settings.path.pull)
            inputs = self._path_inputs(
                question, source, target, pulled=pulled, is_pull=pull is not None
            )
            path, reason = decide(inputs, self._settings.path)
            if path is Path.LOCAL:
                pull = None
            elif pull is not None:
                reason = f"{reason}; {pull_reason(pulled, holder=target.name)}"
            considered = Considered(
                prefill=prefill_choice, decode=decode_choice, path_inputs=inputs
            )
            if path is Path.DISAGGREGATED and (early := self._too_early(question, source)):
                return NoRoom(
                    reason=early, ever=True, is_own=True, is_early=True, considered=considered
                )
        return Placement(
            path=path,
            prefill=source if path is Path.DISAGGREGATED else None,
            decode=target,
            reason=reason,
            considered=considered,
            pull=pull,
        )

    def remember(self, question: Question, placement: Placement) -> None:
        """What begins alike, or comes with the same key, goes the same way from now on."""
        inputs = placement.considered.path_inputs
        if inputs is not None and inputs.is_probe and placement.prefill and placement.decode:
            self._estimates.probes(
                placement.prefill.name, placement.decode.name, now_s=question.now_s
            )
        for candidate in (placement.prefill, placement.decode):
            if candidate is not None:
                self.homes[candidate.node.role].remember(
                    question.chain,
                    caller=question.caller,
                    node=candidate.node,
                    now_s=question.now_s,
                )

    def forget_prefix(self, node: Node, keys: bytes) -> None:
        """The node does not hold these blocks, whatever was believed."""
        self.homes[node.role].evict(node.name, keys)

    def _only_local(self, question: Question, prefills: Pool) -> str:
        if question.resumes:
            return question.resumes
        if (parameter := looks_back(question.request.sampling)) is not None:
            return f"{parameter} reads earlier output, which must stay on one engine"
        if self._settings.path.mode is PathMode.LOCAL:
            return "scheduler.path.mode is local"
        return "" if prefills.names else "no prefill node is ready"

    def _filled_in(self, question: Question, pools: Pools) -> Table:
        """The table of all nodes with what computing the prompt would be on each: rows CACHED to
        COMPLETION_S, and a prefill node's LOAD."""
        tokens, table = question.token_count, pools.table.copy()
        table[REMAINDER] = tokens
        if question.chain.block_count:
            for name, held in self._directory.matches(question.chain.keys).items():
                position = pools.index.get(name)
                if position is not None:
                    cached = _cached_tokens(question, pools.nodes[position], held)
                    table[CACHED, position] = cached
                    table[REMAINDER, position] = tokens - cached
        per_s = self._estimates.prefill_per_s(pools.names)
        completion_s = np.divide(table[REMAINDER], per_s, out=table[COMPLETION_S])
        if np.count_nonzero(table[QUEUED]):
            backlog_s = _backlog_s(table, per_s, question.now_s)
            completion_s += backlog_s
            load = table[LOAD, pools.prefill.columns]
            full_s = self._settings.policy.prefill_full_s
            np.maximum(load, backlog_s[pools.prefill.columns] / full_s, out=load)
        return table

    def _candidates(
        self,
        role: Role,
        question: Question,
        pool: Pool,
        filled_in: Table,
        members: Mapping[NodeName, Node],
    ) -> Candidates:
        """As they are now, without what a transfer takes."""
        known, preferred = self._preference(role, question, members)
        longest = question.longest_output(role)
        granted = longest if role is Role.PREFILL else question.granted_output_tokens
        blocks = _blocks(question, pool, granted)
        candidates = Candidates(
            pool.nodes,
            pool.names,
            filled_in[:, pool.columns],
            bounds=pool.bounds,
            blocks_max=blocks if isinstance(blocks, int) else max(blocks, default=0),
            token_count_max=question.token_count + longest,
            holds_choices=_holds_choices(question, pool, longest),
            preferred_at=-1 if preferred is None else pool.index.get(preferred.node, -1),
        )
        candidates.blocks[:] = blocks
        candidates.claim[:] = _blocks(question, pool, longest)
        if known is not None and not self._directory.is_known(known.node):
            position = pool.index.get(known.node)
            if position is not None:
                node = pool.nodes[position]
                cached = _cached_tokens(question, node, known.block_count)
                candidates.cached_tokens[position] = cached
                candidates.remainder_tokens[position] -= cached
                per_s = self._estimates.prefill(node.name).per_s
                candidates.completion_s[position] -= cached / per_s
        return candidates

    def _add_transfer(self, candidates: Candidates, source: Candidate) -> None:
        """How long the blocks from ``source`` would take to each of these."""
        table, out = candidates.table, candidates.transfer_s
        bytes_per_s = self._estimates.links_per_s(source.name, candidates.names)
        np.divide(candidates.remainder_tokens, table[BLOCK_TOKENS], out=out)
        np.ceil(out, out=out)
        out *= table[BLOCK_BYTES]
        out /= bytes_per_s
        if np.count_nonzero(table[INBOUND_BYTES]):
            # Blocks leave as they are computed: what the link carries until this prompt is
            # there holds it up by nothing, however much it is.
            ahead_s = table[INBOUND_BYTES] / bytes_per_s
            np.maximum(ahead_s - source.completion_s, 0.0, out=candidates.inbound_s)

    def _preference(
        self, role: Role, question: Question, members: Mapping[NodeName, Node]
    ) -> tuple[Preference | None, Preference | None]:
        """``(node of the longest known prefix, node that is preferred)``.

        A prefix that is shared by chance (a chat template's first words) gives no preference. On a
        decode node only a conversation does, of which most must be there: a persona's prompt
        alone would gather all its requests on one node for nothing.
        """
        homes = self.homes[role]
        known = None
        if question.chain.block_count:
            known = homes.prefix(
                question.chain, nodes=members, directory=self._directory, now_s=question.now_s
            )
        if known is not None:
            tokens = known.block_count * members[known.node].block_size
            enough = tokens >= self._settings.policy.affinity_tokens_min
            if enough and (role is Role.PREFILL or 2 * tokens >= question.token_count):
                return known, known
        if question.caller:
            name = homes.caller(question.caller, nodes=members)
            if name is not None:
                return known, Preference(node=name, block_count=0)
        return known, None

    def _too_early(self, question: Question, source: Candidate) -> str:
        """Why a decode node would keep room for this prompt long before it is needed; empty: it
        would not.

        A prefill node computes prompts by what is left of them, so a short one is never early. Long
        ones would otherwise hold every sequence and block of the decode nodes while they wait for
        their turn, and the short ones that the prefill node could compute at once would wait here.
        """
        per_s = self._estimates.prefill(source.name).per_s
        full_s = self._settings.policy.prefill_full_s
        most = (_EARLY_FULLS * full_s + question.waited_s / _EARLY_AGEING) * per_s
        node = source.node
        if node.queued_token_count <= most:
            return ""
        ahead = sum(one for one in node.queued_tokens.values() if one <= source.remainder_tokens)
        if ahead <= most:
            return ""
        return f"{ahead / per_s:.1f} s of prompts no longer than this one are ahead on {node.name}"

    def _pull_inputs(self, question: Question, source: Candidate, target: Candidate) -> PullInputs:
        end_tokens, tokens = missing_tokens(source, target)
        if not tokens:
            return NO_PULL
        node = source.node
        return PullInputs(
            end_tokens=end_tokens,
            tokens=tokens,
            pull_s=self._estimates.pull_s(
                target.name,
                source.name,
                size_bytes=node.blocks_for(tokens) * node.block_bytes,
                now_s=question.now_s,
            ),
            compute_s=tokens / self._estimates.prefill(source.name).per_s,
        )

    def _path_inputs(
        self,
        question: Question,
        source: Candidate,
        target: Candidate,
        *,
        pulled: PullInputs,
        is_pull: bool,
    ) -> PathInputs:
        estimates = self._estimates
        max_tokens = question.request.sampling.max_tokens
        stall_s = target.remainder_tokens / estimates.prefill(target.name).per_s
        return PathInputs(
            prompt_tokens=question.token_count,
            cached_tokens=target.cached_tokens,
            stall_s=stall_s,
            local_s=target.completion_s,
            remote_s=source.completion_s + (pulled.pull_s - pulled.compute_s if is_pull else 0.0),
            transfer_s=target.transfer_s,
            handover_s=max(estimates.handover(source.name, target.name).mean, 0.0),
            output_s=estimates.expected_output_tokens(max_tokens)
            / estimates.decode(target.name).per_s,
            is_probe=estimates.wants_probe(source.name, target.name, now_s=question.now_s),
            held_up_count=target.sequence_count,
            pull_tokens=pulled.tokens,
            pull_s=pulled.pull_s,
            pull_compute_s=pulled.compute_s,
            is_pull=is_pull,
        )


def _blocks(question: Question, pool: Pool, output_tokens: int) -> int | list[int]:
    """That each node would have to promise; one number where it is the same for all."""
    if pool.block_size and question.choice_count == 1:
        return -(-(question.token_count + output_tokens) // pool.block_size)
    return [question.blocks_on(node, output_token_count=output_tokens) for node in pool.nodes]


def _holds_choices(question: Question, pool: Pool, longest: int) -> Mask | None:
    if question.choice_count == 1:
        return None
    return np.array([question.fits_on(node, output_token_count=longest) for node in pool.nodes])


def _cached_tokens(question: Question, node: Node, block_count: int) -> int:
    """The last position is always computed: its logits give the next token."""
    return min(block_count * node.block_size, question.token_count - 1)


def _backlog_s(table: Table, per_s: Column, now_s: float) -> Column:
    """Time for what ``Node.backlog_tokens`` says of each node."""
    queued_s: Column = table[QUEUED] / per_s
    rest_s = now_s - table[WORKED_UNTIL]
    np.maximum(rest_s, 0.0, out=rest_s)
    np.subtract(queued_s, rest_s, out=rest_s)
    queued_s *= 0.1
    np.maximum(queued_s, rest_s, out=queued_s)
    return queued_s


def _no_room(question: Question, choice: Choice, considered: Considered) -> NoRoom:
    candidates = choice.candidates
    holders = candidates.table[TOKENS_MAX] >= candidates.token_count_max
    if candidates.holds_choices is not None:
        holders &= candidates.holds_choices
    able = [at for at, node in enumerate(candidates.nodes) if node.identity not in question.avoid]
    if holders[able].any():
        reason = f"every decode node is full ({_first_reasons(choice)})"
        return NoRoom(reason=reason, ever=True, considered=considered)
    if len(able) < len(candidates):
        return NoRoom(
            reason="the decode nodes that could take it have just failed it",
            ever=True,
            is_own=True,
            considered=considered,
        )
    largest = max(node.token_count_max() for node in candidates.nodes)
    if candidates.token_count_max <= largest:
        whys = sorted((node.name, why_not_choices(node, question)) for node in candidates.nodes)
        return NoRoom(
            reason=f"n: {question.choice_count} choices are too many for every decode node "
            f"({_listed(whys[:_REASON_COUNT_MAX])})",
            field="n",
            ever=False,
            is_own=True,
            considered=considered,
        )
    return NoRoom(
        reason=f"prompt and max_tokens are {candidates.token_count_max} tokens together, "
        f"the largest decode node can hold {largest}",
        ever=False,
        is_own=True,
        considered=considered,
    )


def _first_reasons(choice: Choice) -> str:
    names = choice.candidates.names
    first = nsmallest(_REASON_COUNT_MAX, choice.dropped, key=names.__getitem__)
    return _listed([(names[at], choice.why_dropped(at)) for at in first])


def _listed(reasons: Iterable[tuple[NodeName, str]]) -> str:
    return "; ".join(f"{node}: {why}" for node, why in reasons)

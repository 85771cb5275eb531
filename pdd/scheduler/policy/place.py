"""One request, all nodes: the decision, with everything that it rests on."""

from collections.abc import Iterable
from dataclasses import dataclass
from heapq import nsmallest
from math import inf

import numpy as np

from pdd.core.identity import NodeName, Role
from pdd.core.requests import Path, PlannedPull
from pdd.core.values import frozen
from pdd.scheduler.estimates import Estimates
from pdd.scheduler.nodes import Node, not_ready_reason
from pdd.scheduler.policy import parts
from pdd.scheduler.policy.candidate import Candidate, Candidates, Question
from pdd.scheduler.policy.decider import PathInputs, decide, looks_back
from pdd.scheduler.policy.filters import why_not_choices
from pdd.scheduler.policy.parts import Table
from pdd.scheduler.policy.profile import Choice, Profile
from pdd.scheduler.policy.pull import (
    NO_PULL,
    PullInputs,
    decide_pull,
    missing_tokens,
    pull_reason,
)
from pdd.scheduler.pools import Nodes, Pools
from pdd.scheduler.prefixes import KEY_SIZE_BYTES, Homes, Preference, PrefixDirectory, Trail
from pdd.scheduler.settings import PathMode, PullMode, SchedulerSettings

_REASON_COUNT_MAX = 3
_NO_LINKS = np.empty(0)


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


@dataclass(slots=True)
class _View:
    """What one decision looks at. ``table``: the question's own; ``trail``: see ``Homes``."""

    question: Question
    members: Nodes
    pools: Pools
    table: Table
    trail: Trail


class Policy:
    """The parts that the settings name, and what they remember of earlier decisions."""

    def __init__(
        self, settings: SchedulerSettings, *, estimates: Estimates, directory: PrefixDirectory
    ) -> None:
        self.change(settings)
        self._estimates = estimates
        self._directory = directory
        self.homes = Homes(entry_count_max=settings.policy.affinity_entry_count_max)

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
        trail = self.homes.trail(question.chain)
        view = _View(question, nodes, pools, self._table(question, pools), trail)
        key = question.caller or question.chain.keys[-KEY_SIZE_BYTES:]
        key = key or question.request.request_id.encode()

        local_reason = self._only_local(question, pools)
        prefill_choice = None
        if not local_reason:
            candidates = self._candidates(Role.PREFILL, view)
            self._count_pulls(candidates, pools)
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
        candidates = self._candidates(Role.DECODE, view, source)
        decode_choice = self._decode.choose(candidates, question, key=key)
        target = decode_choice.chosen
        if target is None:
            considered = Considered(prefill=prefill_choice, decode=decode_choice)
            return _no_room(question, decode_choice, considered)
        pull = None
        if source is None:
            path, reason = Path.LOCAL, local_reason
            considered = Considered(prefill=prefill_choice, decode=decode_choice)
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
            if path is Path.DISAGGREGATED and (early := self._too_early(source)):
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
        self.homes.remember(
            question.chain,
            caller=question.caller,
            prefill=None if placement.prefill is None else placement.prefill.node,
            decode=None if placement.decode is None else placement.decode.node,
            now_s=question.now_s,
        )

    def forget_prefix(self, node: Node, keys: bytes) -> None:
        """The node does not hold these blocks, whatever was believed."""
        self.homes.evict(node.name, node.role, keys)

    def _only_local(self, question: Question, pools: Pools) -> str:
        if question.resumes:
            return question.resumes
        if (parameter := looks_back(question.request.sampling)) is not None:
            return f"{parameter} reads earlier output, which must stay on one engine"
        if self._settings.path.mode is PathMode.LOCAL:
            return "scheduler.path.mode is local"
        return "" if pools.prefill.names else "no prefill node is ready"

    def _table(self, question: Question, pools: Pools) -> Table:
        """The question's own, with what is told of single nodes."""
        table, index = pools.table.copy(), pools.index
        table[parts.PREFILL_PER_S] = self._estimates.prefill_per_s(pools.names)
        if question.chain.block_count:
            for name, held in self._directory.matches(question.chain.keys).items():
                if name in index:
                    table[parts.HELD, index[name]] = held
        for node in pools.nodes if question.avoid else ():
            table[parts.RESTS, index[node.name]] = node.identity in question.avoid
        for name, blocks in (question.held or {}).items():
            if name in index:
                table[parts.MAY_TAKE, index[name]] = blocks
        return table

    def _candidates(self, role: Role, view: _View, source: Candidate | None = None) -> Candidates:
        """As they are now. ``source``: where the prompt's blocks would come from, if anywhere."""
        pools, table = view.pools, view.table
        known, preferred = self._preference(role, view)
        if known is not None and not self._directory.is_known(known.node):
            table[parts.HELD, pools.index[known.node]] = known.block_count
        if preferred is not None:
            table[parts.PREFERRED, pools.index[preferred]] = 1.0
        if role is Role.PREFILL:
            pool, full_s = pools.prefill, self._settings.policy.prefill_full_s
        else:
            pool, full_s = pools.decode, inf
        asked = view.question.asked(role, full_s=full_s)
        link_per_s = _NO_LINKS
        if source is not None:
            link_per_s = self._estimates.links_per_s(source.name, pool.names)
            asked[parts.COMPUTED_S] = source.completion_s
        parts.fill_in(table, pool.first, len(pool.names), link_per_s, asked)
        return Candidates(pool, table, asked)

    def _count_pulls(self, candidates: Candidates, pools: Pools) -> None:
        """Count of each prefill node what it could have sooner from the decode node that holds most
        of the prompt, which is where the request is likely to go. What is pulled in the end is
        decided when that is known."""
        mode, decode, prefill = self._settings.path.pull, pools.decode, pools.prefill
        holder = parts.most_held(candidates.table, decode.first, len(decode.names))
        if holder < 0 or mode is PullMode.NEVER:
            return
        parts.count_pulls(
            candidates.table,
            prefill.first,
            holder,
            self._estimates.links_per_s(pools.names[holder], prefill.names),
            candidates.asked,
            self._estimates.any_handover_s,
            mode is PullMode.ALWAYS,
        )

    def _preference(self, role: Role, view: _View) -> tuple[Preference | None, NodeName | None]:
        """``(longest known prefix, node that is preferred)``.

        A prefix that is shared by chance (a chat template's first words) gives no preference. On a
        decode node only a conversation does, of which most must be there: a persona's prompt
        alone would gather all its requests on one node for nothing.
        """
        question, members, known = view.question, view.members, None
        if question.chain.block_count:
            known = self.homes.prefix(
                question.chain,
                view.trail,
                role=role,
                nodes=members,
                directory=self._directory,
                now_s=question.now_s,
            )
        if known is not None:
            tokens = known.block_count * members[known.node].block_size
            enough = tokens >= self._settings.policy.affinity_tokens_min
            if enough and (role is Role.PREFILL or 2 * tokens >= question.token_count):
                return known, known.node
        if question.caller:
            return known, self.homes.caller(question.caller, role=role, nodes=members)
        return known, None

    def _too_early(self, source: Candidate) -> str:
        """Why a decode node would keep room for this prompt long before it is needed; empty: it
        would not.

        A prefill node computes prompts by what is left of them, so a short one is never early. Long
        ones would otherwise hold every sequence and block of the decode nodes while they wait for
        their turn, and the short ones that the prefill node could compute at once would wait here.
        A full node has enough to do until the next one comes; who came first goes first then,
        however many shorter ones have come since.
        """
        per_s = source.prefill_per_s
        most = self._settings.policy.prefill_full_s * per_s
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
            compute_s=tokens / source.prefill_per_s,
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
        stall_s = target.remainder_tokens / target.prefill_per_s
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


def _no_room(question: Question, choice: Choice, considered: Considered) -> NoRoom:
    candidates, nodes = choice.candidates, choice.candidates.pool.nodes
    if candidates.could_hold():
        reason = f"every decode node is full ({_first_reasons(choice)})"
        return NoRoom(reason=reason, ever=True, considered=considered)
    if any(node.identity in question.avoid for node in nodes):
        return NoRoom(
            reason="the decode nodes that could take it have just failed it",
            ever=True,
            is_own=True,
            considered=considered,
        )
    wanted = question.token_count + question.longest_output(Role.DECODE)
    largest = max(node.token_count_max() for node in nodes)
    if wanted <= largest:
        whys = sorted((node.name, why_not_choices(node, question)) for node in nodes)
        return NoRoom(
            reason=f"n: {question.choice_count} choices are too many for every decode node "
            f"({_listed(whys[:_REASON_COUNT_MAX])})",
            field="n",
            ever=False,
            is_own=True,
            considered=considered,
        )
    return NoRoom(
        reason=f"prompt and max_tokens are {wanted} tokens together, "
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

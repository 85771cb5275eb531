"""One request, all nodes: the decision, with everything that it rests on."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pdd.core.identity import NodeName, Role
from pdd.core.requests import Path, PlannedPull
from pdd.scheduler.estimates import Estimates
from pdd.scheduler.nodes import Node, not_ready_reason
from pdd.scheduler.policy.candidate import Candidate, Question
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
from pdd.scheduler.prefixes import (
    KEY_SIZE_BYTES,
    Homes,
    NoDirectory,
    Preference,
    PrefixDirectory,
)
from pdd.scheduler.settings import PathMode, SchedulerSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Considered:
    """What a decision rests on; a choice is None where none was to make."""

    prefill: Choice | None = None
    decode: Choice | None = None
    path_inputs: PathInputs | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class NoRoom:
    """Nothing can take the request now.

    ``ever``: whether waiting for the present nodes can help. ``is_own``: the obstacle is this
    request's own, not that the nodes are full: no room is kept for it. ``field``: of the request,
    which asks for too much where waiting cannot help.
    """

    reason: str
    ever: bool
    considered: Considered
    is_own: bool = False
    field: str = "max_tokens"


class Policy:
    """The parts that the settings name, and what they remember of earlier decisions."""

    def __init__(
        self, settings: SchedulerSettings, *, estimates: Estimates, directory: PrefixDirectory
    ) -> None:
        policy = settings.policy
        self._settings = settings
        self._estimates = estimates
        self._directory = directory
        self._has_directory = not isinstance(directory, NoDirectory)
        self._prefill = Profile(
            filters=policy.prefill_filters, scorers=policy.prefill_scorers, settings=policy
        )
        self._decode = Profile(
            filters=policy.decode_filters, scorers=policy.decode_scorers, settings=policy
        )
        self.homes = {
            role: Homes(role=role, entry_count_max=policy.affinity_entry_count_max)
            for role in (Role.PREFILL, Role.DECODE)
        }

    def place(self, question: Question, nodes: Mapping[NodeName, Node]) -> Placement | NoRoom:
        """Decide. Changes nothing but the order in which preferences are forgotten."""
        ready = [node for node in nodes.values() if node.takes_work]
        prefills = [node for node in ready if node.role is Role.PREFILL]
        decodes = [node for node in ready if node.role is Role.DECODE]
        key = question.caller or question.keys[-KEY_SIZE_BYTES:]
        key = key or question.request.request_id.encode()

        local_reason = self._only_local(question, prefills)
        prefill_choice = None
        if not local_reason:
            candidates = self._prefill_candidates(question, prefills, nodes)
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
        if not decodes:
            considered = Considered(prefill=prefill_choice)
            reason = not_ready_reason(nodes.values(), Role.DECODE)
            return NoRoom(reason=reason, ever=False, considered=considered)
        candidates = self._decode_candidates(question, decodes, nodes, source)
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
                    question.keys,
                    caller=question.caller,
                    node=candidate.node,
                    now_s=question.now_s,
                )

    def forget_prefix(self, node: Node, keys: bytes) -> None:
        """The node does not hold these blocks, whatever was believed."""
        self.homes[node.role].evict(node.name, keys)

    def _only_local(self, question: Question, prefills: list[Node]) -> str:
        if question.resumes:
            return question.resumes
        if (parameter := looks_back(question.request.sampling)) is not None:
            return f"{parameter} reads earlier output, which must stay on one engine"
        if self._settings.path.mode is PathMode.LOCAL:
            return "scheduler.path.mode is local"
        return "" if prefills else "no prefill node is ready"

    def _prefill_candidates(
        self, question: Question, nodes: list[Node], members: Mapping[NodeName, Node]
    ) -> list[Candidate]:
        known, preferred = self._preference(Role.PREFILL, question, members)
        return [self._candidate(question, node, 1, 1, known, preferred) for node in nodes]

    def _decode_candidates(
        self,
        question: Question,
        nodes: list[Node],
        members: Mapping[NodeName, Node],
        source: Candidate | None,
    ) -> list[Candidate]:
        known, preferred = self._preference(Role.DECODE, question, members)
        granted, longest = question.granted_output_tokens, question.request.sampling.max_tokens
        candidates = [
            self._candidate(question, node, granted, longest, known, preferred) for node in nodes
        ]
        if source is not None:
            for candidate in candidates:
                node = candidate.node
                bytes_per_s = self._estimates.link(source.name, node.name).per_s
                size_bytes = node.blocks_for(candidate.remainder_tokens) * node.block_bytes
                candidate.transfer_s = size_bytes / bytes_per_s
                # Blocks leave as they are computed: what the link carries until this prompt is
                # there holds it up by nothing, however much it is.
                ahead_s = node.inbound_size_bytes / bytes_per_s
                candidate.inbound_s = max(ahead_s - source.completion_s, 0.0)
        return candidates

    def _candidate(
        self,
        question: Question,
        node: Node,
        granted_tokens: int,
        longest_tokens: int,
        known: Preference | None,
        preferred: Preference | None,
    ) -> Candidate:
        tokens = question.token_count
        held = None
        if question.keys and self._has_directory:
            held = self._directory.matched_blocks(node.name, question.keys)
        if held is None:
            held = known.block_count if known is not None and known.node == node.name else 0
        # The last position is always computed: its logits give the next token.
        cached = min(held * node.block_size, tokens - 1)
        remainder = tokens - cached
        per_s = self._estimates.prefill(node.name).per_s
        backlog = node.backlog_tokens(tokens_per_s=per_s, now_s=question.now_s)
        unpromised, sequence_count = node.unleased_block_count(), node.sequence_count
        load = max(1.0 - unpromised / node.usable_block_count, sequence_count / node.max_num_seqs)
        if node.role is Role.PREFILL:
            load = max(load, backlog / per_s / self._settings.policy.prefill_full_s)
        is_preferred = preferred is not None and preferred.node == node.name
        return Candidate(
            name=node.name,
            node=node,
            unpromised_blocks=unpromised,
            sequence_count=sequence_count,
            cached_tokens=cached,
            remainder_tokens=remainder,
            completion_s=(backlog + remainder) / per_s,
            blocks=question.blocks_on(node, output_token_count=granted_tokens),
            claim=question.blocks_on(node, output_token_count=longest_tokens),
            token_count_max=tokens + longest_tokens,
            holds_choices=question.choice_count == 1
            or question.fits_on(node, output_token_count=longest_tokens),
            load=load,
            preferred_blocks=preferred.block_count if preferred and is_preferred else -1,
        )

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
        if question.keys:
            known = homes.prefix(
                question.keys, nodes=members, directory=self._directory, now_s=question.now_s
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


def _no_room(question: Question, choice: Choice, considered: Considered) -> NoRoom:
    able = [c for c in choice.candidates if c.node.identity not in question.avoid]
    tokens = question.token_count + question.request.sampling.max_tokens
    largest = max((candidate.node.token_count_max() for candidate in able), default=0)
    holders = [c for c in able if c.token_count_max <= c.node.token_count_max() and c.holds_choices]
    if not holders:
        if len(able) < len(choice.candidates):
            return NoRoom(
                reason="the decode nodes that could take it have just failed it",
                ever=True,
                is_own=True,
                considered=considered,
            )
        if tokens <= largest:
            whys = {c.name: ("", why_not_choices(c.node, question)) for c in able}
            return NoRoom(
                reason=f"n: {question.choice_count} choices are too many for every decode node "
                f"({_first_reasons(whys)})",
                field="n",
                ever=False,
                is_own=True,
                considered=considered,
            )
        return NoRoom(
            reason=f"prompt and max_tokens are {tokens} tokens together, "
            f"the largest decode node can hold {largest}",
            ever=False,
            is_own=True,
            considered=considered,
        )
    reason = f"every decode node is full ({_first_reasons(choice.dropped)})"
    return NoRoom(reason=reason, ever=True, considered=considered)


def _first_reasons(dropped: Mapping[NodeName, tuple[str, str]]) -> str:
    told: Iterable[str] = (f"{node}: {why}" for node, (_, why) in sorted(dropped.items())[:3])
    return "; ".join(told)

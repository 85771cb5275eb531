"""Who may come in, who waits, and who goes next."""

from dataclasses import dataclass
from math import inf

from pdd.core.errors import AdmissionRejected, InvalidRequest, NodeUnavailable, PddError
from pdd.core.identity import Role
from pdd.core.requests import GenerateRequest
from pdd.scheduler import waiting
from pdd.scheduler.attempts import start
from pdd.scheduler.decision_record import Decision, Outcome
from pdd.scheduler.effects import Effect, Fail
from pdd.scheduler.events import RequestArrived
from pdd.scheduler.policy.candidate import Question
from pdd.scheduler.policy.decider import looks_back
from pdd.scheduler.policy.place import Considered, NoRoom, Placement
from pdd.scheduler.prefixes import caller_name
from pdd.scheduler.requests import Request
from pdd.scheduler.roles import ends
from pdd.scheduler.state import State

_NOTE_INTERVAL_S = 1.0
_EARLY_PAUSE_S = 0.05
"""For whom it is too early is not looked at again before; nor counted among those looked at."""
_RETRY_AFTER_S_MIN = 1.0
_RETRY_AFTER_S_MAX = 60.0
_RETRY_AFTER_S_UNKNOWN = 5.0
_RETRY_AFTER_S_NEVER = 3600.0
"""Of what no waiting brings; an operator may."""


def arrived(state: State, event: RequestArrived, now_s: float) -> list[Effect]:
    """Queue a new request, or refuse it at once."""
    state.arrival_count += 1
    tenant = event.request.tenant
    request = Request(
        request=event.request,
        arrived_s=now_s,
        arrival_index=state.arrival_count,
        keys=event.keys,
        caller=caller_name(tenant=tenant, key=event.caller_key),
    )
    assert request.id not in state.requests, f"request id {request.id} is in use"
    return admit(state, request, now_s)


def admit(state: State, request: Request, now_s: float) -> list[Effect]:
    """Queue a request of which nothing has run, or refuse it at once."""
    expected_tokens = 0
    if state.quotas:
        expected_tokens = _expected_tokens(state, request)
        if (above := _above_quota(state, request, expected_tokens, now_s)) is not None:
            return _refuse(state, request, now_s, above)
    if len(state.queue) >= state.settings.queue_request_count_max:
        state.counts.rejected_full += 1
        return _refuse(
            state,
            request,
            now_s,
            AdmissionRejected(
                f"{len(state.queue)} requests are waiting, the limit is "
                f"{state.settings.queue_request_count_max}: try again later",
                retry_after_s=_retry_after_s(state, now_s),
            ),
        )
    if not state.leads:
        state.add(request)
        _count(state, request, expected_tokens)
        state.enqueue(request)
        return []
    question = ask(state, request, now_s)
    verdict = state.policy.place(question, state.nodes)
    if isinstance(verdict, NoRoom):
        if not verdict.ever:
            error = _refusal(state, request.request, verdict)
            return _refuse(state, request, now_s, error, verdict)
        if (late := _predicted_too_late(state, request, now_s)) is not None:
            return _refuse(state, request, now_s, late, verdict)
        if verdict.is_early:
            request.comes_early(now_s)
        elif not verdict.is_own:
            request.finds_no_room(now_s)
    state.add(request)
    _count(state, request, expected_tokens)
    if isinstance(verdict, Placement) and len(state.queue) < _unseen_from(state):
        # Whoever waits has just been looked at and could not use the room that this one can.
        return _place(state, request, question, verdict)
    state.enqueue(request)
    if isinstance(verdict, NoRoom):
        _note_waiting(state, request, now_s, verdict)
    return []


def _expected_tokens(state: State, request: Request) -> int:
    """Of prompt and output, as far as can be said now."""
    of_each = state.estimates.expected_output_tokens(request.request.sampling.max_tokens)
    return len(request.request.prompt_token_ids) + of_each * request.request.choice_count


def _count(state: State, request: Request, expected_tokens: int) -> None:
    """It is in: what it is expected to use is used, where its tenant's tokens are counted."""
    bucket = state.quotas.bucket(request.request.tenant)
    if bucket is not None:
        bucket.take(expected_tokens, state.now_s)
        request.counted_tokens = expected_tokens


def _above_quota(
    state: State, request: Request, expected_tokens: int, now_s: float
) -> AdmissionRejected | None:
    """Only who leads knows all that a tenant has."""
    if not state.leads:
        return None
    tenant = request.request.tenant
    limit, count = state.quotas.of(tenant).requests_max, state.tenants[tenant]
    if limit is not None and count >= limit:
        state.counts.rejected_quota += 1
        advice = "try again when one has ended" if limit else "nothing of it is taken until raised"
        return AdmissionRejected(
            f"tenant {tenant!r} has {count} request{'' if count == 1 else 's'}, its quota is "
            f"{limit} at a time: {advice}",
            retry_after_s=_retry_after_s(state, now_s),
        )
    bucket = state.quotas.bucket(tenant)
    if bucket is None or (wait_s := bucket.wait_s(expected_tokens, now_s)) <= 0:
        return None
    state.counts.rejected_token_quota += 1
    left = f"{max(bucket.left(now_s), 0.0):.0f} are left"
    advice = "nothing of it is taken until raised"
    if wait_s < inf:
        advice = f"{left}, try again in {wait_s:.1f} s"
    return AdmissionRejected(
        f"tenant {tenant!r} would use about {expected_tokens} tokens with this request, its quota "
        f"is {bucket.per_minute} a minute: {advice}",
        retry_after_s=min(wait_s, _RETRY_AFTER_S_NEVER),
    )


def refuse_hopeless(state: State, now_s: float) -> list[Effect]:
    """Those that came while nobody led and that no node could ever hold."""
    effects: list[Effect] = []
    for request_id in list(state.queue):
        request = state.requests[request_id]
        if request.generation > 0:
            continue
        verdict = state.policy.place(ask(state, request, now_s), state.nodes)
        if isinstance(verdict, NoRoom) and not verdict.ever and verdict.is_own:
            state.end(request)
            error = _refusal(state, request.request, verdict)
            effects += _refuse(state, request, now_s, error, verdict)
    return effects


def ask(state: State, request: Request, now_s: float) -> Question:
    """What the policy is to decide for a request now."""
    max_tokens = request.request.sampling.max_tokens
    likely = state.estimates.likely_output_tokens_max(max_tokens)
    is_whole = request.is_whole or looks_back(request.request.sampling) is not None
    request.is_whole = is_whole
    is_long = is_whole and likely < max_tokens
    granted = max_tokens if is_whole else min(max(likely, request.granted_tokens), max_tokens)
    return Question(
        request=request.request,
        granted_output_tokens=granted,
        now_s=now_s,
        choice_count=len(request.open_choices),
        chain=request.chain,
        caller=request.caller,
        is_long=is_long,
        resumes=request.interruption if request.first_token_s is not None else "",
        avoid=[node for node, until_s in request.rests_until_s.items() if until_s > now_s],
        held=waiting.held_for_others(state, request.id, is_long=is_long),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Refused:
    """A shape of request that has just found every node full."""

    tokens: int
    growth_tokens: int
    choice_count: int
    is_long: bool
    is_local: bool

    def covers(self, other: "_Refused") -> bool:
        """Whether the other one needs no less of anything, so that it would find no room either."""
        return (
            self.tokens <= other.tokens
            and self.growth_tokens <= other.growth_tokens
            and self.choice_count <= other.choice_count
            and (self.is_long, self.is_local) == (other.is_long, other.is_local)
        )


def place_waiting(state: State, now_s: float) -> list[Effect]:
    """Give places in the order of ``waiting``, until nobody that is looked at finds one."""
    effects: list[Effect] = []
    refused: list[_Refused] = []
    is_first = True
    examined_count = 0
    for request in waiting.in_turn(state, now_s):
        if request.early_s is not None and now_s - request.early_s < _EARLY_PAUSE_S:
            continue
        if examined_count >= _unseen_from(state):
            break
        examined_count += 1
        question = ask(state, request, now_s)
        shape = _shape(question)
        keeps = state.kept_for is not None and state.kept_for[0] == request.id
        if not question.avoid and not keeps and any(one.covers(shape) for one in refused):
            request.finds_no_room(now_s)
            continue
        verdict = state.policy.place(question, state.nodes)
        if isinstance(verdict, Placement):
            state.queue.remove(request.id)
            effects += _place(state, request, question, verdict)
            continue
        _note_waiting(state, request, now_s, verdict)
        request.early_s = None
        if verdict.is_early:
            request.comes_early(now_s)
        if verdict.is_own:
            if keeps:
                state.kept_for = None
            continue
        request.finds_no_room(now_s)
        if not question.avoid and request.request.sampling.max_tokens > 1:
            refused.append(shape)
        if is_first:
            waiting.keep_room(state, request, is_long=question.is_long, now_s=now_s)
            is_first = False
    return effects


def _unseen_from(state: State) -> int:
    return state.settings.queue.examined_count_max


def _place(
    state: State, request: Request, question: Question, placement: Placement
) -> list[Effect]:
    _judge_rejections(state, request, question.now_s)
    _keep(state, request, question.now_s, placement, Outcome.PLACED)
    if state.kept_for is not None and state.kept_for[0] == request.id:
        state.kept_for = None
    return start(state, request, question, placement)


def _note_waiting(state: State, request: Request, now_s: float, verdict: NoRoom) -> None:
    if request.noted_s is None or now_s - request.noted_s >= _NOTE_INTERVAL_S:
        request.noted_s = now_s
        _keep(state, request, now_s, verdict, Outcome.WAITS)


def _shape(question: Question) -> _Refused:
    tokens = question.token_count + question.granted_output_tokens
    return _Refused(
        tokens=tokens,
        growth_tokens=question.request.sampling.max_tokens - question.granted_output_tokens,
        choice_count=question.choice_count,
        is_long=question.is_long,
        is_local=bool(question.resumes) or looks_back(question.request.sampling) is not None,
    )


def _refuse(
    state: State, request: Request, now_s: float, error: PddError, verdict: NoRoom | None = None
) -> list[Effect]:
    if isinstance(error, AdmissionRejected):
        ends.failed(state, request, now_s)
    _keep(state, request, now_s, verdict, Outcome.REFUSED, reason=str(error))
    return [Fail(request_id=request.id, error=error)]


def _keep(
    state: State,
    request: Request,
    now_s: float,
    verdict: Placement | NoRoom | None,
    outcome: Outcome,
    *,
    reason: str = "",
) -> None:
    state.decisions.keep(
        Decision(
            request_id=request.id,
            generation=request.generation,
            decided_s=now_s,
            outcome=outcome,
            path=verdict.path if isinstance(verdict, Placement) else None,
            reason=reason or (verdict.reason if verdict is not None else ""),
            considered=verdict.considered if verdict is not None else Considered(),
            tenant=request.request.tenant,
            waited_s=max(now_s - request.arrived_s, 0.0),
        )
    )


def _refusal(state: State, request: GenerateRequest, verdict: NoRoom) -> PddError:
    """The client's fault only if no decode node that is known could ever hold the request."""
    decodes = [node for node in state.nodes.values() if node.role is Role.DECODE]
    absent = sorted(
        node.name
        for node in decodes
        if not node.takes_work
        and node.can_hold(
            prompt_token_count=len(request.prompt_token_ids),
            output_token_count=request.sampling.max_tokens,
            choice_count=request.choice_count,
        )
    )
    if not any(node.takes_work for node in decodes):
        what = "try again later" if absent else "start one, or try again later"
        return NodeUnavailable(f"{verdict.reason}: {what}")
    if absent:
        return NodeUnavailable(
            f"{verdict.reason}; {absent[0]} could hold it and is not ready: try again later"
        )
    code = "context_length_exceeded" if verdict.field == "max_tokens" else "invalid_value"
    return InvalidRequest(verdict.reason, field=verdict.field, code=code)


def _predicted_too_late(state: State, request: Request, now_s: float) -> AdmissionRejected | None:
    """A request that must wait so long that its deadline would pass is better told so now.

    Only by measurements, never by start values: without enough of them nobody is refused.
    """
    pace_s = _seconds_per_completion(state, now_s)
    if pace_s is None:
        return None
    wait_s = (len(state.queue) + 1) * pace_s
    runs_s = _predicted_run_s(state, request)
    deadline_s = request.request.deadline_s
    if runs_s >= deadline_s or wait_s + runs_s <= deadline_s:
        return None  # waiting is not what makes it late
    state.counts.rejected_deadline += 1
    state.rejections.append((request.arrival_index, request.deadline_s - runs_s))
    return AdmissionRejected(
        f"{len(state.queue)} requests are waiting, it would start in about {wait_s:.1f} s and take "
        f"{runs_s:.1f} s, its deadline is {deadline_s:g} s: try again later",
        retry_after_s=_retry_after_s(state, now_s),
    )


def _judge_rejections(state: State, placed: Request, now_s: float) -> None:
    """Whoever was refused earlier than this one came would have been placed by now."""
    while state.rejections and state.rejections[0][0] < placed.arrival_index:
        _, latest_start_s = state.rejections.popleft()
        if now_s <= latest_start_s:
            state.counts.false_rejects += 1


def _predicted_run_s(state: State, request: Request) -> float:
    """From placement to end on a typical decode node, where that was measured; else 0."""
    max_tokens = request.request.sampling.max_tokens
    times = []
    for node in state.nodes.values():
        rate = state.estimates.decode(node.name)
        enough = rate.sample_count >= state.settings.estimates.sample_count_min
        if node.role is Role.DECODE and node.takes_work and enough:
            times.append(state.estimates.expected_output_tokens(max_tokens) / rate.per_s)
    return min(times, default=0.0)


def _seconds_per_completion(state: State, now_s: float) -> float | None:
    """Of the last minute; None where too few have ended to say."""
    recent = [t for t in state.completions_s if now_s - t <= 60.0]
    if len(recent) < state.settings.estimates.sample_count_min or now_s <= recent[0]:
        return None
    return (now_s - recent[0]) / len(recent)


def _retry_after_s(state: State, now_s: float) -> float:
    """How long the present queue takes at the rate of the latest completions."""
    recent = [t for t in state.completions_s if now_s - t <= 60.0]
    if len(recent) < 2 or now_s <= recent[0]:
        return _RETRY_AFTER_S_UNKNOWN
    pace_s = (now_s - recent[0]) / len(recent)
    return min(max(len(state.queue) * pace_s, _RETRY_AFTER_S_MIN), _RETRY_AFTER_S_MAX)

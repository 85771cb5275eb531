"""What schedulers of a group say to each other: events of their cores, to and from messages. Pure.

A message that names what this release does not know is a ValueError: its stream ends, and the
scheduler that said it is asked to be upgraded by the log.
"""

from collections.abc import Iterable
from dataclasses import replace

from pdd.cell.claims import HeardClaim
from pdd.control.convert import (
    finish_from_proto,
    finish_to_proto,
    sampling_from_submit,
    sampling_to_proto,
)
from pdd.core.errors import (
    AdmissionRejected,
    DeadlineExceeded,
    InvalidRequest,
    NodeUnavailable,
    PddError,
    RequestFailed,
)
from pdd.core.identity import NodeName, RequestId
from pdd.core.requests import GenerateRequest, Path, Plan, PlannedPull
from pdd.rpc.v1 import cluster_pb2, decisions_pb2
from pdd.scheduler.events import (
    DecodeReady,
    Event,
    FailureKind,
    FirstTokenSampled,
    JobFailed,
    RequestCancelled,
    SequenceFinished,
    SequenceGrew,
    SequenceStarted,
)
from pdd.scheduler.group_events import (
    AttemptEnded,
    PlaceGiven,
    PlaceTaken,
    RequestRefused,
    RequestTold,
)
from pdd.scheduler.requests import Phase, Request

GROUP_VERSION = 1
"""Of these messages. History: 1, first. A leader takes its own and the one before."""

_ERRORS: dict[str, type[PddError]] = {
    "invalid": InvalidRequest,
    "rejected": AdmissionRejected,
    "unavailable": NodeUnavailable,
    "deadline": DeadlineExceeded,
    "failed": RequestFailed,
}


def told_to_proto(
    request: Request, *, output_token_count: int, now_s: float
) -> decisions_pb2.HolderItem:
    """A request as it stands at its holder."""
    wanted = request.request
    sampling = wanted.sampling
    message = decisions_pb2.ToldRequest(
        parameters=cluster_pb2.Submit(
            request_id=wanted.request_id,
            generation=request.generation,
            sampling=sampling_to_proto(sampling),
            cache_salt=wanted.cache_salt,
            priority=wanted.priority,
            deadline_s=wanted.deadline_s,
            grammar_kind=sampling.grammar.kind if sampling.grammar else "",
            # Only whether there is one matters to a leader, and a schema may be large.
            allowed_token_ids=sampling.allowed_token_ids[:1],
            resume_key=wanted.resume_key,
        ),
        prompt_token_count=len(wanted.prompt_token_ids),
        tenant=wanted.tenant,
        affinity_key=wanted.affinity_key,
        keys=request.keys,
        age_s=max(now_s - request.arrived_s, 0.0),
        phase=request.phase.value,
        granted_token_count=request.granted_tokens,
        is_whole=request.is_whole,
        interruption=request.interruption,
        output_token_count=output_token_count,
        choice_count=wanted.choice_count,
        open_choices=request.open_choices,
        first_token_choices=request.first_tokens,
    )
    if request.phase is not Phase.QUEUED and request.plan is not None:
        plan = replace(request.plan, prefill_node=request.prefill, decode_node=request.decode)
        message.plan.CopyFrom(plan_to_proto(plan))
    return decisions_pb2.HolderItem(request=message)


def all_told_to_proto(claims: Iterable[HeardClaim]) -> decisions_pb2.HolderItem:
    """The end of what a scheduler tells a new leader, with the claims it has heard of."""
    heard = [
        decisions_pb2.HeardClaim(resume_key=one.key, scheduler=one.holder, age_s=one.age_s)
        for one in claims
    ]
    return decisions_pb2.HolderItem(all_told=decisions_pb2.AllTold(claims=heard))


def heard_claims_from_proto(message: decisions_pb2.AllTold) -> list[HeardClaim]:
    """Empty from a release that knows none."""
    return [HeardClaim(one.resume_key, one.scheduler, one.age_s) for one in message.claims]


def told_from_proto(message: decisions_pb2.ToldRequest, *, holder: str) -> RequestTold:
    """Raises ValueError for an unknown phase or path."""
    parameters = message.parameters
    return RequestTold(
        request=GenerateRequest(
            request_id=RequestId(parameters.request_id),
            prompt_token_ids=(0,) * message.prompt_token_count,
            sampling=sampling_from_submit(parameters),
            tenant=message.tenant,
            cache_salt=parameters.cache_salt,
            affinity_key=message.affinity_key,
            priority=parameters.priority,
            deadline_s=parameters.deadline_s,
            choice_count=message.choice_count,
            resume_key=parameters.resume_key,
        ),
        holder=holder,
        keys=message.keys,
        caller_key=message.affinity_key,
        age_s=message.age_s,
        generation=parameters.generation,
        phase=Phase(message.phase),
        plan=plan_from_proto(message.plan) if message.HasField("plan") else None,
        granted_tokens=message.granted_token_count,
        is_whole=message.is_whole,
        interruption=message.interruption,
        output_token_count=message.output_token_count,
        open_choices=tuple(message.open_choices),
        first_token_choices=tuple(message.first_token_choices),
    )


def plan_to_proto(plan: Plan) -> decisions_pb2.PlacePlan:
    """See ``Plan``."""
    return decisions_pb2.PlacePlan(
        path=plan.path.value,
        prefill=plan.prefill_node or "",
        decode=plan.decode_node or "",
        reason=plan.reason,
        pull_token_count=plan.pull.token_count if plan.pull else 0,
        pull_wait_s=plan.pull.wait_s if plan.pull else 0.0,
    )


def plan_from_proto(message: decisions_pb2.PlacePlan) -> Plan:
    """See ``Plan``. Raises ValueError for an unknown path, or no node at all."""
    if not message.prefill and not message.decode:
        raise ValueError("a plan without nodes")
    pull = None
    if message.pull_token_count:
        pull = PlannedPull(token_count=message.pull_token_count, wait_s=message.pull_wait_s)
    return Plan(
        path=Path(message.path),
        prefill_node=NodeName(message.prefill) if message.prefill else None,
        decode_node=NodeName(message.decode) if message.decode else None,
        reason=message.reason,
        pull=pull,
    )


def news_to_proto(event: Event | AttemptEnded) -> decisions_pb2.HolderItem | None:
    """What the leader has to hear; None for an event that is not about a request it knows."""
    pb = decisions_pb2
    match event:
        case RequestCancelled():
            over = pb.NewsOver(output_token_count=event.output_token_count)
            news = pb.RequestNews(over=over)
        case FirstTokenSampled():
            finish = finish_to_proto(event.finish)
            news = pb.RequestNews(
                generation=event.generation,
                node=event.node,
                choice_index=event.choice_index,
                first_token=pb.NewsFirstToken(finish=finish),
            )
        case DecodeReady():
            ready = pb.NewsReady(
                transferred_bytes=event.transferred_bytes, transfer_s=event.transfer_s
            )
            news = pb.RequestNews(generation=event.generation, ready=ready)
        case SequenceStarted():
            news = pb.RequestNews(generation=event.generation, started=pb.NewsStarted())
        case SequenceGrew():
            grew = pb.NewsGrew(output_token_count=event.output_token_count)
            news = pb.RequestNews(generation=event.generation, grew=grew)
        case SequenceFinished():
            finished = pb.NewsFinished(
                finish=finish_to_proto(event.finish), output_token_count=event.output_token_count
            )
            news = pb.RequestNews(
                generation=event.generation,
                node=event.node,
                choice_index=event.choice_index,
                finished=finished,
            )
        case JobFailed():
            failed = cluster_pb2.NodeRequestFailed(kind=event.kind.value, message=event.message)
            news = pb.RequestNews(generation=event.generation, node=event.node, failed=failed)
        case AttemptEnded():
            ended = pb.NewsEnded(why=event.why, has_output=event.has_output)
            news = pb.RequestNews(generation=event.generation, ended=ended)
        case _:
            return None
    news.request_id = event.request_id
    return pb.HolderItem(news=news)


def news_from_proto(news: decisions_pb2.RequestNews) -> Event:
    """Raises ValueError for what this release does not know."""
    request_id, generation = RequestId(news.request_id), news.generation
    node = NodeName(news.node)
    match news.WhichOneof("news"):
        case "over":
            is_known = news.over.HasField("output_token_count")
            return RequestCancelled(
                request_id=request_id,
                output_token_count=news.over.output_token_count if is_known else None,
            )
        case "first_token":
            return FirstTokenSampled(
                request_id=request_id,
                generation=generation,
                node=node,
                token_id=0,  # its holder hands it over
                finish=finish_from_proto(news.first_token.finish),
                choice_index=news.choice_index,
            )
        case "ready":
            return DecodeReady(
                request_id=request_id,
                generation=generation,
                transferred_bytes=news.ready.transferred_bytes,
                transfer_s=news.ready.transfer_s,
            )
        case "started":
            return SequenceStarted(request_id=request_id, generation=generation)
        case "grew":
            return SequenceGrew(
                request_id=request_id,
                generation=generation,
                output_token_count=news.grew.output_token_count,
            )
        case "finished":
            return SequenceFinished(
                request_id=request_id,
                generation=generation,
                node=node,
                finish=finish_from_proto(news.finished.finish),
                output_token_count=news.finished.output_token_count,
                choice_index=news.choice_index,
            )
        case "failed":
            return JobFailed(
                request_id=request_id,
                generation=generation,
                node=node,
                message=news.failed.message,
                kind=FailureKind(news.failed.kind),
            )
        case "ended":
            return AttemptEnded(
                request_id=request_id,
                generation=generation,
                why=news.ended.why,
                has_output=news.ended.has_output,
            )
        case other:
            raise ValueError(f"unknown news {other!r}")


def place_to_proto(request: Request) -> decisions_pb2.LeaderItem:
    """Where the request's attempt runs, by the leader's core."""
    assert request.plan is not None, f"{request.id} has no place"
    return decisions_pb2.LeaderItem(
        request_id=request.id,
        generation=request.generation,
        place=decisions_pb2.PlaceGiven(
            plan=plan_to_proto(request.plan),
            granted_token_count=request.granted_tokens,
            is_whole=request.is_whole,
            interruption=request.interruption,
        ),
    )


def taken_to_proto(request: Request) -> decisions_pb2.LeaderItem:
    """The request waits at the leader."""
    return decisions_pb2.LeaderItem(
        request_id=request.id,
        generation=request.generation,
        taken=decisions_pb2.PlaceTaken(
            interruption=request.interruption, is_whole=request.is_whole
        ),
    )


def refused_to_proto(request_id: RequestId, error: PddError) -> decisions_pb2.LeaderItem:
    """The request is over at the leader."""
    kind = next((kind for kind, made in _ERRORS.items() if isinstance(error, made)), "failed")
    refused = decisions_pb2.PlaceRefused(kind=kind, message=str(error))
    if isinstance(error, InvalidRequest):
        refused.field, refused.code = error.field or "", error.code
    if isinstance(error, AdmissionRejected):
        refused.retry_after_s = error.retry_after_s
    return decisions_pb2.LeaderItem(request_id=request_id, refused=refused)


def decision_from_proto(
    item: decisions_pb2.LeaderItem,
) -> PlaceGiven | PlaceTaken | RequestRefused:
    """Raises ValueError for what this release does not know."""
    request_id = RequestId(item.request_id)
    match item.WhichOneof("item"):
        case "place":
            return PlaceGiven(
                request_id=request_id,
                generation=item.generation,
                plan=plan_from_proto(item.place.plan),
                granted_tokens=item.place.granted_token_count,
                is_whole=item.place.is_whole,
                interruption=item.place.interruption,
            )
        case "taken":
            return PlaceTaken(
                request_id=request_id,
                generation=item.generation,
                interruption=item.taken.interruption,
                is_whole=item.taken.is_whole,
            )
        case "refused":
            return RequestRefused(request_id=request_id, error=refused_error(item.refused))
        case other:
            raise ValueError(f"unknown decision {other!r}")


def refused_error(refused: decisions_pb2.PlaceRefused) -> PddError:
    """Why it is over."""
    match refused.kind:
        case "invalid":
            return InvalidRequest(refused.message, field=refused.field or None, code=refused.code)
        case "rejected":
            return AdmissionRejected(refused.message, retry_after_s=refused.retry_after_s)
        case kind:
            return _ERRORS.get(kind, RequestFailed)(refused.message)

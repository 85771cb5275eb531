"""The half that lives beside vLLM's scheduler, in ``VLLM::EngineCore``.

It turns what vLLM's scheduler did in a step into block lists for the worker halves, and appends
the first token to a sequence before vLLM promotes it. The one thing it decides is when long prompts
are computed (``long_turns``).

Invariants:

* A prefill job's blocks stay allocated from its end until every worker half has reported that
  nothing reads them any more (``request_finished`` answers "delay").
* A decode job's blocks are given to a transfer once, those of a prefix that a prefill job pulls
  likewise. After a failed load, or after a preemption,
  vLLM asks again how much can be loaded and hears zero: it recomputes, and ``progress`` says so.
* vLLM takes the blocks of a request that has ended back at *one* word, "sent" or "received", and
  dies of a second one. A prefill job that was cancelled while it pulled owes both; its "received"
  is kept from vLLM (``not_owed``), and the worker halves say "sent" after it.
* ``progress`` is counted from what the scheduler really schedules, so a node that silently
  recomputes a transferred prompt cannot hide it.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pdd.connector.block_counter import BlockCounter
from pdd.connector.metadata import (
    PromptProgress,
    SourceBlocks,
    StepMetadata,
    TargetBlocks,
    WorkerMetadata,
)
from pdd.connector.params import JobKind, JobParams
from pdd.connector.step_limiter import StepLimiter
from pdd.core.blocks import BlockState

if TYPE_CHECKING:
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.request import Request


@dataclass(slots=True)
class _Job:
    params: JobParams
    prompt_token_count: int
    sent_block_count: int = 0
    source_open: bool = False
    source_aborted: bool = False
    target_opened: bool = False
    waits_for_blocks: bool = False
    cached_token_count: int | None = None
    prompt_done: bool = False


class SchedulerSide:
    """One per engine. ``block_size``: tokens in one KV block of the only KV cache group."""

    def __init__(self, *, block_size: int, counter: BlockCounter, steps: StepLimiter) -> None:
        self._block_size = block_size
        self._counter = counter
        self._steps = steps
        self._turns = steps.turns
        self._jobs: dict[str, _Job] = {}
        self._requests: dict[str, Request] = {}
        self._request_ids: dict[str, str] = {}  # by key, as long as blocks may be held
        self._kept_keys: dict[str, str] = {}  # of jobs that have ended, by request id
        self._owed_as_sent: set[str] = set()  # requests that have ended
        self._asked_keys: list[str] = []
        self._step = StepMetadata()

    def on_new_request(self, request: "Request") -> None:
        """A request has reached the scheduler."""
        self._counter.began(request.request_id)
        params = JobParams.from_extra_args(request.kv_transfer_params)
        if params is not None:
            job = _Job(params=params, prompt_token_count=request.num_prompt_tokens)
            self._jobs[request.request_id] = job
            self._requests[request.request_id] = request
            self._request_ids[params.key] = request.request_id
            if params.kind is JobKind.PREFILL:
                # Known from now on, so that a ticket which comes while the prompt waits its turn
                # is kept until the request's own deadline.
                self._append(self._step.ready_blocks, request.request_id, job, [], 0)
                self._turns.offered(
                    request.request_id, job.prompt_token_count, priority=request.priority
                )
                self._steps.limit_next(self._requests)

    def tokens_to_load(
        self, request: "Request", cached_token_count: int
    ) -> tuple[int | None, bool]:
        """How many prompt tokens beyond the local prefix hit a peer will provide. None: it is not
        the request's turn; vLLM leaves it where it is and asks again in the next step."""
        job = self._jobs.get(request.request_id)
        if job is None:
            return 0, False
        missing = 0
        if not job.target_opened:
            missing = max(self._load_end(job) - cached_token_count, 0)
        if job.params.kind is JobKind.PREFILL:
            remaining = job.prompt_token_count - cached_token_count - missing
            if not self._turns.may_begin(request.request_id, remaining):
                return None, False
        return missing, missing > 0

    def _load_end(self, job: _Job) -> int:
        """How many of the prompt's first tokens a peer provides, if they are not cached here. The
        last token is always computed here, but for a decode job."""
        if job.params.kind is JobKind.DECODE:
            return job.prompt_token_count
        if job.params.pull is None:
            return 0
        most = min(job.params.pull.token_count, job.prompt_token_count - 1)
        return most // self._block_size * self._block_size

    def blocks_allocated(
        self, request: "Request", blocks: "KVCacheBlocks", loaded_token_count: int
    ) -> None:
        """vLLM has reserved blocks. With something to load, this opens the transfer's target."""
        job = self._jobs.get(request.request_id)
        if job is None or loaded_token_count == 0:
            return
        assert not job.target_opened, "vLLM asked twice to load one request"
        pull = job.params.pull
        source = job.params.source if pull is None else pull.source
        assert source is not None
        (block_ids,) = blocks.get_block_ids()
        load_end = self._load_end(job)
        cached = load_end - loaded_token_count
        assert cached % self._block_size == 0, "a local prefix hit ends within a block"
        first_index = cached // self._block_size
        end_index = -(-load_end // self._block_size)
        job.target_opened = True
        job.waits_for_blocks = True
        job.cached_token_count = cached
        awaited = tuple(block_ids[first_index:end_index])
        self._counter.waits_for(request.request_id, awaited)
        self._turns.loading(request.request_id)
        self._step.opened_targets.append(
            TargetBlocks(
                key=job.params.key,
                request_id=request.request_id,
                source=source,
                first_index=first_index,
                block_ids=awaited,
                deadline_s=job.params.deadline_s if pull is None else pull.wait_s,
                is_pull=pull is not None,
                lent_block_ids=tuple(block_ids[:first_index]) if job.params.lends else None,
            )
        )

    def step_metadata(self, output: "SchedulerOutput") -> StepMetadata:
        """Everything that the worker halves must know for this step. Resets what was gathered."""
        # First, since vLLM may resume a sequence in the step in which it was preempted.
        for req_id in sorted(output.preempted_req_ids or ()):
            self._preempted(req_id)
        for new in output.scheduled_new_reqs:
            self._scheduled(
                new.req_id, new.num_computed_tokens, output.num_scheduled_tokens[new.req_id], output
            )
        cached = output.scheduled_cached_reqs
        for req_id, computed in zip(cached.req_ids, cached.num_computed_tokens, strict=True):
            self._scheduled(req_id, computed, output.num_scheduled_tokens[req_id], output)
        step, self._step = self._step, StepMetadata()
        for key in self._asked_keys:
            request_id = self._request_ids.get(key)
            step.tables[key] = [] if request_id is None else self._counter.table_of(request_id)
        self._asked_keys.clear()
        step.is_empty = output.total_num_scheduled_tokens == 0
        step.census = self._counter.look(is_idle=step.is_empty)
        self._steps.step_scheduled()
        self._steps.limit_next(self._requests)
        step.held_prompt_count = self._turns.held_count
        return step

    def _scheduled(
        self, req_id: str, computed: int, scheduled: int, output: "SchedulerOutput"
    ) -> None:
        job = self._jobs.get(req_id)
        if job is None or job.prompt_done:
            return
        if job.cached_token_count is None:
            job.cached_token_count = min(computed, job.prompt_token_count)
        end = min(computed + scheduled, job.prompt_token_count)
        job.prompt_done = computed + scheduled >= job.prompt_token_count
        self._turns.computed(req_id, job.prompt_token_count - end)
        self._step.progress.append(
            PromptProgress(
                key=job.params.key,
                start=min(computed, end),
                end=end,
                prompt_token_count=job.prompt_token_count,
                cached_token_count=job.cached_token_count,
            )
        )
        if job.params.kind is JobKind.PREFILL and not job.source_aborted:
            self._source_progress(req_id, job, computed, end, output)

    def _source_progress(
        self, req_id: str, job: _Job, computed: int, end: int, output: "SchedulerOutput"
    ) -> None:
        assert output.kv_connector_block_state is not None
        tables = output.kv_connector_block_state.get_block_ids(req_id)
        assert tables is not None, "a scheduled request has no block table"
        (table,) = tables
        if job.sent_block_count == 0:
            self._append(self._step.ready_blocks, req_id, job, table, computed // self._block_size)
        if job.prompt_done:
            count = -(-job.prompt_token_count // self._block_size)
        else:
            count = end // self._block_size
        self._append(self._step.computed_blocks, req_id, job, table, count)

    def _append(
        self, to: list[SourceBlocks], req_id: str, job: _Job, table: list[int], end_index: int
    ) -> None:
        """Hand over blocks up to ``end_index``; whole blocks only, for vLLM packs them inside."""
        last = job.prompt_done and end_index * self._block_size >= job.prompt_token_count
        if end_index == job.sent_block_count and job.source_open:
            return
        to.append(
            SourceBlocks(
                key=job.params.key,
                request_id=req_id,
                first_index=job.sent_block_count,
                block_ids=tuple(table[job.sent_block_count : end_index]),
                last=last,
                opens=not job.source_open,
                deadline_s=job.params.deadline_s,
            )
        )
        job.source_open = True
        job.sent_block_count = end_index

    def _preempted(self, req_id: str) -> None:
        """A prefill job loses its blocks while they may be on their way: the transfer ends.

        The decode node then recomputes what did not arrive.
        """
        job = self._jobs.get(req_id)
        if job is not None and job.source_open and not job.source_aborted:
            job.source_aborted = True
            self._step.preempted_sources.append(job.params.key)

    def _abort_source(self, job: _Job) -> None:
        if not job.source_aborted:
            job.source_aborted = True
            self._step.aborted_sources.append(job.params.key)

    def not_owed(self, received: set[str]) -> set[str]:
        """Those of ``received`` that vLLM is not to hear of: they have ended, and will be sent."""
        return received & self._owed_as_sent

    def worker_output(self, told: WorkerMetadata, *, received: set[str], sent: set[str]) -> None:
        """Called before vLLM frees the blocks of ``sent`` requests and marks ``received`` ones as
        ready to be promoted.

        The first token becomes part of the prompt, since vLLM's V1 runner takes the tokens of a
        sequence it has not seen from there (vllm/v1/worker/gpu_model_runner.py, _update_states);
        position ``len(prompt)`` is then the one token that the next step computes.
        """
        self._asked_keys += told.asked_keys
        self._owed_as_sent -= sent
        self._counter.released(sent | received)
        for req_id in sent | received:
            self._request_ids.pop(self._kept_keys.pop(req_id, ""), None)
        for req_id in sorted(received):
            job = self._jobs.get(req_id)
            request = self._requests.get(req_id)
            if job is None or request is None:
                continue
            job.waits_for_blocks = False
            self._turns.loaded(req_id)
            token = told.first_tokens.get(req_id)
            if token is None or request.is_finished():
                continue
            assert request.prompt_token_ids is not None
            request.prompt_token_ids.append(token)
            request._all_token_ids.append(token)
            request.num_prompt_tokens += 1
            request.update_block_hashes()
        if received:
            self._steps.limit_next(self._requests)

    def request_finished(self, request: "Request") -> bool:
        """True: keep the blocks until the worker halves report the request as sent."""
        job = self._jobs.pop(request.request_id, None)
        self._requests.pop(request.request_id, None)
        self._turns.ended(request.request_id)
        kept = _kept_as(job)
        self._counter.ended(request.request_id, kept)
        if job is None:
            return False
        if kept is None:
            self._request_ids.pop(job.params.key, None)
        else:
            self._kept_keys[request.request_id] = job.params.key
        if job.waits_for_blocks or (
            job.params.kind is JobKind.DECODE and not job.target_opened
        ):  # a job that never had blocks may have left its first token behind
            self._step.cancelled_targets.append(job.params.key)
        if not job.source_open:
            return False
        if not job.prompt_done:
            self._abort_source(job)
        self._owed_as_sent.add(request.request_id)
        return True


def _kept_as(job: _Job | None) -> BlockState | None:
    """The state of a job's blocks after its end; None when vLLM takes them back at once."""
    if job is None:
        return None
    if job.waits_for_blocks:
        return BlockState.QUARANTINED
    if not job.source_open:
        return None
    return BlockState.LEASED if job.prompt_done else BlockState.QUARANTINED


def told_by_workers(metadata: object) -> WorkerMetadata:
    """A step's worker metadata; empty if there was nothing to say."""
    return metadata if isinstance(metadata, WorkerMetadata) else WorkerMetadata()

"""From an engine's outputs to a job's frames. What is done in ``_show``, every token pays for."""

from collections.abc import Callable
from dataclasses import replace

from tokenizers import Tokenizer

from pdd.connector.params import JobKind
from pdd.core.frames import EngineFacts, Finish, FinishReason
from pdd.core.identity import RequestId
from pdd.core.ports import Clock
from pdd.daemon.running_job import RunningJob
from pdd.engine.output_stream import OutputStream
from pdd.engine.port import Engine, EngineFailed, Job, StepOutput


class JobRunner:
    """The same for every engine and every kind of job."""

    def __init__(
        self,
        *,
        engine: Engine,
        tokenizer: Tokenizer,
        clock: Clock,
        prefilled: Callable[[RunningJob], None],
    ) -> None:
        """``prefilled``: the first tokens of all choices of a prefill job are there."""
        self._engine = engine
        self._tokenizer = tokenizer
        self._clock = clock
        self._prefilled = prefilled

    def make_stream(self, request_id: RequestId, job: Job, choice_index: int = 0) -> OutputStream:
        """One choice's output, of which nothing is known yet."""
        return OutputStream(
            request_id=request_id,
            prompt_token_ids=job.prompt_token_ids,
            sampling=job.sampling,
            tokenizer=self._tokenizer,
            choice_index=choice_index,
        )

    async def generate(self, running: RunningJob) -> None:
        """Until the last choice has ended, or the job is stopped.

        Raises:
            InvalidRequest: the engine cannot do that.
            EngineFailed: another node may do better.
        """
        job = running.job
        for choice in job.choices:
            self._replay(running.open[choice.index], choice.emitted_token_ids)
        outputs = self._engine.run(job)
        try:
            async for output in outputs:
                if running.stop_reason or self._show(running, output):
                    return
            raise EngineFailed("the engine gave up the request without saying why")
        finally:
            await outputs.aclose()

    def _replay(self, stream: OutputStream, token_ids: tuple[int, ...]) -> None:
        try:
            stream.replay(token_ids)
        except ValueError as error:  # another process's word, so no bug of this one
            raise EngineFailed(str(error)) from error

    def _show(self, running: RunningJob, output: StepOutput) -> bool:
        """Send a step's frame; True when the job is over."""
        now_s = self._clock()
        stream = running.open.get(output.choice_index)
        if stream is None:
            return False  # a step further than the stop string that ended it
        if running.first_output_s is None:
            running.first_output_s = now_s
            if running.first_token_s is None:
                running.first_token_s = now_s
        if running.job.kind is JobKind.DECODE:
            assert running.first_tokens is not None, "decode went on without a first token"
            first_token_id = running.first_tokens.pop(output.choice_index, None)
            if first_token_id is not None:
                self._replay(stream, (first_token_id,))
        frame = stream.push(output.token_ids, output.logprobs, self._engine_finish(running, output))
        finish = frame.finish
        if finish is None and running.job.kind is JobKind.PREFILL:
            finish = Finish(reason=FinishReason.HANDOVER)
            running.kept_count += 1
        if finish is not None:
            del running.open[output.choice_index]
            if stream.must_abort and running.open:  # else the whole job is closed
                self._engine.stop_choice(running.job.key, output.choice_index)
            if running.job.kind is JobKind.PREFILL and not running.open:
                self._prefilled(running)
            facts = self._facts(running, now_s)
            frame = replace(frame, finish=replace(finish, facts=facts))
        if running.is_recorded:
            running.output.add(frame.token_ids, frame.logprobs)
            if finish is not None and running.job.kind is not JobKind.PREFILL:
                running.output.last, running.ended_s = frame, now_s
        if not running.cancelled and not running.giving:
            running.reports.frame(frame, running.generation)
        return not running.open

    def _engine_finish(self, running: RunningJob, output: StepOutput) -> Finish | None:
        """The engine's own end, unless it only ended because it was asked for one token."""
        if output.finish_reason is None:
            return None
        if output.finish_reason is FinishReason.ABORT:
            raise EngineFailed("the engine aborted the request by itself")
        if running.job.kind is JobKind.PREFILL and output.finish_reason is FinishReason.LENGTH:
            return None
        return Finish(reason=output.finish_reason, stop_reason=output.stop_reason)

    def _facts(self, running: RunningJob, now_s: float) -> EngineFacts:
        counted = self._engine.facts(running.job.key)
        first_s = running.first_output_s if running.first_output_s is not None else now_s
        started_s = counted.started_s if counted.started_s is not None else first_s
        return EngineFacts(
            cached_tokens=counted.cached_tokens,
            computed_prompt_tokens=counted.computed_prompt_tokens,
            forked_prompt_tokens=counted.forked_prompt_tokens,
            transferred_bytes=counted.transferred_bytes,
            pulled_tokens=counted.pulled_tokens,
            pulled_bytes=counted.pulled_bytes,
            pull_s=counted.pull_s,
            queue_s=max(started_s - running.submitted_s, 0.0),
            prefill_s=max(first_s - started_s, 0.0),
            transfer_s=counted.transfer_s,
            decode_s=max(now_s - first_s, 0.0),
        )

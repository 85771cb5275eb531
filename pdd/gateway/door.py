"""From a parsed body to a ``GenerateRequest``: the one place that says what is allowed.

HTTP handlers and the gRPC servicer both call it; the latter turns its message into the same
body first. Everything is checked here, so that no engine ever sees a request it must refuse.
"""

import os
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

from pdd.core.errors import InvalidRequest
from pdd.core.identity import RequestId
from pdd.core.requests import DEFAULT_TENANT, GenerateRequest
from pdd.gateway.job import Job
from pdd.gateway.json_text import shorten
from pdd.gateway.sampling_fields import SharedFields, check_token_ids, to_sampling
from pdd.gateway.schema_chat import ChatFields, check_chat, template_messages
from pdd.gateway.schema_completions import (
    DEFAULT_MAX_TOKENS,
    CompletionFields,
    Prompt,
    parse_prompt,
)
from pdd.gateway.schema_faults import validate
from pdd.gateway.served import ServedModel
from pdd.gateway.tokenizer import ChatPrompt, Tokenizer


def random_seed() -> int:
    """Draws for a request that names no seed; fixed once, so it can move between engines."""
    return int.from_bytes(os.urandom(8), "little") >> 1


class Door:
    """Checks and tokenises requests for one model."""

    def __init__(
        self,
        *,
        model: ServedModel,
        tokenizer: Tokenizer,
        seed_source: Callable[[], int] = random_seed,
    ) -> None:
        self.model = model
        self._tokenizer = tokenizer
        self._seed_source = seed_source

    async def completion(
        self,
        body: Mapping[str, object],
        *,
        request_id: RequestId,
        deadline_s: float,
        tenant: str = DEFAULT_TENANT,
    ) -> Job:
        """Check and tokenise a body of ``/v1/completions``.

        Raises:
            InvalidRequest: naming field, value and bound.
            AdmissionRejected: too many prompts wait to be tokenised.
        """
        fields = validate(CompletionFields, body)
        self._check_model(fields.model)
        if fields.echo and fields.logprobs is not None:
            raise InvalidRequest(
                "echo: together with logprobs it needs log probabilities of the prompt, which "
                "are not available; leave one of them out",
                field="echo",
                code="unsupported_value",
            )
        prompt = parse_prompt(fields.prompt)
        token_ids = await self._prompt_ids(prompt, fields)
        echo_text = ""
        if fields.echo:
            echo_text = (
                await self._tokenizer.decode(token_ids) if prompt.text is None else prompt.text
            )
        max_tokens = self._max_tokens(
            fields.max_tokens,
            field="max_tokens",
            default=DEFAULT_MAX_TOKENS,
            prompt_token_count=len(token_ids),
            prompt_field=prompt.field,
        )
        return self._job(
            fields,
            token_ids=token_ids,
            max_tokens=max_tokens,
            logprobs=fields.logprobs,
            request_id=request_id,
            deadline_s=deadline_s,
            tenant=tenant,
            echo_text=echo_text,
        )

    async def chat(
        self,
        body: Mapping[str, object],
        *,
        request_id: RequestId,
        deadline_s: float,
        tenant: str = DEFAULT_TENANT,
    ) -> Job:
        """Check, render and tokenise a body of ``/v1/chat/completions``.

        Raises:
            InvalidRequest: naming field, value and bound.
            AdmissionRejected: too many prompts wait to be tokenised.
        """
        fields = validate(ChatFields, body)
        self._check_model(fields.model)
        check_chat(fields)
        token_ids = tuple(
            await self._tokenizer.encode_chat(
                ChatPrompt(
                    messages=template_messages(fields),
                    add_generation_prompt=fields.wants_generation_prompt,
                    continue_final_message=bool(fields.continue_final_message),
                    add_special_tokens=bool(fields.add_special_tokens),
                    template_kwargs=fields.chat_template_kwargs or {},
                )
            )
        )
        max_tokens = self._max_tokens(
            fields.wanted_max_tokens,
            field=fields.max_tokens_field,
            default=None,
            prompt_token_count=len(token_ids),
            prompt_field="messages",
        )
        return self._job(
            fields,
            token_ids=token_ids,
            max_tokens=max_tokens,
            logprobs=(fields.top_logprobs or 0) if fields.logprobs else None,
            request_id=request_id,
            deadline_s=deadline_s,
            tenant=tenant,
            role="assistant" if fields.wants_generation_prompt else fields.messages[-1].role,
        )

    def _check_model(self, name: str | None) -> None:
        if name is not None and name != self.model.name:
            raise InvalidRequest(
                f"model: {shorten(name)} does not exist here; {self.model.name!r} is served",
                field="model",
                code="model_not_found",
            )

    async def _prompt_ids(self, prompt: Prompt, fields: SharedFields) -> tuple[int, ...]:
        if prompt.token_ids is None:
            assert prompt.text is not None
            return tuple(
                await self._tokenizer.encode(
                    prompt.text, add_special_tokens=fields.add_special_tokens is not False
                )
            )
        check_token_ids(prompt.token_ids, field=prompt.field, vocab_size=self.model.vocab_size)
        return prompt.token_ids

    def _max_tokens(
        self,
        wanted: int | None,
        *,
        field: str,
        default: int | None,
        prompt_token_count: int,
        prompt_field: str,
    ) -> int:
        """``wanted``, which must fit, or as much of the default as the prompt leaves room for."""
        limit = self.model.max_model_len
        if prompt_token_count == 0:
            raise InvalidRequest(
                f"{prompt_field}: has no tokens; at least 1 is needed", field=prompt_field
            )
        room = limit - prompt_token_count
        if room < 1:
            raise InvalidRequest(
                f"{prompt_field}: has {prompt_token_count} tokens; the model takes {limit} for "
                f"prompt and output together, so at most {limit - 1} here",
                field=prompt_field,
                code="context_length_exceeded",
            )
        if wanted is None:
            return room if default is None else min(default, room)
        if wanted > room:
            raise InvalidRequest(
                f"{field}: {wanted} is too many after a prompt of {prompt_token_count} tokens; "
                f"the model takes {limit} for both, so at most {room} here",
                field=field,
                code="context_length_exceeded",
            )
        return wanted

    def _job(
        self,
        fields: SharedFields,
        *,
        token_ids: tuple[int, ...],
        max_tokens: int,
        logprobs: int | None,
        request_id: RequestId,
        deadline_s: float,
        tenant: str,
        echo_text: str = "",
        role: str = "",
    ) -> Job:
        return Job(
            request=GenerateRequest(
                request_id=request_id,
                prompt_token_ids=token_ids,
                sampling=to_sampling(
                    fields,
                    model=self.model,
                    max_tokens=max_tokens,
                    logprobs=logprobs,
                    random_seed=self._seed_source(),
                ),
                tenant=tenant,
                cache_salt=fields.cache_salt or "",
                affinity_key=fields.prompt_cache_key or fields.user or "",
                priority=fields.priority or 0,
                choice_count=fields.n or 1,
                deadline_s=deadline_s,
            ),
            stream=fields.wants_stream,
            usage_chunk=fields.wants_usage_chunk,
            running_usage=fields.wants_running_usage,
            return_token_ids=bool(fields.return_token_ids),
            tokens_as_ids=bool(fields.return_tokens_as_token_ids),
            echo_text=echo_text,
            role=role,
            created_s=_epoch_s(),
        )


def _epoch_s() -> int:
    """Wall time, only to be shown: OpenAI's ``created``."""
    return int(datetime.now(UTC).timestamp())

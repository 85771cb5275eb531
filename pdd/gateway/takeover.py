"""The note that travels with a request's work, for another scheduler to go on with it.

msgpack map. It holds what nodes are not told (presentation, tenant, salt, key); prompt and sampling
are in the submit beside it. A note of another version is refused: that request ends, and a client
that sends it again is served anew.
"""

from dataclasses import replace
from typing import Any

import msgpack
import xxhash

from pdd.core.requests import GenerateRequest
from pdd.gateway.job import Job
from pdd.gateway.run import RunName

NOTE_VERSION = 1
_FLAGS = ("stream", "usage_chunk", "running_usage", "return_token_ids", "tokens_as_ids")
_TEXTS = ("echo_text", "role")


def with_note(job: Job, name: RunName) -> Job:
    """The job, whose request carries along what ``from_note`` needs."""
    request = job.request
    note: bytes = msgpack.packb(
        {
            "version": NOTE_VERSION,
            "path": name.path,
            "tenant": name.tenant,
            "key": name.key,
            "digest": name.digest,
            "cache_salt": request.cache_salt,
            "affinity_key": request.affinity_key,
            "deadline_s": request.deadline_s,
            "choice_count": request.choice_count,
            "created_s": job.created_s,
            **{field: getattr(job, field) for field in (*_FLAGS, *_TEXTS)},
        }
    )
    key = resume_key(name) if name.key else b""
    return replace(job, request=replace(request, resume=note, resume_key=key))


def resume_key(name: RunName) -> bytes:
    """What a run with a key is sought by, at nodes: 16 bytes, as alike as its names are."""
    names = msgpack.packb([name.path, name.tenant, name.key])
    return xxhash.xxh3_128_digest(names)


def from_note(request: GenerateRequest) -> tuple[Job, RunName]:
    """The whole job, from what a node was told of it.

    Raises:
        ValueError: this is no such note, or one of another version.
    """
    try:
        note: Any = msgpack.unpackb(request.resume)
    except Exception as error:  # msgpack raises half a dozen unrelated types
        raise ValueError(f"its note is no msgpack: {error!r}") from error
    try:
        version = note["version"]
        if version != NOTE_VERSION:
            raise ValueError(f"its note has version {version}, this scheduler reads {NOTE_VERSION}")
        whole = replace(
            request,
            tenant=_typed(note, "tenant", str),
            cache_salt=_typed(note, "cache_salt", str),
            affinity_key=_typed(note, "affinity_key", str),
            deadline_s=_typed(note, "deadline_s", float),
            choice_count=_typed(note, "choice_count", int),
        )
        job = Job(
            request=whole,
            created_s=_typed(note, "created_s", int),
            **{field: _typed(note, field, bool) for field in _FLAGS},
            **{field: _typed(note, field, str) for field in _TEXTS},
        )
        name = RunName(
            path=_typed(note, "path", str),
            tenant=whole.tenant,
            key=_typed(note, "key", str),
            digest=_typed(note, "digest", bytes),
        )
    except (KeyError, TypeError) as error:
        raise ValueError(f"its note cannot be read: {error!r}") from error
    return job, name


def _typed(note: dict[str, Any], field: str, kind: type) -> Any:
    value = note[field]
    if type(value) is not kind:
        raise ValueError(f"its note has {field} = {value!r}, not {kind.__name__}")
    return value

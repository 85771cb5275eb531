"""Jobs for tests of the synthetic engine; only what a test is about is spelled out."""

from typing import Any

from pdd.connector.params import JobKind, SourceNode
from pdd.core.sampling import Sampling
from pdd.engine.port import Job

SOURCE = SourceNode(
    name="prefill-0", uuid="u", boot_epoch=1, control_address="p:1", ucx_addresses=(b"",)
)


def make_job(
    prompt: list[int], *, key: str = "r/0", kind: JobKind = JobKind.LOCAL, **fields: Any
) -> Job:
    sampling = {
        name: fields.pop(name) for name in list(fields) if name in Sampling.__dataclass_fields__
    }
    defaults: dict[str, Any] = {
        "cache_salt": "",
        "priority": 0,
        "deadline_s": 30.0,
        "source": SOURCE if kind is JobKind.DECODE else None,
    }
    return Job(
        key=key,
        kind=kind,
        prompt_token_ids=tuple(prompt),
        sampling=Sampling(**({"max_tokens": 4, "temperature": 0.0} | sampling)),
        **(defaults | fields),
    )

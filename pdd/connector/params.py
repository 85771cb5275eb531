"""What the node daemon tells the connector about one request.

It travels as ``SamplingParams.extra_args["kv_transfer_params"]["pdd"]``, a dict of plain values
(vLLM pickles it and insists on integers of at most 64 bits).
"""

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class JobKind(StrEnum):
    """What a node does for a request."""

    PREFILL = "prefill"  # compute the prompt, give out the first token, keep the blocks for a peer
    DECODE = "decode"  # reserve blocks, let a peer fill them, go on after the first token
    LOCAL = "local"  # compute everything here


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceNode:
    """Where a job's blocks come from."""

    name: str
    uuid: str
    boot_epoch: int
    control_address: str
    ucx_addresses: tuple[bytes, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pull:
    """What a prefill job has from the request's decode node before it computes the rest.

    ``token_count``: so many of the prompt's first tokens are there, whole blocks. ``wait_s``: what
    has not come by then is computed.
    """

    source: SourceNode
    token_count: int
    wait_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class JobParams:
    """One job. ``key`` is ``request_id/generation`` and the same on both nodes. ``pull`` and
    ``lends`` as in ``pdd.engine.port.Job``.

    The engine's own request id has a random suffix (vllm/v1/engine/input_processor.py) and is
    never used between nodes.
    """

    key: str
    kind: JobKind
    deadline_s: float
    source: SourceNode | None = None
    pull: Pull | None = None
    lends: bool = False

    def to_extra_args(self) -> dict[str, Any]:
        """As a value for ``SamplingParams.extra_args``."""
        return {"pdd": asdict(self)}

    @classmethod
    def from_extra_args(cls, params: dict[str, Any] | None) -> "JobParams | None":
        """Read what ``to_extra_args`` wrote; None for a request that is not pdd's."""
        if params is None or "pdd" not in params:
            return None
        fields = dict(params["pdd"])
        source, pull = fields["source"], fields["pull"]
        fields["kind"] = JobKind(fields["kind"])
        fields["source"] = None if source is None else _source(source)
        fields["pull"] = (
            None if pull is None else Pull(**{**pull, "source": _source(pull["source"])})
        )
        return cls(**fields)


def _source(fields: dict[str, Any]) -> SourceNode:
    return SourceNode(**{**fields, "ucx_addresses": tuple(fields["ucx_addresses"])})

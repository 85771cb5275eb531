"""What is served, and whether it can be: values the daemon fills in and the front door reads."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """The one model of this cluster.

    ``max_model_len``: prompt and output together, in tokens.
    ``vocab_size``: token ids are below it.
    ``created_s``: seconds since the epoch, shown by ``/v1/models``.
    """

    name: str
    max_model_len: int
    vocab_size: int
    eos_token_ids: tuple[int, ...] = ()
    created_s: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """Whether a request could be served now. ``reason`` says why not, or why slower than it should
    be, for an operator."""

    decode_ready_count: int
    prefill_ready_count: int
    reason: str = ""

    @property
    def ready(self) -> bool:
        """One decode node suffices: it can compute prompts itself."""
        return self.decode_ready_count > 0

"""What can be tuned in the transfer engine, and the faults that tests can ask for."""

from dataclasses import dataclass, field

MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferFaults:
    """Faults injected at one rank, for tests and drills. The defaults inject nothing.

    ``delay_s``: the source holds every chunk back that long before it sends it.
    ``flip_byte_in_chunk``: the source flips one byte of the chunk with this number (0-based in
        its transfer) after having taken the digest; once in the life of the engine.
    ``fail_chunk``: as above, at every sending, so that asking again does not help.
    ``drop_receipts``: the target never tells the source that all is well.
    """

    delay_s: float = 0.0
    flip_byte_in_chunk: int | None = None
    fail_chunk: int | None = None
    drop_receipts: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferSettings:
    """Limits and times of one engine. Every wait in the engine ends by one of them.

    ``digest``: xxh3 over every chunk at both ends. Off: completeness is still checked by message
        count, but damage is not seen. For GPU pools the pool's ``device_digest`` instead.
    ``shared_memory``: between ranks of one host and user with pools in host memory, the bytes go
        through shared memory (see ``shared``) and only records over UCX. Both ranks must have it
        on, and the kernel must allow it; else all goes over UCX.
    ``shared_slots``: chunks that this rank's shared memory holds, for all peers; what goes to a
        peer that finds none left, and has none, goes over UCX.
    ``chunk_bytes``: blocks are sent in chunks of about this size (at least one block).
    ``window_chunks``: chunks on the way to one peer; more wait at the source.
    ``stage_below_bytes``: contiguous stretches shorter than this are gathered into, and scattered
        from, staging buffers; longer ones travel from pool to pool.
    ``round_budget_s``: longest time that UCX, then the handling of what it brought, then the
        sending of what is due may each take before commands are looked at again.
    ``grant_repeat_s``: first pause before an unanswered control message is sent again; doubles up
        to ``control_repeat_limit_s``, and ends with the transfer's own deadline.
    ``answer_timeout_s``: a source that has not answered a grant in band by then is taken for lost.
    ``max_pending_grants``: grants kept for sequences that this source does not know yet; at the
        bound a grant is refused (``too_many_pending``).
    ``pending_grant_timeout_s``: longest time such a grant is kept, if its lease is not shorter.
    ``max_lease_s``: longer leases are refused (``lease_too_long``).
    ``resume_grace_s``: how long the source keeps blocks after a lost connection for a resume.
    ``quiesce_timeout_s``: how long messages on their way may take to land after the end of a
        transfer; then the endpoint is closed.
    ``drain_timeout_s``: as above, for what can touch staging buffers only.
    """

    digest: bool = True
    shared_memory: bool = True
    shared_slots: int = 16
    chunk_bytes: int = 4 * MIB
    window_chunks: int = 8
    stage_below_bytes: int = 256 * 1024
    round_budget_s: float = 0.004
    grant_repeat_s: float = 0.25
    answer_timeout_s: float = 5.0
    control_repeat_limit_s: float = 2.0
    max_pending_grants: int = 1024
    pending_grant_timeout_s: float = 60.0
    max_lease_s: float = 3600.0
    resume_grace_s: float = 3.0
    quiesce_timeout_s: float = 2.0
    drain_timeout_s: float = 10.0
    faults: TransferFaults = field(default_factory=TransferFaults)

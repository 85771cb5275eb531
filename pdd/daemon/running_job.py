"""One job of a node while it runs, and the words for what becomes of it."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from pdd.core.frames import Frame
from pdd.core.identity import RequestId
from pdd.daemon.held_output import HeldOutput
from pdd.engine.output_stream import OutputStream
from pdd.engine.port import Job, JobFacts
from pdd.rpc.v1 import cluster_pb2


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFailure:
    """``kind``: invalid (the client's fault), engine, deadline, or stopped (given back through no
    fault)."""

    kind: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobReports:
    """Where a job's news go. Called on the event loop, never blocking.

    ``home``: names the scheduler, and which life of it. ``sent``: waits until what was said is on
    its way; for who has much to say at once.
    """

    frame: Callable[[Frame, int], None]
    failed: Callable[[RequestId, int, JobFailure], None]
    ready: Callable[[RequestId, int, JobFacts], None]
    home: str = ""
    sent: Callable[[], Awaitable[None]] = lambda: asyncio.sleep(0)


@dataclass(slots=True)
class RunningJob:
    """``open``: choices that have not ended here, each with its output. ``kept_count``: a prefill
    job's choices that another node goes on with.

    ``keep``: what another scheduler needs to take it over; None: it ends with its own.
    ``is_recorded``: what it says is kept in ``output`` for that; of several choices only the
    request is, and all is computed anew. ``giving``: a claim is being obeyed; what is new is in
    ``output`` and is given in its turn. ``stop_reason``: why it does not run any more, though it
    has not ended.
    """

    request_id: RequestId
    generation: int
    job: Job
    open: dict[int, OutputStream]
    reports: JobReports
    submitted_s: float
    task: asyncio.Task[None] | None = None
    first_tokens: dict[int, int] | None = None
    kept_count: int = 0
    first_output_s: float | None = None
    ready_timer: asyncio.TimerHandle | None = None
    cancelled: bool = field(default=False)
    home: str = ""
    keep: cluster_pb2.Submit | None = None
    is_recorded: bool = False
    first_token: cluster_pb2.FirstToken | None = None
    output: HeldOutput = field(default_factory=HeldOutput)
    first_token_s: float | None = None
    ready_s: float | None = None
    ended_s: float | None = None
    giving: bool = False
    stop_reason: str = ""

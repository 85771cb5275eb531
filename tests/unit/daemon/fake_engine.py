"""An engine whose every output is scripted by the test; implements ``pdd.engine.port.Engine``."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from tokenizers import Tokenizer, decoders, models

from pdd.core.blocks import BlockCensus
from pdd.core.frames import FinishReason
from pdd.engine.cache_events import CacheListener
from pdd.engine.port import EngineInfo, EngineStats, Job, JobFacts, PeerControl, StepOutput
from pdd.transfer.pairing import RankConnection, RankLink
from pdd.transfer.values import Connection, PeerId

LETTERS = "abcdefghijklmnopqrstuvwxyz"
EOS = len(LETTERS)


def letter_tokenizer() -> Tokenizer:
    """Token 0 is "a", token 25 is "z", token 26 ends the output."""
    vocabulary = {letter: index for index, letter in enumerate(LETTERS)} | {"<end>": EOS}
    tokenizer = Tokenizer(models.WordLevel(vocab=vocabulary, unk_token="<end>"))
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens(["<end>"])
    return tokenizer


def ids_of(text: str) -> tuple[int, ...]:
    return tuple(LETTERS.index(letter) for letter in text)


def out(
    text: str = "",
    *,
    finish: FinishReason | None = None,
    eos: bool = False,
    stop_reason: int | str | None = None,
) -> StepOutput:
    """One engine step; ``eos``: its last token ends the output."""
    token_ids = ids_of(text) + ((EOS,) if eos else ())
    return StepOutput(
        token_ids=token_ids,
        logprobs=(),
        finish_reason=FinishReason.STOP if eos else finish,
        stop_reason=stop_reason,
    )


INFO = EngineInfo(
    block_count=101,
    block_size=16,
    block_bytes=1024,
    max_model_len=8192,
    max_num_seqs=16,
    vocab_size=27,
    eos_token_ids=(EOS,),
    ucx_addresses=(b"ucx",),
    fingerprint={"kv_dtype": "bfloat16"},
)


@dataclass
class Run:
    """One call of ``run``: feed it, then see what became of it."""

    job: Job
    outputs: asyncio.Queue[StepOutput | Exception | None] = field(default_factory=asyncio.Queue)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    first_tokens: dict[int, int] | None = None
    stopped: list[int] = field(default_factory=list)

    @property
    def closed(self) -> bool:
        """The generator was closed: a real engine would have freed the job's blocks."""
        return self.ended.is_set()

    def feed(self, *outputs: StepOutput | Exception | None) -> None:
        """None ends the stream without a finish."""
        for output in outputs:
            self.outputs.put_nowait(output)


class FakeEngine:
    """Never does anything by itself."""

    def __init__(self, info: EngineInfo = INFO) -> None:
        self.info = info
        self.runs: dict[str, Run] = {}
        self.dropped: dict[str, str] = {}
        self.forgotten: list[str] = []
        self.job_facts: dict[str, JobFacts] = {}
        self.transfer_counters: dict[str, float] = {}
        self.blocks: BlockCensus | None = None
        self.tables: dict[str, tuple[tuple[int, ...], ...]] = {}
        self.delivered: list[PeerControl] = []
        self.linked: dict[tuple[int, PeerId], RankLink] = {}
        self.lanes: tuple[str, ...] = ("tcp/lo",)
        self.received_bytes = 0
        self.bytes_per_s = 0.0
        self.notify_cache: CacheListener = lambda events: None
        self.resets = True
        """Whether the cache can be emptied: nothing uses it."""
        self.reset_count = 0
        self.notify_ready: Callable[[str, JobFacts], None] = lambda key, facts: None
        self._started = asyncio.Event()

    async def job(self, key: str) -> Run:
        """Waits until the engine was given the job."""
        while key not in self.runs:
            self._started.clear()
            await asyncio.wait_for(self._started.wait(), timeout=10)
        return self.runs[key]

    def ready(self, key: str, **facts: object) -> None:
        """The blocks of a decode job are there."""
        self.job_facts[key] = JobFacts(**facts)  # type: ignore[arg-type]
        self.notify_ready(key, self.job_facts[key])

    # --- Engine ------------------------------------------------------------------------------

    def census(self) -> BlockCensus | None:
        return self.blocks

    async def locate(self, key: str) -> tuple[tuple[int, ...], ...] | None:
        return self.tables.get(key)

    async def start(self) -> EngineInfo:
        return self.info

    async def run(self, job: Job) -> AsyncGenerator[StepOutput, None]:
        run = Run(job=job)
        self.runs[job.key] = run
        self._started.set()
        try:
            while (output := await run.outputs.get()) is not None:
                if isinstance(output, Exception):
                    raise output
                yield output
        finally:
            run.ended.set()

    def first_tokens(self, key: str, token_ids: Mapping[int, int]) -> None:
        if key in self.runs:
            self.runs[key].first_tokens = dict(token_ids)

    def stop_choice(self, key: str, choice_index: int) -> None:
        self.runs[key].stopped.append(choice_index)

    def drop_source(self, key: str, reason: str) -> None:
        self.dropped[key] = reason

    def facts(self, key: str) -> JobFacts:
        return self.job_facts.get(key) or JobFacts()

    def forget(self, key: str) -> None:
        self.forgotten.append(key)

    def stats(self) -> EngineStats:
        return EngineStats(free_block_count=99, running_sequence_count=1, waiting_sequence_count=2)

    def counters(self) -> dict[str, float]:
        return self.transfer_counters

    def deliver_control(self, message: PeerControl) -> None:
        self.delivered.append(message)

    def on_control(self, send: Callable[[PeerControl], None]) -> None:
        self.send_control = send

    def connect(self, links: Sequence[RankLink]) -> None:
        self.linked.update({(link.own_rank, link.peer.peer_id): link for link in links})

    def disconnect(self, links: Sequence[RankLink]) -> None:
        for link in links:
            self.linked.pop((link.own_rank, link.peer.peer_id), None)

    def connections(self) -> tuple[RankConnection, ...]:
        return tuple(
            RankConnection(
                own_rank=own_rank,
                connection=Connection(
                    peer=peer,
                    lanes=self.lanes,
                    received_bytes=self.received_bytes,
                    bytes_per_s=self.bytes_per_s,
                ),
            )
            for own_rank, peer in self.linked
        )

    def on_ready(self, notify: Callable[[str, JobFacts], None]) -> None:
        self.notify_ready = notify

    def on_cache_events(self, notify: CacheListener) -> None:
        self.notify_cache = notify

    async def reset_cache(self) -> bool:
        self.reset_count += 1
        return self.resets

    async def wait_failed(self) -> str:
        await asyncio.Event().wait()
        return ""

    async def stop(self) -> None:
        pass

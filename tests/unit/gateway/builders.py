"""What the gateway's tests are made of: a scripted scheduler, a letter tokenizer, real sockets."""

import asyncio
import json
import ssl
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from pdd.core.errors import RequestFailed
from pdd.core.frames import Finish, FinishReason, Frame, Logprob, TokenLogprobs
from pdd.core.identity import NodeName, RequestId
from pdd.core.ports import Sink
from pdd.core.requests import Ended, GenerateRequest, Path, Plan, RequestUsage
from pdd.core.sampling import Sampling
from pdd.gateway.job import Job
from pdd.gateway.metrics import GatewayMetrics
from pdd.gateway.served import Health, ServedModel
from pdd.gateway.server import make_front, make_runs, serve
from pdd.gateway.settings import GatewaySettings
from pdd.gateway.tokenizer import ChatPrompt, PooledTokenizer
from tests.sinks import Delta, GenerationEvent, Planned

MODEL = ServedModel(name="tiny", max_model_len=100, vocab_size=256, created_s=1_700_000_000)
PLAN = Plan(
    path=Path.DISAGGREGATED,
    prefill_node=NodeName("prefill-0"),
    decode_node=NodeName("decode-0"),
    reason="long prompt",
)


class LetterTokenizer(PooledTokenizer):
    """One token per character; its id is the character's code. A "chat" is role:content lines."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(threads=1, **kwargs)
        self.calls = 0

    def encode_now(self, text: str, *, add_special_tokens: bool) -> list[int]:
        self.calls += 1
        begin = [1] if add_special_tokens else []
        return begin + [min(ord(letter), 255) for letter in text]

    def decode_now(self, token_ids: Sequence[int]) -> str:
        return "".join(chr(token_id) for token_id in token_ids)

    def render_now(self, chat: ChatPrompt) -> str:
        lines = [f"{message['role']}:{message['content']}" for message in chat.messages]
        return "\n".join(lines) + ("\nassistant:" if chat.add_generation_prompt else "")


def frames(
    *texts: str,
    logprobs: int | None = None,
    tokens_per_frame: int = 1,
    request_id: str = "r-test",
) -> list[Delta]:
    """One frame per text, with offsets as an engine would give them."""
    deltas = []
    token_index, offset = 0, 0
    for text in texts:
        ids = tuple(100 + token_index + extra for extra in range(tokens_per_frame))
        deltas.append(
            Delta(
                frame=Frame(
                    request_id=RequestId(request_id),
                    first_token_index=token_index,
                    token_ids=ids,
                    text_offset=offset,
                    text=text,
                    logprobs=()
                    if logprobs is None
                    else tuple(token_logprobs(text or "?", token, top=logprobs) for token in ids),
                )
            )
        )
        token_index += tokens_per_frame
        offset += len(text)
    return deltas


def token_logprobs(text: str, token_id: int, *, top: int) -> TokenLogprobs:
    """The chosen token is the most likely one; the others are named after it."""

    def candidate(rank: int) -> Logprob:
        name = text if rank == 1 else f"{text}{rank}"
        return Logprob(
            token_id=token_id + rank - 1,
            logprob=-0.5 * rank,
            rank=rank,
            text=name,
            token_bytes=name.encode(),
        )

    return TokenLogprobs(
        chosen=candidate(1), top=tuple(candidate(rank) for rank in range(1, top + 1))
    )


def usage(*, prompt_tokens: int = 5, completion_tokens: int = 2, **changes: Any) -> RequestUsage:
    fields: dict[str, Any] = {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "cached_tokens": 3,
        "path": Path.DISAGGREGATED,
        "prefill_node": NodeName("prefill-0"),
        "decode_node": NodeName("decode-0"),
        "queue_ms": 0.25,
        "prefill_ms": 12.5,
        "transfer_ms": 1.5,
        "decode_ms": 20.0,
        "transferred_bytes": 4096,
        "decode_computed_prompt_tokens": 1,
    }
    return RequestUsage(**{**fields, **changes})


def ended(
    reason: FinishReason = FinishReason.STOP, stop_reason: int | str | None = None, **changes: Any
) -> Ended:
    return Ended(finish=Finish(reason=reason, stop_reason=stop_reason), usage=usage(**changes))


def script(*texts: str, **options: Any) -> list[Any]:
    """A request that goes well: plan, one frame per text, end."""
    deltas = frames(*texts, **options)
    count = sum(len(delta.frame.token_ids) for delta in deltas)
    return [Planned(plan=PLAN), *deltas, ended(completion_tokens=count)]


def make_job(*, stream: bool = True, sampling: Sampling | None = None, **changes: Any) -> Job:
    fields: dict[str, Any] = {
        "usage_chunk": False,
        "running_usage": False,
        "return_token_ids": False,
        "tokens_as_ids": False,
        "role": "assistant",
        "created_s": 17,
    }
    return Job(
        request=GenerateRequest(
            request_id=RequestId("r-test"),
            prompt_token_ids=(7, 8, 9),
            sampling=Sampling(max_tokens=8) if sampling is None else sampling,
        ),
        stream=stream,
        **{**fields, **changes},
    )


class Played:
    """An ``Inference`` whose requests are played by a task each. ``stop`` is for what serves it.

    ``closed`` is set when a player has ended in whatever way: it is through, or was cancelled.
    """

    def __init__(self) -> None:
        self.requests: list[GenerateRequest] = []
        self.closed = asyncio.Event()
        self.open_count = 0
        self.stop: Any = None
        self._players: dict[RequestId, asyncio.Task[None]] = {}

    def start(self, request: GenerateRequest, sink: Sink) -> None:
        self.requests.append(request)
        self.open_count += 1
        player = asyncio.create_task(self.play(request, sink))
        self._players[request.request_id] = player
        player.add_done_callback(lambda _: self._ended(request))

    def cancel(self, request_id: RequestId) -> None:
        player = self._players.pop(request_id, None)
        if player is not None:
            player.cancel()

    async def play(self, request: GenerateRequest, sink: Sink) -> None:
        raise RequestFailed("nothing is played")

    def _ended(self, request: GenerateRequest) -> None:
        self._players.pop(request.request_id, None)
        self.open_count -= 1
        self.closed.set()


class ScriptedInference(Played):
    """Plays a script: events are told, exceptions are failures, asyncio.Events waited for.

    ``waiting`` is set when the player has come to an asyncio.Event. Like the scheduler it never
    leaves a request without an end.
    """

    def __init__(self, steps: Sequence[GenerationEvent | Exception | asyncio.Event]) -> None:
        super().__init__()
        self.steps = list(steps)
        self.waiting = asyncio.Event()

    async def play(self, request: GenerateRequest, sink: Sink) -> None:
        for step in self.steps:
            match step:
                case asyncio.Event():
                    self.waiting.set()
                    await step.wait()
                case Planned():
                    sink.planned(step.plan)
                case Delta():
                    sink.tokens(step.frame)
                case Exception():
                    sink.failed(step)  # type: ignore[arg-type]
                    return
                case Ended():
                    sink.ended(step)
                    return
                case _:
                    raise AssertionError(step)


class Flood(Played):
    """Sends as fast as the loop turns, for ever."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = 0

    async def play(self, request: GenerateRequest, sink: Sink) -> None:
        sink.planned(PLAN)
        text = "x" * 1000
        while True:
            sink.tokens(
                Frame(
                    request_id=request.request_id,
                    first_token_index=self.sent,
                    token_ids=(1,),
                    text_offset=self.sent * 1000,
                    text=text,
                )
            )
            self.sent += 1
            await asyncio.sleep(0)


class FullPipe(Played):
    """Sends until the kernel's buffers and the transport's are full and a bit is held back."""

    def __init__(self) -> None:
        super().__init__()
        self.full = asyncio.Event()

    async def play(self, request: GenerateRequest, sink: Sink) -> None:
        sink.planned(PLAN)
        text = "x" * 50_000
        index, held_back = 0, 0
        while held_back < 2:
            sink.tokens(
                Frame(
                    request_id=request.request_id,
                    first_token_index=index,
                    token_ids=(1,),
                    text_offset=index * len(text),
                    text=text,
                )
            )
            index += 1
            held_back += sink._turn.wire.write_paused  # type: ignore[attr-defined]
            await asyncio.sleep(0)
        self.full.set()
        await asyncio.Event().wait()


class Front:
    """A served application and what stands behind it."""

    def __init__(
        self,
        *,
        url: str,
        port: int,
        inference: ScriptedInference,
        tokenizer: LetterTokenizer,
        metrics: GatewayMetrics,
        http: aiohttp.ClientSession,
        stop: Any,
    ) -> None:
        self.url = url
        self.port = port
        self.inference = inference
        self.tokenizer = tokenizer
        self.metrics = metrics
        self.http = http
        self.stop = stop

    def sample(self, name: str, **labels: str) -> float:
        """One value of ``/metrics``; 0 if it was never touched."""
        return self.metrics.registry.get_sample_value(name, labels) or 0.0


@asynccontextmanager
async def front(
    steps: Sequence[Any] = (),
    *,
    settings: GatewaySettings | None = None,
    model: ServedModel = MODEL,
    health: Health | None = None,
    inference: Any = None,
    tokenizer: Any = None,
    port: int = 0,
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[Front]:
    """The application on a real loopback socket."""
    settings = GatewaySettings(shutdown_grace_s=0.05) if settings is None else settings
    player = ScriptedInference(steps) if inference is None else inference
    letters = LetterTokenizer() if tokenizer is None else tokenizer
    metrics = GatewayMetrics()
    server = await serve(
        make_front(
            inference=player,
            runs=make_runs(inference=player, settings=settings, clock=time.monotonic),
            tokenizer=letters,
            model=model,
            settings=settings,
            health=lambda: health or Health(decode_ready_count=1, prefill_ready_count=1),
            metrics=metrics,
        ),
        host="127.0.0.1",
        port=port,
        tls=tls,
    )
    port = server.port
    url = f"http://127.0.0.1:{port}"
    try:
        async with aiohttp.ClientSession() as http:
            yield Front(
                url=url,
                port=port,
                inference=player,
                tokenizer=letters,
                metrics=metrics,
                http=http,
                stop=server.stop,
            )
    finally:
        await server.stop()
        letters.close()


async def post(
    served: Front, path: str, body: Any, **kwargs: Any
) -> tuple[int, dict[str, Any], Mapping[str, str]]:
    """POST a JSON body; status, parsed answer, headers."""
    async with served.http.post(f"{served.url}{path}", json=body, **kwargs) as response:
        return response.status, await response.json(), response.headers.copy()


async def send_raw(
    served: "Front",
    path: str,
    body: dict[str, Any],
    *,
    headers: bytes = b"",
    tls: ssl.SSLContext | None = None,
) -> asyncio.StreamWriter:
    """A request on a connection of its own, which the test can cut at any time."""
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port, ssl=tls)
    writer.reader = reader  # type: ignore[attr-defined]  # keep it alive with the writer
    raw = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Content-Length: {len(raw)}\r\n".encode() + headers + b"\r\n" + raw)
    await writer.drain()
    return writer


async def soon(event: asyncio.Event) -> None:
    """Await what must happen by itself; a hang fails here instead of stopping the suite."""
    async with asyncio.timeout(10):
        await event.wait()

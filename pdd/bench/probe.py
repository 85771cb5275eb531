"""What has to be known of an endpoint before a load: its model, and how it counts tokens."""

import asyncio
import time

from pdd.bench.generator import error_message, verdict
from pdd.bench.http_client import ConnectionPool, Exchange
from pdd.bench.prompts import UNMEASURED, Calibration, Piece, calibration_of
from pdd.bench.samples import Outcome
from pdd.bench.target import BodyMaker, BodyOptions, Target
from pdd.bench.workload import PlannedRequest
from pdd.core.errors import NodeUnavailable, RequestFailed

_TIMEOUT_S = 120.0
_WORDS_SHORT, _WORDS_LONG = 32, 288
_ONE_TO_ONE = Calibration(tokens_per_word=1.0, overhead_tokens=0.0, measured=False)


async def find_model(target: Target) -> str:
    """The first model that ``/v1/models`` lists.

    Raises:
        NodeUnavailable: nobody answers, or it lists none.
    """
    exchange = await _exchange(target, target.request_head("GET", "/v1/models") + b"0\r\n\r\n")
    if exchange.fault:
        raise NodeUnavailable(
            f"{target.url}: {exchange.fault}: {exchange.detail}; start a server ('pdd up') or name "
            "another with --url"
        )
    document = exchange.document()
    try:
        return str(document["data"][0]["id"])
    except (KeyError, IndexError, TypeError) as error:
        raise NodeUnavailable(
            f"{target.url}/v1/models: HTTP {exchange.status}, no model listed; name one with "
            "--model"
        ) from error


async def calibrate(target: Target, options: BodyOptions, *, seed: int) -> Calibration:
    """Send two small requests and see how the server counts their words.

    Raises:
        NodeUnavailable: nobody answers.
        RequestFailed: the server refuses such requests; says why.
    """
    maker = BodyMaker(options, calibration=_ONE_TO_ONE, seed=seed)
    counts = [await _count(target, options, maker, words) for words in (_WORDS_SHORT, _WORDS_LONG)]
    if not all(counts):
        return UNMEASURED
    return calibration_of(
        words_short=_WORDS_SHORT,
        tokens_short=counts[0],
        words_long=_WORDS_LONG,
        tokens_long=counts[1],
    )


async def _count(target: Target, options: BodyOptions, maker: BodyMaker, words: int) -> int:
    request = PlannedRequest(
        index=0, due_s=0.0, shared=(), own=(Piece(words, words),), output_tokens=1
    )
    body = maker.body(request)
    head = target.request_head("POST", options.endpoint.path)
    exchange = await _exchange(target, b"%b%d\r\n\r\n%b" % (head, len(body), body))
    outcome, error, detail = verdict(exchange)
    if outcome is Outcome.OK or error == "no_tokens":  # its one token may have no text
        usage = exchange.reader.usage
        if not exchange.is_stream:
            usage = exchange.document().get("usage") or {}
        return int(usage.get("prompt_tokens") or 0)
    where = f"{target.url}{options.endpoint.path}"
    if exchange.fault:
        raise NodeUnavailable(f"{where}: {error}: {detail}")
    advice = ""
    if exchange.status == 400:
        advice = "; servers that know only OpenAI's own fields want --free-output"
    said = error_message(exchange) if exchange.status != 200 else detail
    raise RequestFailed(f"{where} refuses the first request: {error}: {said}{advice}")


async def _exchange(target: Target, request: bytes) -> Exchange:
    ended: asyncio.Future[Exchange] = asyncio.get_running_loop().create_future()
    pool = ConnectionPool(target, connections_max=1, clock=time.monotonic)
    try:
        await pool.resolve()
    except OSError as error:
        raise NodeUnavailable(f"{target.url}: {error}") from error
    exchange = Exchange(
        request=request, key=None, start_s=time.monotonic(), on_end=ended.set_result
    )
    pool.send(exchange)
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            return await ended
    except TimeoutError as error:
        raise NodeUnavailable(f"{target.url}: no answer within {_TIMEOUT_S:g} s") from error
    finally:
        if not ended.done():
            pool.end_all("timeout")
        pool.close()

"""The generator in this process, against a server that does what each test says."""

import asyncio
import time

import pytest

from pdd.bench.generator import ClosedLoop, Generator, GeneratorSpec, compare
from pdd.bench.http_client import ConnectionPool
from pdd.bench.prompts import Calibration, Piece
from pdd.bench.samples import Outcome
from pdd.bench.target import BodyOptions, Endpoint, Target
from pdd.bench.workload import PlannedRequest, Shape
from tests.unit.bench import scripted_server as scripted
from tests.unit.bench.scripted_server import DONE, stream, tokens, usage, whole

ONE_TO_ONE = Calibration(tokens_per_word=1.0, overhead_tokens=0.0, measured=True)
ONE_CLIENT = ClosedLoop(clients=1, shape=Shape(input_tokens=5, output_tokens=2))
WELL = stream(tokens(" a", " b") + usage(completion_tokens=2, prompt_tokens=5) + DONE)


def planned(*due_s, persona=-1):
    return tuple(
        PlannedRequest(
            index=index,
            due_s=due,
            shared=(),
            own=(Piece(index, 5),),
            output_tokens=2,
            persona=persona,
        )
        for index, due in enumerate(due_s)
    )


def spec(port, **options):
    defaults = {
        "target": Target(host="127.0.0.1", port=port),
        "body": BodyOptions(endpoint=Endpoint.COMPLETIONS, model="m"),
        "calibration": ONE_TO_ONE,
        "seed": 1,
        "planned": planned(0.0) if options.get("closed") is None else (),
        "timeout_s": 30.0,
        "grace_s": 30.0,
    }
    return GeneratorSpec(**(defaults | options))


async def run(port, **options):
    generator = Generator(spec(port, **options), clock=time.monotonic)
    await generator.prepare()
    await generator.run(origin_s=time.monotonic())
    generator.samples.sort(key=lambda sample: sample.index)
    return generator


def always(data, *, keep=True):
    async def answer(_asked, writer):
        writer.write(data)
        await writer.drain()
        return keep

    return answer


async def outcome_of(data, *, keep=True, **options):
    async with scripted.scripted_server(always(data, keep=keep)) as server:
        [sample] = (await run(server.port, **options)).samples
    return sample


async def test_a_stream_is_counted_with_its_usage_and_id():
    costs = {"queue_ms": 1, "prefill_ms": 2, "transfer_ms": 3, "decode_ms": 4}
    told = usage(
        completion_tokens=3,
        prompt_tokens=9,
        prompt_tokens_details={"cached_tokens": 4},
        pdd=costs,
    )
    data = tokens(" a", " b", " c") + told + DONE
    sample = await outcome_of(stream(data, x_request_id="r0", x_pdd_request_id="r1"))
    assert sample.outcome is Outcome.OK
    assert len(sample.event_times_s) == 3
    assert (sample.output_tokens, sample.prompt_tokens, sample.cached_tokens) == (3, 9, 4)
    assert sample.stages_ms == (1, 2, 3, 4)
    assert sample.request_id == "r1"
    assert 0 <= sample.sent_s <= sample.event_times_s[0] <= sample.end_s


async def test_a_whole_answer_has_one_event_at_its_end():
    document = {"choices": [{"text": " a"}], "usage": {"completion_tokens": 1}}
    sample = await outcome_of(whole(document))
    assert sample.outcome is Outcome.OK
    assert list(sample.event_times_s) == [sample.end_s]
    assert sample.output_tokens == 1


@pytest.mark.parametrize(
    ("data", "keep", "outcome", "error"),
    [
        (whole({"error": {"message": "full"}}, "429 Too Many"), True, Outcome.REJECTED, "http_429"),
        (whole({"error": {"message": "none"}}, "503 Gone"), True, Outcome.REJECTED, "http_503"),
        (whole({}, "500 Oh"), True, Outcome.FAILED, "http_500"),
        (whole({}, "404 No"), True, Outcome.FAILED, "http_404"),
        (stream(scripted.event({"error": {"message": "x"}})), True, Outcome.FAILED, "error_event"),
        (stream(b"data: {\n\n" + DONE), True, Outcome.FAILED, "bad_event"),
        (stream(tokens(" a")), True, Outcome.FAILED, "no_done"),
        (stream(DONE), True, Outcome.FAILED, "no_tokens"),
        (b"nonsense\r\n\r\n", False, Outcome.FAILED, "bad_http"),
        (scripted.head(Content_Length="99") + tokens(" a"), False, Outcome.FAILED, "disconnected"),
        (b"", False, Outcome.FAILED, "disconnected"),
        (
            scripted.head(kind="application/json", Content_Length="3") + b"{a}",
            True,
            Outcome.FAILED,
            "bad_json",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
async def test_each_way_to_fail_has_its_class(data, keep, outcome, error):
    sample = await outcome_of(data, keep=keep)
    assert (sample.outcome, sample.error) == (outcome, error)


async def test_the_servers_words_are_kept_as_an_example():
    sample = await outcome_of(whole({"error": {"message": "queue is full"}}, "429 Too Many"))
    assert sample.detail == "queue is full"


async def test_an_answer_that_ends_with_its_connection_is_whole_only_with_done():
    data = scripted.head() + tokens(" a") + usage(completion_tokens=1) + DONE
    assert (await outcome_of(data, keep=False)).outcome is Outcome.OK
    cut = scripted.head() + tokens(" a")
    assert (await outcome_of(cut, keep=False)).error == "disconnected"


async def test_nobody_listening_is_a_connect_error():
    async with scripted.scripted_server(always(WELL)) as server:
        port = server.port
    [sample] = (await run(port)).samples
    assert (sample.outcome, sample.error) == (Outcome.FAILED, "connect")


async def test_a_silent_server_times_out():
    gone = asyncio.Event()

    async def answer(_asked, _writer):
        await gone.wait()
        return False

    async with scripted.scripted_server(answer) as server:
        [sample] = (await run(server.port, timeout_s=0.3)).samples
        gone.set()
    assert sample.error == "timeout"


async def test_what_is_open_when_the_grace_is_over_is_unfinished():
    gone = asyncio.Event()

    async def answer(asked, writer):
        writer.write(scripted.head() + tokens(" a"))
        await gone.wait()
        return False

    async with scripted.scripted_server(answer) as server:
        [sample] = (await run(server.port, grace_s=0.2)).samples
        gone.set()
    assert sample.error == "unfinished"
    assert len(sample.event_times_s) == 1


async def test_a_closed_loop_whose_requests_all_hang_ends_with_the_grace_too():
    gone = asyncio.Event()

    async def answer(_asked, _writer):
        await gone.wait()
        return False

    closed = ClosedLoop(clients=2, shape=Shape(input_tokens=5, output_tokens=2))
    async with scripted.scripted_server(answer) as server:
        generator = await run(
            server.port, closed=closed, request_count=9, duration_s=0.2, grace_s=0.2, timeout_s=20.0
        )
        gone.set()
    assert [sample.error for sample in generator.samples] == ["unfinished"] * 2


async def test_a_fault_of_our_own_while_connecting_ends_the_run(monkeypatch):
    async def broken(_pool, _exchange):
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(ConnectionPool, "_open", broken)
    async with asyncio.timeout(10):
        with pytest.raises(ZeroDivisionError, match="a bug"):
            await run(1)


async def test_a_connection_is_used_again_and_a_closed_one_replaced_once():
    async def answer(asked, writer):
        if asked.connection == 0 and len(server.asked) == 2:
            return False  # closed just as the second request arrives
        writer.write(WELL)
        return True

    async with scripted.scripted_server(answer) as server:
        generator = await run(server.port, closed=ONE_CLIENT, request_count=4)
    assert [sample.outcome for sample in generator.samples] == [Outcome.OK] * 4
    assert server.connections == 2
    assert [asked.connection for asked in server.asked] == [0, 0, 1, 1, 1]


async def test_an_open_loop_does_not_wait_for_a_slow_server():
    released = asyncio.Event()

    async def answer(_asked, writer):
        if len(server.asked) == 5:
            released.set()  # only when all are there at once
        await released.wait()
        writer.write(WELL)
        return True

    async with scripted.scripted_server(answer) as server:
        generator = await run(server.port, planned=planned(0, 0, 0.01, 0.02, 0.03))
    assert [sample.outcome for sample in generator.samples] == [Outcome.OK] * 5
    assert [sample.due_s for sample in generator.samples] == [0, 0, 0.01, 0.02, 0.03]
    assert len(generator.lateness_s) == 5


async def test_a_closed_loop_never_has_more_requests_open_than_clients():
    open_now, most = 0, 0

    async def answer(_asked, writer):
        nonlocal open_now, most
        open_now += 1
        most = max(most, open_now)
        await asyncio.sleep(0)
        open_now -= 1
        writer.write(WELL)
        return True

    closed = ClosedLoop(clients=3, shape=Shape(input_tokens=5, output_tokens=2))
    async with scripted.scripted_server(answer) as server:
        generator = await run(server.port, closed=closed, request_count=30)
    assert [sample.index for sample in generator.samples] == list(range(30))
    assert most <= 3
    assert server.connections == 3


async def test_a_closed_loop_goes_on_after_refusals():
    async def answer(asked, writer):
        writer.write(WELL if len(server.asked) > 2 else whole({}, "429 Full"))
        return True

    async with scripted.scripted_server(answer) as server:
        generator = await run(server.port, closed=ONE_CLIENT, request_count=4)
    assert [sample.outcome for sample in generator.samples] == [
        *[Outcome.REJECTED] * 2,
        *[Outcome.OK] * 2,
    ]


async def test_a_closed_loop_can_take_its_requests_from_a_list():
    async with scripted.scripted_server(always(WELL)) as server:
        generator = await run(
            server.port, closed=ClosedLoop(clients=2), planned=planned(0, 5000.0, 9000.0)
        )
    assert len(generator.samples) == 3


async def test_requests_beyond_the_connections_wait_and_are_counted():
    async with scripted.scripted_server(always(WELL)) as server:
        generator = await run(server.port, planned=planned(*[0.0] * 6), connections_max=2)
    assert [sample.outcome for sample in generator.samples] == [Outcome.OK] * 6
    assert server.connections == 2
    assert generator.waited_count == 4


async def test_stopping_drops_what_is_open_and_keeps_what_has_ended():
    second_is_open = asyncio.Event()

    async def answer(asked, writer):
        if len(server.asked) == 1:
            writer.write(WELL)
            return True
        second_is_open.set()
        await asyncio.Event().wait()
        return False

    async with scripted.scripted_server(answer) as server:
        generator = Generator(
            spec(server.port, planned=planned(0.0, 0.05, 1000.0)), clock=time.monotonic
        )
        await generator.prepare()
        running = asyncio.create_task(generator.run(origin_s=time.monotonic()))
        await second_is_open.wait()
        generator.stop()
        await running
    assert [sample.index for sample in generator.samples] == [0]
    assert generator.cut_off_count == 1


async def test_answers_are_compared_with_what_was_expected():
    async with scripted.scripted_server(always(WELL)) as server:
        good = await run(server.port, planned=planned(0.0, persona=0), expected={0: (" a", " b")})
        bad = await run(
            server.port, planned=planned(0.0, persona=0), expected={0: (" a", " x", " b")}
        )
    assert (good.samples[0].tokens_lost, good.samples[0].tokens_doubled) == (0, 0)
    assert (bad.samples[0].tokens_lost, bad.samples[0].tokens_doubled) == (1, 0)


@pytest.mark.parametrize(
    ("texts", "lost", "doubled"),
    [
        ("abcd", 0, 0),
        ("abd", 1, 0),
        ("abbcd", 0, 1),
        ("", 4, 0),
        ("abxd", 1, 1),
        ("abcdabcd", 0, 4),
    ],
)
def test_lost_and_doubled_tokens_are_counted(texts, lost, doubled):
    assert compare(list(texts), list("abcd")) == (lost, doubled)


async def test_the_same_seed_sends_the_same_bodies():
    bodies = []
    for _ in range(2):
        async with scripted.scripted_server(always(WELL)) as server:
            await run(server.port, planned=planned(0.0, 0.0, 0.0))
        bodies.append(sorted(str(asked.body) for asked in server.asked))
    assert bodies[0] == bodies[1]
    assert len(set(bodies[0])) == 3


def test_processes_share_a_run_without_loss():
    one = spec(1, planned=planned(*range(10)))
    parts = [one.share(index, 3) for index in range(3)]
    assert sorted(r.index for part in parts for r in part.planned) == list(range(10))
    closed = spec(1, closed=ClosedLoop(clients=5), request_count=11)
    parts = [closed.share(index, 3) for index in range(3)]
    assert sum(part.closed.clients for part in parts) == 5
    assert sum(part.request_count for part in parts) == 11

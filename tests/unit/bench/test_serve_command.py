"""``pdd bench serve`` whole: processes, probe, report and picture, against a trivial server."""

import asyncio
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pdd.bench import serve as serve_module
from pdd.bench.ceiling import ceiling_server, measure_ceiling
from pdd.bench.probe import calibrate, find_model
from pdd.bench.report import warnings
from pdd.bench.target import BodyOptions, Endpoint, Target
from pdd.bench.workers import GeneratorReport, clock_of
from pdd.cli.main import main
from pdd.core.errors import NodeUnavailable, RequestFailed
from tests.unit.bench import scripted_server as scripted

ROOT = Path(__file__).parents[3]
SERVE = ("bench", "serve", "--model", "m", "--no-ceiling")


@pytest.fixture(scope="module")
def server():
    with ceiling_server() as port:
        yield f"http://127.0.0.1:{port}"


def serve(server, *arguments):
    return main(
        [
            "bench",
            "serve",
            "--url",
            server,
            "--model",
            "m",
            "--no-ceiling",
            "-o",
            "json",
            *arguments,
        ]
    )


def test_an_open_loop_over_two_processes_is_reported_in_the_documented_keys(
    server, capsys, tmp_path
):
    picture = tmp_path / "run.svg"
    code = serve(
        server,
        *("--rate", "60", "--duration", "1", "--processes", "2", "--preset", "chat-replies"),
        *("--output-tokens", "5", "--seed", "7", "--picture", str(picture)),
    )
    captured = capsys.readouterr()
    assert code == 0
    document = json.loads(captured.out)
    assert set(document) == {
        *("schema_version", "load", "duration_s", "interrupted", "sent", "completed", "rejected"),
        *("failed", "errors", "requests_per_s", "tokens_per_s", "tokens", "percentiles"),
        *("goodput", "stages_ms", "personas", "generator"),
    }
    sent = document["sent"]
    assert 30 < sent < 100
    assert document["completed"] == sent
    assert document["tokens"]["output"] == 5 * sent
    assert document["percentiles"]["itl_ms"]["count"] == 4 * sent
    assert document["percentiles"]["ttft_ms"]["count"] == sent
    assert document["goodput"]["all_slos"]["of"] == sent
    assert document["generator"]["processes"] == 2
    assert "seed 7" in captured.err
    assert picture.read_text().startswith("<?xml")
    assert serve(server, "--rate", "60", "--duration", "1", "--seed", "7") == 0
    again = json.loads(capsys.readouterr().out)
    assert again["sent"] == sent  # arrivals follow from the seed, whatever else is asked


def test_a_closed_loop_prints_a_table(server, capsys):
    code = main(
        [
            *(*SERVE, "--url", server),
            *("--concurrency", "2", "--requests", "6", "--endpoint", "completions"),
        ]
    )
    out = capsys.readouterr().out
    assert code == 0
    assert "6 sent in" in out
    assert "token_deadlines" in out


def test_a_load_of_which_nothing_was_completed_is_a_failure(server, capsys, monkeypatch):
    run_serve = serve_module.run_serve

    def run_badly(options, **how):
        document, interrupted = run_serve(options, **how)
        return {**document, "completed": 0}, interrupted

    monkeypatch.setattr(serve_module, "run_serve", run_badly)
    assert serve(server, "--requests", "2", "--rate", "50") == 1
    captured = capsys.readouterr()
    assert json.loads(captured.out)["completed"] == 0
    assert "--input-tokens" in captured.err


def test_a_trace_is_replayed_with_its_lengths(server, capsys, tmp_path):
    trace = tmp_path / "trace.jsonl"
    lines = [
        {"timestamp": 100 * n, "input_length": 600, "output_length": n + 1, "hash_ids": [1, n + 2]}
        for n in range(4)
    ]
    trace.write_text("\n".join(map(json.dumps, lines)))
    assert serve(server, "--trace", str(trace), "--trace-speed", "10") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["tokens"]["output"] == 1 + 2 + 3 + 4
    assert document["load"]["trace"] == "trace.jsonl"


def test_ctrl_c_ends_the_load_and_prints_what_there_is(server):
    """In a process of its own, which gets the signal that a terminal would send."""
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "pdd.cli.main", *SERVE, "--url", server),
            *("--rate", "50", "--duration", "600", "-o", "json"),
        ],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        for line in process.stderr:
            if "the load begins" in line:
                break
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130
    assert json.loads(out)["interrupted"] is True


def test_the_generators_own_ceiling_is_measured():
    found = measure_ceiling(process_count=1, streams=8, seconds=0.3)
    assert 0 < found.tokens_per_s <= found.reached_tokens_per_s
    assert found.cpu_us_per_token > 0


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--rate", "1", "--concurrency", "2"), 2, "--rate and --concurrency cannot be combined"),
        (("--rate", "0"), 2, "0.0 is not in the range x>0"),
        (("--url", "file:///x"), 2, "is no URL; write http://host:port"),
        (("--trace", "/nowhere/trace"), 2, "--trace /nowhere/trace: "),
        (("--picture", "x.gif"), 2, "x.gif: pictures end in .png, .svg, .pdf"),
        (("--picture", "/nowhere/x.png"), 2, "there is no folder /nowhere"),
        (("--extra-body", "{"), 2, "--extra-body is no JSON"),
        (("--extra-body", "[]"), 2, "--extra-body must be a JSON object"),
        (
            ("--input-tokens", "5", "--shared-tokens", "6"),
            2,
            "--shared-tokens 6 is more than the 5",
        ),
        (("--url", "http://127.0.0.1:1"), 1, "127.0.0.1:1: connect"),
    ],
)
def test_what_cannot_work_is_said_before_anything_starts(arguments, code, message, capsys):
    assert main(["bench", "serve", "--no-ceiling", *arguments]) == code
    assert message in capsys.readouterr().err


# --- the probe -------------------------------------------------------------------------------


def probe(answer, ask):
    async def run():
        async with scripted.scripted_server(answer) as found:
            return await ask(Target(host="127.0.0.1", port=found.port))

    return asyncio.run(run())


OPTIONS = BodyOptions(endpoint=Endpoint.COMPLETIONS, model="m")


def test_the_first_listed_model_is_taken():
    async def answer(asked, writer):
        assert asked.head.startswith("GET /v1/models ")
        writer.write(scripted.whole({"data": [{"id": "one"}, {"id": "two"}]}))
        return True

    assert probe(answer, find_model) == "one"


def test_a_server_without_models_is_told():
    async def answer(_asked, writer):
        writer.write(scripted.whole({"data": []}))
        return True

    with pytest.raises(NodeUnavailable, match="no model listed; name one with --model"):
        probe(answer, find_model)


def test_the_server_is_asked_how_it_counts():
    async def answer(asked, writer):
        words = len(asked.body["prompt"].split(" "))
        told = scripted.usage(prompt_tokens=words * 3 // 2 + 10, completion_tokens=1)
        writer.write(scripted.stream(scripted.tokens(" a") + told + scripted.DONE))
        return True

    found = probe(answer, lambda target: calibrate(target, OPTIONS, seed=1))
    assert (found.tokens_per_word, found.overhead_tokens, found.measured) == (1.5, 10.0, True)


def test_a_server_without_usage_is_estimated():
    async def answer(_asked, writer):
        writer.write(scripted.stream(scripted.tokens(" a") + scripted.DONE))
        return True

    assert not probe(answer, lambda target: calibrate(target, OPTIONS, seed=1)).measured


def test_a_refusal_of_the_first_request_says_why_and_what_to_try():
    async def answer(_asked, writer):
        error = {"error": {"message": "min_tokens: not a known field"}}
        writer.write(scripted.whole(error, "400 Bad Request"))
        return True

    with pytest.raises(RequestFailed, match=r"min_tokens: not a known field; .*--free-output"):
        probe(answer, lambda target: calibrate(target, OPTIONS, seed=1))


# --- warnings --------------------------------------------------------------------------------


def generator_report(**fields):
    calm = {"count": 9, "p99": 0.5}
    defaults = {
        "processes": 1,
        "cpu_s": 1.0,
        "busiest_cpu_fraction": 0.2,
        "cpu_us_per_token": 5.0,
        "lateness_ms": calm,
        "loop_lag_ms": calm,
        "waited_for_connection": 0,
        "cut_off": 0,
        "arrival_clock": "kernel",
        "reads": 100,
        "unstamped_reads": 0,
        "clock_steps": 0,
    }
    return GeneratorReport(**(defaults | fields))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, None),
        ({"lateness_ms": {"count": 9, "p99": 9.0}}, "left 9 ms late"),
        (
            {
                "loop_lag_ms": {"count": 9, "p99": 9.0},
                "arrival_clock": "read",
                "unstamped_reads": 100,
            },
            "stood still for 9 ms or longer in 1 % of its turns, and the kernel told no time for "
            "100 of 100 reads",
        ),
        ({"loop_lag_ms": {"count": 9, "p99": 9.0}}, None),
        ({"clock_steps": 2}, "time of day was set 2 times"),
        ({"busiest_cpu_fraction": 0.9}, "90% of a core"),
        ({"waited_for_connection": 3}, "3 requests waited"),
    ],
)
def test_a_generator_that_measures_itself_says_so(fields, words):
    said = warnings(generator_report(**fields), None, events_per_s=1.0)
    assert [words in one for one in said] == ([] if words is None else [True])


@pytest.mark.parametrize(
    ("reads", "unstamped_reads", "clock"),
    [(0, 0, "read"), (1, 1, "read"), (1000, 11, "read"), (1000, 10, "kernel"), (1, 0, "kernel")],
)
def test_the_kernel_is_named_only_where_it_has_said_when_bytes_came(reads, unstamped_reads, clock):
    assert clock_of(reads=reads, unstamped_reads=unstamped_reads) == clock

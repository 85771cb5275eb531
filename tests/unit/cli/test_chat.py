"""``pdd chat`` against a small server."""

import io
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from pdd.cli.main import main


def delta(text: str) -> str:
    return "data: " + json.dumps({"choices": [{"delta": {"content": text}}]}) + "\n\n"


@pytest.fixture
def server():
    """Answers every chat with ``reply``; remembers request bodies."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.answer(200, json.dumps({"data": [{"id": "smol"}]}), "application/json")

        def do_POST(self):
            length = int(self.headers["Content-Length"])
            served.bodies.append((self.path, json.loads(self.rfile.read(length))))
            self.answer(served.status, served.reply, "text/event-stream")

        def answer(self, status: int, text: str, kind: str) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None:
            pass

    served = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    served.bodies, served.status, served.reply = [], 200, ""
    served.url = f"http://127.0.0.1:{served.server_port}"
    thread = threading.Thread(target=served.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield served
    served.shutdown()
    thread.join()
    served.server_close()


def test_answer_is_printed_and_the_request_says_what_was_asked(server, capsys):
    server.reply = delta("Hel") + delta("lo") + "data: [DONE]\n\n"
    arguments = ["--system", "be kind", "--max-tokens", "5", "--temperature", "0", "--seed", "3"]
    assert main(["chat", "hi there", "--url", server.url + "/v1/", *arguments]) == 0
    assert capsys.readouterr().out == "Hello\n"
    assert server.bodies == [
        (
            "/v1/chat/completions",
            {
                "model": "smol",
                "messages": [
                    {"role": "system", "content": "be kind"},
                    {"role": "user", "content": "hi there"},
                ],
                "stream": True,
                "max_tokens": 5,
                "temperature": 0.0,
                "seed": 3,
            },
        )
    ]


@pytest.mark.parametrize("arguments", [[], ["-"]])
def test_prompt_comes_from_stdin_when_it_is_not_given(server, capsys, monkeypatch, arguments):
    server.reply = "data: [DONE]\n\n"
    monkeypatch.setattr("sys.stdin", io.StringIO("from a pipe\n"))
    assert main(["chat", *arguments, "--url", server.url]) == 0
    assert server.bodies[0][1]["messages"] == [{"role": "user", "content": "from a pipe\n"}]


def test_error_event_ends_with_code_1_after_what_was_said(server, capsys):
    server.reply = delta("so far") + 'data: {"error": {"message": "node lost"}}\n\n'
    assert main(["chat", "hi", "--url", server.url]) == 1
    out, err = capsys.readouterr()
    assert (out, err) == ("so far\n", "error: node lost\n")


def test_stream_without_an_end_is_an_error(server, capsys):
    server.reply = delta("so far")
    assert main(["chat", "hi", "--url", server.url]) == 1
    assert "ended without [DONE]" in capsys.readouterr().err


def test_refusal_shows_the_servers_message(server, capsys):
    server.status, server.reply = 400, '{"error": {"message": "temperature: at most 2 (got 9)"}}'
    assert main(["chat", "hi", "--url", server.url, "--temperature", "9"]) == 1
    assert capsys.readouterr().err == "error: HTTP 400: temperature: at most 2 (got 9)\n"


def test_nobody_there_is_an_error_that_names_the_url(capsys):
    assert main(["chat", "hi", "--url", "http://127.0.0.1:1"]) == 1
    assert "nobody serves at http://127.0.0.1:1" in capsys.readouterr().err

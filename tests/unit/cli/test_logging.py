"""Log events as lines."""

import io
import json
import logging

import pytest
import structlog

from pdd.config.sections import LogFormat, LogLevel, LogSection
from pdd.telemetry.logging import configure_logging


@pytest.fixture(autouse=True)
def _restore():
    root = logging.getLogger()
    before = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = before
    logging.captureWarnings(capture=False)
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()


def lines(stream: io.StringIO) -> list[dict]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_away_from_a_terminal_an_event_is_one_json_line_with_what_was_bound():
    stream = io.StringIO()
    configure_logging(LogSection(), stream=stream, node="decode-0", role="decode")
    structlog.get_logger("pdd.x").info("kv_transfer_completed", block_count=118)
    (event,) = lines(stream)
    assert event.pop("timestamp").endswith("Z")
    assert event == {
        "event": "kv_transfer_completed",
        "block_count": 118,
        "level": "info",
        "logger": "pdd.x",
        "node": "decode-0",
        "role": "decode",
    }


def test_libraries_log_the_same_way():
    stream = io.StringIO()
    configure_logging(LogSection(), stream=stream, node="n")
    logging.getLogger("library").warning("%d things", 3)
    (event,) = lines(stream)
    assert (event["event"], event["logger"], event["node"]) == ("3 things", "library", "n")


def test_an_exception_stays_on_one_line():
    stream = io.StringIO()
    configure_logging(LogSection(), stream=stream)
    try:
        int("broken")
    except ValueError:
        structlog.get_logger("x").exception("step_failed")
    (event,) = lines(stream)
    assert event["exception"].splitlines()[-1].startswith("ValueError: ")


def test_less_severe_events_are_left_out():
    stream = io.StringIO()
    configure_logging(LogSection(level=LogLevel.WARNING), stream=stream)
    structlog.get_logger("x").info("quiet")
    structlog.get_logger("x").warning("loud")
    assert [event["event"] for event in lines(stream)] == ["loud"]


def test_console_format_is_for_people():
    stream = io.StringIO()
    configure_logging(LogSection(format=LogFormat.CONSOLE), stream=stream, node="n")
    structlog.get_logger("x").info("node_joined", count=2)
    assert "node_joined" in stream.getvalue()
    assert "count=2" in stream.getvalue()
    assert not stream.getvalue().startswith("{")

"""What all tests of the gateway share."""

import asyncio
from collections.abc import Callable, Iterator

import pytest
import uvloop
from structlog.testing import capture_logs
from structlog.typing import EventDict


@pytest.fixture(autouse=True)
def logs() -> Iterator[list[EventDict]]:
    """Log events as values: rendering a traceback for a terminal takes seconds."""
    with capture_logs() as captured:
        yield captured


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loop that the daemon runs on: its transports write, pause and close in their own way."""
    return {"uvloop": uvloop.new_event_loop}

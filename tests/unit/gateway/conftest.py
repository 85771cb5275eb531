"""What all tests of the gateway share."""

from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs
from structlog.typing import EventDict


@pytest.fixture(autouse=True)
def logs() -> Iterator[list[EventDict]]:
    """Log events as values: rendering a traceback for a terminal takes seconds."""
    with capture_logs() as captured:
        yield captured

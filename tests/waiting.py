"""Waiting for what announces itself to nobody: another process's state, a counter, a pure machine.

Where there is an event, await it instead.
"""

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Any

PATIENCE_S = 60.0
"""Longest wait for anything. Not a claim about speed: a machine may be busy."""

NEAR_PAUSE_S = 0.002
"""Between two looks at something in this process."""

FAR_PAUSE_S = 0.02
"""Between two looks at another process."""

What = str | Callable[[], object]
"""What is waited for, or a function that also tells what there is instead."""


async def until(look: Callable[[], Any], what: What = "", *, within_s: float = PATIENCE_S) -> Any:
    """Look again and again; the first answer that is true. ``look`` may be a coroutine function.

    Raises:
        AssertionError: none was. Names ``what``, or else the code that looked.
    """
    end_s = time.monotonic() + within_s
    while True:
        seen = look()
        is_near = not inspect.isawaitable(seen)
        if not is_near:
            seen = await seen
        if seen:
            return seen
        assert time.monotonic() < end_s, _in_vain(look, what, within_s)
        await asyncio.sleep(NEAR_PAUSE_S if is_near else FAR_PAUSE_S)


def wait_until(look: Callable[[], Any], what: What = "", *, within_s: float = PATIENCE_S) -> Any:
    """The same, for tests without a loop."""
    end_s = time.monotonic() + within_s
    while not (seen := look()):
        assert time.monotonic() < end_s, _in_vain(look, what, within_s)
        time.sleep(FAR_PAUSE_S)
    return seen


def _in_vain(look: Callable[[], Any], what: What, within_s: float) -> str:
    told = (what if isinstance(what, str) else what()) or inspect.getsource(look).strip()
    return f"waited {within_s:g} s in vain for: {told}"

"""A fixed rhythm of steps. Pure: times in, seconds to wait out.

A step's tokens are due ``step_s`` after those of the step before; what the step itself takes to
compute counts in it, and a timer that was late does not make all later steps late. A step that
missed its time comes at once, and the ones after it count from there: like a GPU, the engine never
makes up for lost time. After a rest the first step takes a whole ``step_s``.
"""


class Pace:
    """One engine's rhythm."""

    def __init__(self, step_s: float) -> None:
        assert step_s > 0
        self._step_s = step_s
        self._due_s: float | None = None

    def rest(self) -> None:
        """There is nothing to do."""
        self._due_s = None

    def wait_s(self, now_s: float) -> float:
        """Seconds until the next step's tokens are due. Call it once per step, before it."""
        due_s = (now_s if self._due_s is None else self._due_s) + self._step_s
        self._due_s = max(due_s, now_s)
        return self._due_s - now_s

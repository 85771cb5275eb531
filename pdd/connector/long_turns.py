"""Which long prompts a prefill node computes at once, and how much of a step each may take. Pure.

vLLM gives a step's tokens to what runs before it looks at what waits, and its own bound on a long
prompt's chunk (``long_prefill_token_threshold``) counts for each prompt, not for all: four of them
take every step until one ends, however short those are that wait. So long prompts take turns:

::

    offered ──short──────────────────────────► begins at once, behind nobody
       └─────long──► held ──its turn, room───► begins ──► computed, paused, ... ──► done
                       └──aborted────────────► forgotten

* *Short* is what has at most a fourth of a step left to compute, cached tokens left out.
* Of the held prompts the one with the smallest *claim* is next: its own tokens, plus those of all
  long prompts that had been let in when it came. So the shortest goes first, and each one that is
  let in ages those that wait by its length: whoever comes after as many tokens as a prompt has
  were let in does not overtake it.
* The next one begins when those before it leave room in a step: a fourth of it while short prompts
  come, else all of it. One that is a fourth of what is left of the shortest before it need not wait
  for that (a medium prompt behind a very long one), up to ``AT_ONCE_MAX``.
* A step that computes short prompts pauses long ones, ``PAUSED_STEPS_MAX`` steps in a row at most.
  Then they take a fourth of a step each, as they do between short prompts, so that those that come
  next do not wait long for the step that runs. When none has come for ``SHORT_MEMORY_STEPS``, or
  nothing was left to compute meanwhile, long ones have the whole step.

Who calls: ``scheduler_side``, from the hooks of vLLM's scheduler. It asks ``may_begin`` for each
waiting prompt in each step that has tokens left, in vLLM's order (priority, arrival). A held prompt
is thus among vLLM's waiting requests: counted, aborted and timed out there, without blocks.

Bound: one entry for each prefill job that vLLM has and that has prompt left.
"""

from collections.abc import Iterator
from dataclasses import dataclass

SHARE = 4
"""A long prompt's part of a step is one in so many while short prompts come; what is longer is
long. A prompt of which no more than this part of another is left goes beside it."""
AT_ONCE_MAX = 3
"""Long prompts that are computed beside each other because each is much shorter than the last."""
LOADING_MAX = 2
"""Long prompts whose prefix is on its way from another node: they hold blocks and compute nothing
meanwhile, so the next one may begin."""
PAUSED_STEPS_MAX = 3
"""So long prompts have a sixteenth of each step at least: a fourth of every fourth one."""
SHORT_MEMORY_STEPS = 32
"""So many steps after the last short prompt another one is expected no more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLimits:
    """Of the next step.

    ``step_tokens``: most tokens in all. ``chunk_tokens``: most of one prompt, while there are
    several requests; 0: as many as there is room for. ``pauses``: long prompts that have begun are
    left out.
    """

    step_tokens: int
    chunk_tokens: int
    pauses: bool


@dataclass(slots=True, kw_only=True)
class _Prompt:
    remaining: int
    aged_from: int  # tokens of long prompts let in before it came
    priority: int
    is_asked: bool = False
    is_long: bool = False
    has_begun: bool = False
    is_loading: bool = False

    @property
    def order(self) -> tuple[int, int]:
        return self.priority, self.aged_from + self.remaining


class LongTurns:
    """Of one engine. Keys are engine request ids."""

    def __init__(self, *, step_tokens: int) -> None:
        """``step_tokens``: the most that a step computes (``max_num_batched_tokens``)."""
        self._step_tokens = step_tokens
        self._share = max(step_tokens // SHARE, 1)
        self._prompts: dict[str, _Prompt] = {}
        self._let_in: dict[str, None] = {}  # in this step, whether vLLM finds room or not
        self._let_in_tokens = 0
        self._steps_since_short = SHORT_MEMORY_STEPS
        self._has_short_moved = False  # one has come, or was computed, since the last step but one
        self._is_short_moving = False
        self._paused_steps = 0
        self._next: str | None = None
        self._is_next_known = False

    # --- events ------------------------------------------------------------------------------

    def offered(self, key: str, token_count: int, *, priority: int = 0) -> None:
        """A prompt has come. ``priority``: lower goes first, as in vLLM."""
        self._prompts[key] = _Prompt(
            remaining=token_count, aged_from=self._let_in_tokens, priority=priority
        )
        if token_count <= self._share:
            self._steps_since_short = 0
            self._has_short_moved = True
        self._is_next_known = False

    def loading(self, key: str) -> None:
        """Its blocks are held, and a peer fills some of them first."""
        prompt = self._prompts.get(key)
        if prompt is not None:
            self._begin(prompt)
            prompt.is_loading = True

    def loaded(self, key: str) -> None:
        """What is still missing is computed from now on."""
        prompt = self._prompts.get(key)
        if prompt is not None:
            prompt.is_loading = False
            self._has_short_moved |= not prompt.is_long

    def computed(self, key: str, remaining: int) -> None:
        """A step computes some of it; so much is left then. More than before: it had lost its
        blocks."""
        prompt = self._prompts.get(key)
        if prompt is None:
            return
        self._begin(prompt)
        self._is_short_moving |= not prompt.is_long
        prompt.remaining = remaining
        prompt.is_loading = False
        if remaining <= 0:
            self.ended(key)

    def ended(self, key: str) -> None:
        """Computed or aborted. Unknown keys are ignored."""
        self._prompts.pop(key, None)
        self._let_in.pop(key, None)
        self._is_next_known = False
        if not self._prompts:  # an idle engine takes no steps, so it would never forget
            self._steps_since_short = SHORT_MEMORY_STEPS

    def step_ended(self, *, paused: bool) -> None:
        """The step is scheduled; the next one is another chance for those whom vLLM had no room
        for. ``paused``: long prompts were left out."""
        self._paused_steps = self._paused_steps + 1 if paused else 0
        self._has_short_moved, self._is_short_moving = self._is_short_moving, False
        self._let_in.clear()
        self._is_next_known = False
        self._steps_since_short += 1

    # --- answers -----------------------------------------------------------------------------

    def may_begin(self, key: str, remaining: int) -> bool:
        """Whether a waiting prompt, of which so much would have to be computed now, may begin in
        this step. False: ask again in the next."""
        prompt = self._prompts.get(key)
        if prompt is None or prompt.has_begun:
            return True  # vLLM took its blocks away, and it is asked about once more
        if not prompt.is_asked or prompt.remaining != remaining:
            prompt.is_asked, prompt.remaining = True, remaining
            self._is_next_known = False
        prompt.is_long = remaining > self._share
        if not prompt.is_long:
            self._steps_since_short = 0
            return True
        if key not in self._let_in:
            if key != self._find_next():
                return False
            self._let_in[key] = None
            self._is_next_known = False
        return True

    def limits(self) -> StepLimits:
        """Of the next step, by what is known now."""
        is_alone = len(self._prompts) == 1  # vLLM would let it have all of the step
        return StepLimits(
            step_tokens=self._share if is_alone and self._expects_short else self._step_tokens,
            chunk_tokens=self._chunk_tokens(),
            pauses=self._has_short_moved
            and self._paused_steps < PAUSED_STEPS_MAX
            and any(self._is_short(prompt) for prompt in self._prompts.values()),
        )

    @property
    def begun_keys(self) -> list[str]:
        """Long prompts that have begun, computed or not."""
        return [key for key, one in self._prompts.items() if one.is_long and one.has_begun]

    @property
    def held_count(self) -> int:
        """Long prompts that wait for their turn."""
        return sum(1 for _ in self._held())

    # --- inside ------------------------------------------------------------------------------

    @property
    def _expects_short(self) -> bool:
        return self._steps_since_short < SHORT_MEMORY_STEPS

    def _is_short(self, prompt: _Prompt) -> bool:
        return not prompt.is_long and prompt.remaining <= self._share

    def _chunk_tokens(self) -> int:
        if self._expects_short:
            return self._share
        if any(not prompt.is_asked for prompt in self._prompts.values()):
            return self._step_tokens // 2  # else vLLM may have no token left to ask about it
        inside = self._inside()
        if not inside or sum(inside) < self._step_tokens:
            return 0
        count = len(inside) + (self._find_next() is not None)
        return self._step_tokens // count if count > 1 else 0

    def _begin(self, prompt: _Prompt) -> None:
        if not prompt.has_begun:
            prompt.has_begun = True
            if prompt.is_long:
                self._let_in_tokens += prompt.remaining

    def _held(self) -> Iterator[tuple[str, _Prompt]]:
        for key, prompt in self._prompts.items():
            if prompt.is_long and not prompt.has_begun and key not in self._let_in:
                yield key, prompt

    def _inside(self) -> list[int]:
        """What is left of each long prompt that is being computed."""
        return [
            prompt.remaining
            for key, prompt in self._prompts.items()
            if prompt.is_long
            and not prompt.is_loading
            and (prompt.has_begun or key in self._let_in)
        ]

    def _find_next(self) -> str | None:
        if not self._is_next_known:
            self._next, self._is_next_known = self._pick(), True
        return self._next

    def _pick(self) -> str | None:
        loading = sum(prompt.is_loading and prompt.is_long for prompt in self._prompts.values())
        if loading >= LOADING_MAX:
            return None
        inside = self._inside()
        room = self._share if self._expects_short else self._step_tokens
        held = list(self._held())
        if inside and sum(inside) >= room:
            if len(inside) >= AT_ONCE_MAX:
                return None
            least = min(inside)
            held = [(key, one) for key, one in held if one.remaining * SHARE <= least]
        return min(held, key=lambda item: item[1].order, default=(None, None))[0]

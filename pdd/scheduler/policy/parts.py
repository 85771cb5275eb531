"""What looks at the numbers of all nodes, compiled: filters, scorers, and what runs them.

    table   (row, node), what is known of each node; a question's own copy of ``Pools.table``
    asked   (number,), what one request asks of the nodes of one role
    limits  (number,), the thresholds of the settings

    fill_in, count_pulls: what the request would cost on each node      ──► rows of the table
    choose: filters in their order, scorers with their weights          ──► what is told, the best

A *filter* says of one node whether it drops it, a *scorer* how good it is from 0 to 1, 1 being the
best. Each is one small function of ``(table, at, asked, limits)``, ``at`` being the node's column.
What one needs to know of all that are left (the quickest of them) ``survey`` has put into
``asked``. Parts have a number each, by which ``drops`` and ``score`` find them; their names, and
what a filter says in words, are in ``filters`` and ``scorers``.

To add a part: write it, give it the next number, and a line in ``drops`` or ``score``; name it in
``filters`` or ``scorers`` and in ``pdd.config``. It is all one file because machine code is only as
new as the file that it is of (``pdd.core.compiled``); so are the numbers that it reads rows by.
"""

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from pdd.core.compiled import compiled

Column: TypeAlias = npt.NDArray[np.float64]
"""``(count,)``; whole numbers are exact up to 2**53."""
Table: TypeAlias = npt.NDArray[np.float64]
"""``(row, node)``."""
Numbers: TypeAlias = npt.NDArray[np.int64]
"""``(count,)``, of parts."""

# Rows of the table. Those below INPUT_COUNT are what a decision rests on; those up to PREFERRED
# depend on the question, as those from PREFILL_PER_S on: 0 before it, but MAY_TAKE is unlimited.
CACHED, REMAINDER, BLOCKS, CLAIM, COMPLETION_S, TRANSFER_S, INBOUND_S, PREFERRED = range(8)
LOAD, UNPROMISED, SEQUENCES = range(8, 11)
INPUT_COUNT = 11
GROWTH, LONG_COUNT, LONG_BLOCKS, QUEUED, WORKED_UNTIL, INBOUND_BYTES = range(11, 17)
USABLE, SEQUENCES_MAX, TOKENS_MAX, BLOCK_TOKENS, BLOCK_BYTES, FORKS, PULLS = range(17, 24)
PREFILL_PER_S, HELD, RESTS, MAY_TAKE, SAVED_S = range(24, 29)
"""Prompt tokens that the node computes per second; leading blocks of the prompt that it is believed
to hold; 1 where its engine has just failed the request; of the room that is kept there for another,
how many blocks it may take; what the time until the prompt is computed is less for what could be
pulled."""
ROW_COUNT = 29

FORKS_NOT, FORKS_APART, FORKS_SHARED = range(3)
"""What several choices share on a node: it runs no several, nothing, the prompt's full blocks."""

# What is asked. GRANTED: output tokens to lease for now; LONGEST: the most that there may be.
# FULL_S: seconds of prompts ahead that are a load of 1. COMPUTED_S: until the prompt's blocks are
# there to be sent. From LOWEST_LOAD on: of those that are left, by ``survey``.
PROMPT, GRANTED, LONGEST, CHOICES, IS_LONG, NOW_S, FULL_S, COMPUTED_S = range(8)
LOWEST_LOAD, QUICKEST_S, NEAREST_S = range(8, 11)
ASKED_COUNT = 11

# Limits: the thresholds of those names in PolicySettings.
SPILL_ABOVE, HEADROOM_FRACTION, LARGE_FRACTION, LARGE_SHARE_FRACTION, INBOUND_FULL_S = range(5)

RESTED, HOLDS_LONGEST, FITS, UNHELD, HEADROOM, LARGE_SHARE, INBOUND, SPILL = range(8)
COMPLETION, AFFINITY, PREFIX, FREE_KV, RUNNING, LINK = range(6)

_FLOOR_S = 0.001
"""Times below a millisecond are as good as equal."""
EQUAL = 1e-9
"""Sums that differ by less are equal."""
_FILTER = "boolean(float64[:, ::1], int64, float64[::1], float64[::1])"
_SCORER = "float64(float64[:, ::1], int64, float64[::1], float64[::1])"


# --- what it would cost ------------------------------------------------------------------------


@compiled("float64(float64[:, ::1], int64, float64[::1], float64)")
def lease_blocks(table: Table, at: int, asked: Column, output_tokens: float) -> float:
    """Blocks of a node for the prompt and each choice's output; as ``Node.choice_blocks``."""
    size, choices = table[BLOCK_TOKENS, at], asked[CHOICES]
    blocks: float = -(-(asked[PROMPT] + output_tokens) // size)
    if choices == 1:
        return blocks
    shared: float = asked[PROMPT] // size if table[FORKS, at] == FORKS_SHARED else 0.0
    return float(shared + choices * (blocks - shared))


@compiled("void(float64[:, ::1], int64, int64, float64[::1], float64[::1])")
def fill_in(table: Table, first: int, count: int, link_per_s: Column, asked: Column) -> None:
    """What the request would cost on each of ``count`` nodes: computing the prompt, blocks to
    lease, load of those that compute prompts, and the transfer of what they lack.

    ``link_per_s``: bytes, from the prompt's node to each; empty where nothing comes over.

    The last position of a prompt is always computed: its logits give the next token. Of the prompts
    ahead, what must be done by now is done, but never less than a tenth is left of them: what is
    not reported is not done. Blocks leave as they are computed: what a link carries until the
    prompt is there holds it up by nothing, however much it is.
    """
    for at in range(first, first + count):
        if table[HELD, at] > 0:
            table[CACHED, at] = min(table[HELD, at] * table[BLOCK_TOKENS, at], asked[PROMPT] - 1)
        table[REMAINDER, at] = asked[PROMPT] - table[CACHED, at]
        queued_s = table[QUEUED, at] / table[PREFILL_PER_S, at]
        worked_s = max(asked[NOW_S] - table[WORKED_UNTIL, at], 0.0)
        ahead_s = max(queued_s - worked_s, 0.1 * queued_s)
        table[COMPLETION_S, at] = table[REMAINDER, at] / table[PREFILL_PER_S, at] + ahead_s
        table[LOAD, at] = max(table[LOAD, at], ahead_s / asked[FULL_S])
        table[BLOCKS, at] = lease_blocks(table, at, asked, asked[GRANTED])
        table[CLAIM, at] = lease_blocks(table, at, asked, asked[LONGEST])
    for number, per_s in enumerate(link_per_s):
        at = first + number
        blocks = -(-table[REMAINDER, at] // table[BLOCK_TOKENS, at])
        table[TRANSFER_S, at] = blocks * table[BLOCK_BYTES, at] / per_s
        table[INBOUND_S, at] = max(table[INBOUND_BYTES, at] / per_s - asked[COMPUTED_S], 0.0)


@compiled("int64(float64[:, ::1], int64, int64)")
def most_held(table: Table, first: int, count: int) -> int:
    """Which of ``count`` nodes holds most of the prompt, and would lend it; -1: none does."""
    best, most = -1, 0.0
    for at in range(first, first + count):
        tokens = table[HELD, at] * table[BLOCK_TOKENS, at] if table[PULLS, at] > 0 else 0.0
        if tokens > most:
            best, most = at, tokens
    return best


@compiled("void(float64[:, ::1], int64, int64, float64[::1], float64[::1], float64, boolean)")
def count_pulls(
    table: Table,
    first: int,
    holder: int,
    link_per_s: Column,
    asked: Column,
    round_trip_s: float,
    always: bool,
) -> None:
    """Count what each node from ``first`` on lacks and ``holder`` holds as pulled, where that is
    sooner than computing it, or ``always``. ``link_per_s``: bytes, from there to each of them.
    ``round_trip_s``: what a pull takes besides."""
    size = table[BLOCK_TOKENS, holder]
    end = min(table[HELD, holder] * size, asked[PROMPT] - 1) // size * size
    for number, per_s in enumerate(link_per_s):
        at = first + number
        missing = end - table[CACHED, at]
        if missing < size or table[PULLS, at] == 0 or table[BLOCK_TOKENS, at] != size:
            continue
        pull_s = round_trip_s + -(-missing // size) * table[BLOCK_BYTES, at] / per_s
        saved_s = missing / table[PREFILL_PER_S, at] - pull_s
        if always or saved_s > 0.0:
            table[SAVED_S, at] = saved_s
            table[COMPLETION_S, at] -= saved_s


# --- filters -----------------------------------------------------------------------------------


@compiled(_FILTER)
def rested(table: Table, at: int, asked: Column, limits: Column) -> bool:
    """An engine that has just failed this request gets a pause from it."""
    return bool(table[RESTS, at] > 0)


@compiled(_FILTER)
def holds_longest(table: Table, at: int, asked: Column, limits: Column) -> bool:
    """A sequence must be able to reach its end where it runs, and all choices to run there."""
    if asked[PROMPT] + asked[LONGEST] > table[TOKENS_MAX, at]:
        return True
    if asked[CHOICES] == 1:
        return False
    forks_not = table[FORKS, at] == FORKS_NOT
    too_many = asked[CHOICES] > table[SEQUENCES_MAX, at] or table[CLAIM, at] > table[USABLE, at]
    return bool(forks_not or too_many)


@compiled(_FILTER)
def fits(table: Table, at: int, asked: Column, limits: Column) -> bool:
    """Blocks and sequences that are promised to others are not there."""
    sequences_after = table[SEQUENCES, at] + asked[CHOICES]
    return bool(
        table[UNPROMISED, at] < table[BLOCKS, at] or sequences_after > table[SEQUENCES_MAX, at]
    )


@compiled(_FILTER)
def unheld(table: Table, at: int, asked: Column, limits: Column) -> bool:
    """Room that is kept for one who waits is not given to others."""
    return bool(table[MAY_TAKE, at] < table[BLOCKS, at])


@compiled(_FILTER)
def headroom(table: Table, at: int, asked: Column, limits: Column) -> bool:
    """Leave room for those that run to grow into, as far as they can grow at all."""
    left = table[UNPROMISED, at] - table[BLOCKS, at]
    growth = table[GROWTH, at] + table[CLAIM, at] - table[BLOCKS, at]
    reserve = min(growth, np.rint(limits[HEADROOM_FRACTION] * table[USABLE, at]))
    return bool(left < reserve and table[SEQUENCES, at] > 0)


@compiled(_FILTER)
def large_share(table: Table, at: int, asked: Column, limits: Column) -> bool:
    """Large and long requests may not take a whole node between them.

    One alone may have what it needs: it could never run otherwise.
    """
    blocks, usable, share = table[BLOCKS, at], table[USABLE, at], limits[LARGE_SHARE_FRACTION]
    is_concerned = asked[IS_LONG] > 0 or blocks > limits[LARGE_FRACTION] * usable
    if table[LONG_COUNT, at] == 0 or not is_concerned:
        return False
    count_max = max(np.floor(share * table[SEQUENCES_MAX, at]), 1.0)
    too_many = table[LONG_COUNT, at] >= count_max
    return bool(too_many or table[LONG_BLOCKS, at] + blocks > np.floor(share * usable))


@compiled(_FILTER)
def inbound(table: Table, at: int, asked: Column, limits: Column) -> bool:
    """Many prefill nodes must not send to one decode node more than its link carries meanwhile."""
    return bool(table[INBOUND_S, at] > limits[INBOUND_FULL_S])


@compiled(_FILTER)
def spill(table: Table, at: int, asked: Column, limits: Column) -> bool:
    """A key whose node is too full goes elsewhere, and comes back when it has room again.

    Only this key: what has no preference for the node is left to the scorers.
    """
    is_full = table[LOAD, at] > limits[SPILL_ABOVE]
    has_choice = asked[LOWEST_LOAD] <= limits[SPILL_ABOVE]
    return bool(table[PREFERRED, at] > 0 and is_full and has_choice)


@compiled("boolean(int64, float64[:, ::1], int64, float64[::1], float64[::1])")
def drops(part: int, table: Table, at: int, asked: Column, limits: Column) -> bool:
    """What the filter of that number says."""
    if part == RESTED:
        return rested(table, at, asked, limits)
    if part == HOLDS_LONGEST:
        return holds_longest(table, at, asked, limits)
    if part == FITS:
        return fits(table, at, asked, limits)
    if part == UNHELD:
        return unheld(table, at, asked, limits)
    if part == HEADROOM:
        return headroom(table, at, asked, limits)
    if part == LARGE_SHARE:
        return large_share(table, at, asked, limits)
    if part == INBOUND:
        return inbound(table, at, asked, limits)
    assert part == SPILL
    return spill(table, at, asked, limits)


# --- scorers -----------------------------------------------------------------------------------


@compiled(_SCORER)
def completion(table: Table, at: int, asked: Column, limits: Column) -> float:
    """Predicted completion of the prompt: the quickest has 1, one that takes twice as long 1/2."""
    return float(asked[QUICKEST_S] / max(table[COMPLETION_S, at], _FLOOR_S))


@compiled(_SCORER)
def affinity(table: Table, at: int, asked: Column, limits: Column) -> float:
    """1 for the node that this prefix, conversation or caller's key prefers, while it has room."""
    has_room = table[LOAD, at] <= limits[SPILL_ABOVE]
    return 1.0 if table[PREFERRED, at] > 0 and has_room else 0.0


@compiled(_SCORER)
def prefix(table: Table, at: int, asked: Column, limits: Column) -> float:
    """The part of the prompt that the node holds already."""
    return float(table[CACHED, at] / max(asked[PROMPT], 1.0))


@compiled(_SCORER)
def free_kv(table: Table, at: int, asked: Column, limits: Column) -> float:
    """The part of the node's blocks that would be left once this request has grown as expected."""
    return float(max((table[UNPROMISED, at] - table[BLOCKS, at]) / table[USABLE, at], 0.0))


@compiled(_SCORER)
def running(table: Table, at: int, asked: Column, limits: Column) -> float:
    """The part of the node's sequences that are free."""
    return float(max(1.0 - table[SEQUENCES, at] / table[SEQUENCES_MAX, at], 0.0))


@compiled(_SCORER)
def link(table: Table, at: int, asked: Column, limits: Column) -> float:
    """Predicted time of the transfer, with what is on its way already: the quickest has 1."""
    return float(asked[NEAREST_S] / max(table[TRANSFER_S, at] + table[INBOUND_S, at], _FLOOR_S))


@compiled("float64(int64, float64[:, ::1], int64, float64[::1], float64[::1])")
def score(part: int, table: Table, at: int, asked: Column, limits: Column) -> float:
    """What the scorer of that number says."""
    if part == COMPLETION:
        return completion(table, at, asked, limits)
    if part == AFFINITY:
        return affinity(table, at, asked, limits)
    if part == PREFIX:
        return prefix(table, at, asked, limits)
    if part == FREE_KV:
        return free_kv(table, at, asked, limits)
    if part == RUNNING:
        return running(table, at, asked, limits)
    assert part == LINK
    return link(table, at, asked, limits)


# --- the pipeline ------------------------------------------------------------------------------


@compiled("void(float64[:, ::1], int64, float64[::1], float64[::1])")
def survey(table: Table, first: int, dropped_by: Column, asked: Column) -> None:
    """What parts need to know of all nodes that are left."""
    asked[LOWEST_LOAD] = asked[QUICKEST_S] = asked[NEAREST_S] = np.inf
    for number, filter_ in enumerate(dropped_by):
        if filter_ < 0:
            at = first + number
            asked[LOWEST_LOAD] = min(asked[LOWEST_LOAD], table[LOAD, at])
            asked[QUICKEST_S] = min(asked[QUICKEST_S], table[COMPLETION_S, at])
            asked[NEAREST_S] = min(asked[NEAREST_S], table[TRANSFER_S, at] + table[INBOUND_S, at])
    asked[QUICKEST_S] = max(asked[QUICKEST_S], _FLOOR_S)
    asked[NEAREST_S] = max(asked[NEAREST_S], _FLOOR_S)


@compiled(
    "UniTuple(int64, 5)(float64[:, ::1], int64, float64[::1], float64[::1], int64[::1], int64[::1],"
    " float64[::1], float64[:, ::1])"
)
def choose(
    table: Table,
    first: int,
    asked: Column,
    limits: Column,
    filters: Numbers,
    scorers: Numbers,
    weights: Column,
    told: Table,
) -> tuple[int, int, int, int, int]:
    """Run the parts over as many nodes from ``first`` on as ``told`` has columns.

    ``told``: ``(INPUT_COUNT + scorers + 2, node)``, written: what the decision rests on; of each
    scorer, unweighted; their weighted sum; the number of the filter that dropped the node. The
    scores are 0 and their sum is -inf for a node that was dropped, the last is -1 for one that was
    not.

    Returns ``(best, equals, left, last, faulty)``: the place of the best among these nodes, -1 if
    none is left; how many are as good; how many no filter dropped; the last filter that dropped
    one, or -1; the place of a scorer that gave what is no score, or -1.
    """
    scores, sums, dropped_by = told[INPUT_COUNT:-2], told[-2], told[-1]
    for number in range(len(sums)):  # element by element: compiling a slice takes seconds
        for row in range(INPUT_COUNT):
            told[row, number] = table[row, first + number]
        for row in range(len(scores)):
            scores[row, number] = 0.0
        sums[number], dropped_by[number] = -np.inf, -1.0
    left, last, faulty = len(dropped_by), -1, -1
    survey(table, first, dropped_by, asked)
    for part in filters:
        left_before = left
        for number in range(len(dropped_by)):
            if dropped_by[number] < 0 and drops(part, table, first + number, asked, limits):
                dropped_by[number] = last = part
                left -= 1
        if left < left_before:
            survey(table, first, dropped_by, asked)
    best, equals = -1, 0
    for number in range(len(dropped_by)):
        if dropped_by[number] >= 0:
            continue
        sums[number] = 0.0
        for row, part in enumerate(scorers):
            scores[row, number] = score(part, table, first + number, asked, limits)
            sums[number] += weights[row] * scores[row, number]
            if not 0.0 <= scores[row, number] <= 1.0:
                faulty = row
        if best < 0 or sums[number] > sums[best]:
            best = number
    if best >= 0:
        for number in range(len(sums)):
            equals += sums[number] >= sums[best] - EQUAL
    return best, equals, left, last, faulty


@compiled("boolean(float64[:, ::1], int64, int64, float64[::1])")
def could_hold(table: Table, first: int, count: int, asked: Column) -> bool:
    """Whether any of ``count`` nodes could run it, were it empty, and has not just failed it."""
    limits = asked  # neither of the two reads any
    for at in range(first, first + count):
        if not rested(table, at, asked, limits) and not holds_longest(table, at, asked, limits):
            return True
    return False

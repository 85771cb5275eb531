"""What ``pdd bench gateway`` makes of its samples. Pure.

**Added ITL** of a token: the time between it and the one before it at the client, minus the time
between the same two tokens in the engine, as the engine itself has written down (``step_log``: when
a step's tokens were handed over, before anything of pdd's way out has seen them). It is what node,
control stream, scheduler, HTTP and the way into the client's socket add to (or take from) the
engine's rhythm; negative where a late token was followed by a punctual one. ``added_itl_p99_ms`` is
the 99th percentile over all gaps of all streams. Beside it stands **delivery**: from the engine's
hand-over to the client, per token.

A token is at the client when the kernel has it there (``arrival_clock``; the document's
``added_itl_clock`` is ``kernel``): when the client's process, which shares its core with the
engines, gets to reading it is no delay of the server's. Where the kernel tells no times
(``read``), the generator's own lateness is in all of these figures.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pdd.bench.samples import Floats, Samples

_WINDOW_S_MIN = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Added:
    """Seconds. ``unmatched``: requests whose tokens and steps could not be told to belong
    together, because one side has more than the other; they have no figures here."""

    itl_s: Floats
    delivery_s: Floats
    unmatched: int


def added_itl(samples: Samples, steps_ns: Mapping[str, Sequence[int]], *, origin_s: float) -> Added:
    """Compare what clients saw with what the engines wrote down.

    Args:
        steps_ns: by request id, the time of each token on CLOCK_MONOTONIC.
        origin_s: of the samples, on the same clock.
    """
    itl: list[Floats] = []
    delivery: list[Floats] = []
    unmatched = 0
    for row in range(samples.count):
        seen_s = samples.events[samples.event_starts[row] : samples.event_starts[row + 1]]
        made = steps_ns.get(samples.request_ids[row], ())
        if not len(seen_s) or len(made) != len(seen_s):
            unmatched += 1
            continue
        late_s = seen_s + origin_s - np.asarray(made, np.float64) / 1e9
        delivery.append(late_s)
        itl.append(np.diff(late_s))  # gaps at the client minus gaps in the engine
    none = np.zeros(0)
    return Added(
        itl_s=np.concatenate([none, *itl]),
        delivery_s=np.concatenate([none, *delivery]),
        unmatched=unmatched,
    )


def steady_tokens_per_s(samples: Samples) -> float:
    """Tokens per second while every stream was open: from the last stream's first token to the
    first stream's last. If that is too short (streams came or ended one by one), over all of it.
    """
    if not len(samples.events):
        return 0.0
    told = np.flatnonzero(samples.event_counts > 0)
    begin_s = float(samples.events[samples.event_starts[told]].max())
    end_s = float(samples.events[samples.event_starts[told + 1] - 1].min())
    if end_s - begin_s < _WINDOW_S_MIN:
        begin_s, end_s = float(samples.events.min()), float(samples.events.max())
    inside = ((samples.events > begin_s) & (samples.events <= end_s)).sum()
    return float(inside) / (end_s - begin_s) if end_s > begin_s else 0.0

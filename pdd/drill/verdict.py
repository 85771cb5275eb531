"""What must hold of a round's streams, and what the fault has cost them. Pure."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from pdd.drill.load import STREAM_TOKENS, Question, Stream
from pdd.replication.percentiles import percentile

_SHOWN_CHARS = 60


_LOST = ("is not known to this scheduler", "(its scheduler was lost")
"""What a client hears whose request nobody knows any more."""


def texts_of(streams: Sequence[Stream]) -> tuple[dict[Question, str], list[str]]:
    """Of an undisturbed run: the text of every question, and what is wrong with that."""
    texts: dict[Question, str] = {}
    for stream in streams:
        texts.setdefault(stream.question, stream.text)
    return texts, broken(streams, texts)


def without_the_lost(
    streams: Sequence[Stream], *, struck: str, at_s: float, decoding_elsewhere: Collection[str]
) -> tuple[list[Stream], int]:
    """Of a round in which a scheduler and a node die at once. Requests that only those two knew are
    nobody's any more; their clients are told so. Returns the others, and how many such there are:
    of the struck scheduler, begun before, refused as unknown or lost, and nothing else.

    ``decoding_elsewhere``: request ids; another node had these, so that they must not be lost.
    """
    others = [
        stream
        for stream in streams
        if stream.home != struck
        or stream.began_s > at_s
        or stream.error is None
        or stream.request_id in decoding_elsewhere
        or not any(words in stream.error for words in _LOST)
    ]
    return others, len(streams) - len(others)


def broken(streams: Sequence[Stream], texts: Mapping[Question, str]) -> list[str]:
    """Requests that did not end exactly once, with all of their text and nothing else."""
    faults = []
    for stream in streams:
        wanted, question = texts[stream.question], stream.question
        who = f"a request at {stream.home} (prompt {question.prompt_index})"
        if stream.error is not None:
            faults.append(f"{who} failed: {stream.error}")
        elif stream.ended_s is None:
            faults.append(f"{who} has not ended after {len(stream.came_s)} events")
        elif stream.text != (wanted[: len(stream.text)] if stream.has_left else wanted):
            at = next(
                (i for i, (a, b) in enumerate(zip(stream.text, wanted, strict=False)) if a != b),
                min(len(stream.text), len(wanted)),
            )
            faults.append(
                f"{who} differs from character {at} of {len(wanted)} on: "
                f"{stream.text[at : at + _SHOWN_CHARS]!r}, not {wanted[at : at + _SHOWN_CHARS]!r}"
            )
        elif stream.has_left:
            continue  # it has not seen an end
        elif stream.finish_reasons != ["length"]:
            faults.append(f"{who} ended as {stream.finish_reasons}, not once as length")
        elif stream.completion_tokens != [question.token_count]:
            faults.append(
                f"{who} was told of {stream.completion_tokens} tokens, not once of "
                f"{question.token_count}"
            )
    return faults


@dataclass(slots=True, kw_only=True)
class Cost:
    """Milliseconds of one round, or of all of one kind.

    new_leader: from the fault until a replica says that it leads.
    placed: until the first token of a request that began after the fault, at another scheduler.
    others_gap: longest gap of each stream that ran at another scheduler.
    went_on: of each stream at the scheduler that was struck, until its next token.
    """

    round_count: int = 0
    new_leader_ms: list[float] = field(default_factory=list)
    placed_ms: list[float] = field(default_factory=list)
    others_gap_ms: list[float] = field(default_factory=list)
    went_on_ms: list[float] = field(default_factory=list)

    def add(self, other: "Cost") -> None:
        self.round_count += other.round_count
        self.new_leader_ms += other.new_leader_ms
        self.placed_ms += other.placed_ms
        self.others_gap_ms += other.others_gap_ms
        self.went_on_ms += other.went_on_ms

    def summary(self) -> dict[str, dict[str, float | int | None]]:
        return {
            "new_leader_ms": _summary(self.new_leader_ms),
            "placed_ms": _summary(self.placed_ms),
            "others_gap_ms": _summary(self.others_gap_ms),
            "went_on_ms": _summary(self.went_on_ms),
        }


def cost_of(
    streams: Sequence[Stream], *, at_s: float, struck: str, new_leader_s: float | None
) -> Cost:
    """``at_s``: when it was struck. ``new_leader_s``: when another one led; None: no need."""
    cost = Cost(round_count=1)
    if new_leader_s is not None:
        cost.new_leader_ms.append(1e3 * (new_leader_s - at_s))
    firsts_s = [
        stream.came_s[0]
        for stream in streams
        if stream.began_s > at_s and stream.home != struck and stream.came_s
    ]
    if firsts_s:
        cost.placed_ms.append(1e3 * (min(firsts_s) - at_s))
    for stream in _running_at(streams, at_s):
        gaps_s = [(b, b - a) for a, b in pairwise(stream.came_s) if b > at_s]
        if not gaps_s:
            continue  # its last token had come
        if stream.home == struck:
            cost.went_on_ms.append(1e3 * (gaps_s[0][0] - at_s))
        else:
            cost.others_gap_ms.append(1e3 * max(gap_s for _, gap_s in gaps_s))
    return cost


def _running_at(streams: Sequence[Stream], at_s: float) -> Collection[Stream]:
    return [
        stream
        for stream in streams
        if stream.question.token_count == STREAM_TOKENS
        and stream.came_s
        and stream.came_s[0] < at_s
        and (stream.ended_s is None or stream.ended_s > at_s)
    ]


def _summary(values_ms: Sequence[float]) -> dict[str, float | int | None]:
    if not values_ms:
        return {"count": 0, "p50": None, "max": None}
    return {
        "count": len(values_ms),
        "p50": round(percentile(values_ms, 50), 1),
        "max": round(max(values_ms), 1),
    }

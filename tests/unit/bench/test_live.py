"""The live measurement's steps, against a cluster that only keeps books."""

import itertools
import threading

import pytest

from pdd.bench import live
from pdd.bench.live import BLOCK_BYTES, BLOCK_TOKENS, LiveSpec, make_prompts
from pdd.bench.live_figures import Kind
from pdd.bench.live_http import Answer, Stream
from pdd.core.errors import PddError

PROMPTS, HELD_PROMPTS, REQUESTS = 4, 2, 9
BLOCKS = 24


class Books:
    """Answers at once. The decode node holds the ``HELD_PROMPTS`` latest prompts."""

    def __init__(self, *, leaks=False, path="disaggregated", texts=None):
        self.leaks = leaks
        self.path = path
        self.texts = texts or itertools.repeat("text")
        self.held: list[int] = []
        self.asked: list[int] = []
        self.numbers = {"received_bytes": 0, "transfers": 0, "moving_s": 0.0}
        self.requests_beside_streams = 0
        self.several_asked = threading.Condition()

    def ask(self, prompt, *, tokens):
        blocks = 0
        path = self.path
        if tokens > 1 or self.leaks:
            which = prompt[0]
            blocks = 0 if which in self.held else BLOCKS
            path = self.path if blocks else "local"
            self.held = [*(h for h in self.held if h != which), which][-HELD_PROMPTS:]
            self.numbers["received_bytes"] += blocks * BLOCK_BYTES
            self.numbers["transfers"] += blocks > 0
            self.numbers["moving_s"] += blocks * 0.001
        with self.several_asked:
            self.asked.append(prompt[0])
            self.several_asked.notify()
        return Answer(
            text=next(self.texts),
            prompt_tokens=len(prompt),
            transferred_bytes=blocks * BLOCK_BYTES,
            path=path,
        )

    def stream(self, prompt, *, tokens, on_event):
        with self.several_asked:
            before = len(self.asked)
            for number in range(1, tokens):
                on_event(number)
            enough = before + self.requests_beside_streams
            assert self.several_asked.wait_for(lambda: len(self.asked) >= enough, timeout=10)
            on_event(tokens)
        return Stream(text="stream", times_s=tuple(map(float, range(tokens))))

    def counters(self):
        return {
            "received_bytes@decode-0": float(self.numbers["received_bytes"]),
            "received_transfers@decode-0": float(self.numbers["transfers"]),
            "received_moving_seconds@decode-0": self.numbers["moving_s"],
            "sent_shared_memory_bytes@prefill-0": float(self.numbers["received_bytes"]),
        }


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch):
    monkeypatch.setattr(live, "STATUS_INTERVAL_S", 0.001)


def session(books):
    spec = LiveSpec(prompts=PROMPTS, stream_tokens=30)
    prompts = [[number] for number in range(PROMPTS)]
    return live._Session(spec, books, prompts, lambda _: None)


def warmed(books):
    found = session(books)
    found.warm()
    found.take_references()
    books.requests_beside_streams = REQUESTS
    return found


def test_prompts_end_one_token_behind_a_full_block():
    prompts = make_prompts(LiveSpec(), lambda text: list(text.encode()))
    assert {len(prompt) for prompt in prompts} == {23 * BLOCK_TOKENS + 1}
    assert len({tuple(prompt[:BLOCK_TOKENS]) for prompt in prompts}) == len(prompts)


def test_a_warm_up_that_moves_blocks_is_refused():
    with pytest.raises(PddError, match="should end on the prefill node"):
        session(Books(leaks=True)).warm()


def test_a_busy_phase_moves_every_prompt_whole():
    phase = warmed(Books()).phase(Kind.BUSY)
    assert len(phase.sizes) >= REQUESTS
    assert set(phase.sizes) == {BLOCKS * BLOCK_BYTES}
    assert sum(reading.transfers for reading in phase.readings) <= len(phase.sizes)
    assert dict(phase.lane_bytes) == {"shared_memory": sum(phase.sizes), "tcp": 0}
    assert phase.texts_ok


def test_a_held_phase_moves_nothing_and_the_next_one_moves_all_again():
    books = Books()
    found = warmed(books)
    asked = len(books.asked)
    held = found.phase(Kind.HELD)
    assert set(held.sizes) == {0}
    assert len(set(books.asked[asked:])) == 1
    assert set(found.phase(Kind.BUSY).sizes) == {BLOCKS * BLOCK_BYTES}


def test_a_text_that_differs_from_its_reference_is_noticed():
    texts = itertools.chain(itertools.repeat("text", 2 * PROMPTS), itertools.repeat("other"))
    assert not warmed(Books(texts=texts)).phase(Kind.BUSY).texts_ok


def test_a_request_that_took_another_path_ends_the_measurement():
    books = Books()
    found = warmed(books)
    books.path = "local"
    books.requests_beside_streams = 1
    with pytest.raises(PddError, match="took the path local"):
        found.phase(Kind.BUSY)

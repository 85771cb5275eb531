"""What the live measurement understands of a cluster's answers."""

import pytest

from pdd.bench.live_http import read_counters, text_of_event
from pdd.core.errors import PddError


def test_counters_are_told_apart_by_node():
    text = "\n".join(
        (
            "# HELP pdd_kv_transfer_received_bytes_total KV bytes",
            'pdd_kv_transfer_received_bytes_total{node="decode-0"} 4096.0',
            'pdd_kv_transfer_received_bytes_total{node="prefill-0"} 0.0',
            'pdd_kv_transfer_open_sources{node="prefill-0"} 2.0',
            'pdd_kv_transfer_refusals_total{node="prefill-0",reason="expired"} 3.0',
            'pdd_node_up{node="decode-0"} 1.0',
        )
    )
    assert read_counters(text) == {
        "received_bytes@decode-0": 4096.0,
        "received_bytes@prefill-0": 0.0,
        "open_sources@prefill-0": 2.0,
    }


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (b'data: {"choices":[{"text":" a"}]}\n', " a"),
        (b'data: {"choices":[{"text":"","finish_reason":"length"}]}\n', None),
        (b'data: {"choices":[],"usage":{}}\n', None),
        (b"data: [DONE]\n", None),
        (b": ping\n", None),
        (b"\n", None),
    ],
)
def test_only_events_with_text_count(line, text):
    assert text_of_event(line) == text


def test_an_error_in_a_stream_is_an_error():
    with pytest.raises(PddError, match="node_lost"):
        text_of_event(b'data: {"error":{"code":"node_lost"}}\n')

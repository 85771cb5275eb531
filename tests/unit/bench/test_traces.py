"""Trace files."""

import json

import pytest

from pdd.bench.traces import TraceRequest, parse_trace
from pdd.core.errors import ConfigError


def mooncake(at_ms, size, out, ids):
    return json.dumps(
        {"timestamp": at_ms, "input_length": size, "output_length": out, "hash_ids": ids}
    )


def test_mooncake_lines_become_requests_from_the_first_one_on():
    lines = [mooncake(3000, 700, 5, [1, 2]), "", mooncake(500, 10, 0, [9])]
    assert parse_trace(lines, name="t") == [
        TraceRequest(at_s=0.0, input_tokens=10, output_tokens=0, hash_ids=(9,)),
        TraceRequest(at_s=2.5, input_tokens=700, output_tokens=5, hash_ids=(1, 2)),
    ]


def test_azure_rows_have_seven_fractional_digits_or_none():
    lines = [
        "TIMESTAMP,ContextTokens,GeneratedTokens",
        "2023-11-16 18:15:46.6805900,374,44",
        "2023-11-16 18:15:47,396,109\n",
    ]
    first, second = parse_trace(lines, name="t")
    assert (first.at_s, first.input_tokens, first.output_tokens) == (0.0, 374, 44)
    assert second.at_s == pytest.approx(0.31941)


@pytest.mark.parametrize(
    ("lines", "place"),
    [
        ([], "t: is empty"),
        (["a,b,c"], "t:1: 'a,b,c' begins neither"),
        (["TIMESTAMP,ContextTokens,GeneratedTokens"], "t: has a header and no request"),
        (["TIMESTAMP,ContextTokens,GeneratedTokens", "yesterday,1,2"], "t:2:"),
        (["TIMESTAMP,ContextTokens,GeneratedTokens", "2023-11-16 18:15:47,1"], "t:2:"),
        ([mooncake(0, 1, 1, []), "", '{"timestamp": 1}'], "t:3: needs timestamp"),
        ([mooncake(0, -1, 1, [])], "t:1: -1 input tokens"),
        (["[1]"], "t:1:"),
        (['{"timestamp": 0}', "x"], "t:1: needs timestamp"),
    ],
)
def test_a_bad_file_is_named_with_its_line(lines, place):
    with pytest.raises(ConfigError) as caught:
        parse_trace(lines, name="t")
    assert place in str(caught.value)

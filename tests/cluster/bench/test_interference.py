"""``pdd bench interference`` on synthetic engines whose prompts take their time."""

import json
from pathlib import Path

import pytest

from tests.vllm.cluster import run_cli

pytestmark = pytest.mark.cluster


def test_arriving_prompts_stall_streams_where_they_share_an_engine_and_not_elsewhere(
    tmp_path: Path,
) -> None:
    # A step takes 45 ms, one with 1,000 to 2,000 prompt tokens 0.2 to 0.4 s: so long a co-located
    # engine holds its streams up.
    plot = tmp_path / "plot.png"
    done = run_cli(
        *("bench", "interference", "--engine", "synthetic", "--runs", "1", "-o", "json"),
        *("--duration", "14", "--unloaded", "2", "--every", "3", "--streams", "2"),
        *("--colocated-chunk", "2048", "--plot", str(plot)),
        *("--set", "synthetic.time_scale=3"),
        timeout_s=200.0,
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    apart, together = document["disaggregated"], document["colocated"]
    assert together["gap_max_ms"] > 250
    assert together["gaps_over_250ms"] > 0
    assert apart["gap_max_ms"] < together["gap_max_ms"]
    assert apart["ttft_p50_s"] > 0
    assert document["unloaded"]["decode_tokens_per_s"] > 0
    assert len(document["runs"]) == 3
    assert plot.read_bytes().startswith(b"\x89PNG")

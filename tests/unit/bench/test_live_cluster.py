"""Which daemons the live measurement starts."""

import tomllib
from pathlib import Path

import pytest

from pdd.bench.live_cluster import DECODE_POOL_BYTES, PREFILL_POOL_BYTES, plan_pair
from pdd.core.errors import ConfigError
from pdd.core.identity import Role


def plans(tmp_path: Path, environment: dict[str, str] | None = None):
    found = plan_pair(
        state_dir=tmp_path,
        model_path=tmp_path / "model",
        model_name="model",
        transport="tcp",
        cores=[0, 1],
        ports=(8000, 7070),
        environment=environment or {},
    )
    return {plan.role: tomllib.loads(plan.config_text) for plan in found}


def test_each_engine_has_a_core_of_its_own(tmp_path):
    tables = plans(tmp_path)
    assert tables[Role.PREFILL]["node"]["cpu_cores"] == [0]
    assert tables[Role.DECODE]["node"]["cpu_cores"] == [1]
    assert tables[Role.DECODE]["node"]["schedulers"] == ["127.0.0.1:7070"]


def test_only_the_prefill_node_can_hold_all_prompts(tmp_path):
    tables = plans(tmp_path)
    assert tables[Role.PREFILL]["engine"]["kv_cache_bytes"] == PREFILL_POOL_BYTES
    assert tables[Role.DECODE]["engine"]["kv_cache_bytes"] == DECODE_POOL_BYTES


def test_every_daemon_gets_the_transport(tmp_path):
    assert {table["transfer"]["transport"] for table in plans(tmp_path).values()} == {"tcp"}


def test_an_environment_that_sets_what_the_measurement_sets_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"engine\.kind"):
        plans(tmp_path, {"PDD_ENGINE__KIND": "synthetic"})

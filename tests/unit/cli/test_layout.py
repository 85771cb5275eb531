"""Which daemons ``pdd up`` starts and what it writes for them."""

import tomllib
from pathlib import Path

import pytest

from pdd.config.load import load_config
from pdd.config.sources import parse_set
from pdd.core.errors import ConfigError
from pdd.core.identity import Role
from pdd.daemon.supervisor_layout import SchedulerPorts, UpOptions, plan_cluster


def plan(*, cores=(0, 1), gpus=(), environment=None, sets=(), **options):
    defaults = {
        "state_dir": Path("/s"),
        "prefill_count": 1,
        "decode_count": 1,
        "threads_per_node": 1,
        "schedulers": (SchedulerPorts(http=8000, grpc=7000, raft=7001),),
        "model_path": Path("/models/smol"),
        "model_name": "Smol",
        "flags": tuple(parse_set(text) for text in sets),
    }
    return plan_cluster(
        UpOptions(**(defaults | options)),
        cores=cores,
        gpus=gpus,
        environment={"HOME": "/h"} | (environment or {}),
    )


def tables(plans, key="node"):
    return {daemon.name: tomllib.loads(daemon.config_text).get(key, {}) for daemon in plans}


def test_one_of_each_by_default_scheduler_first():
    plans = plan()
    assert [(daemon.name, daemon.role) for daemon in plans] == [
        ("scheduler-0", Role.SCHEDULER),
        ("prefill-0", Role.PREFILL),
        ("decode-0", Role.DECODE),
    ]
    assert plans[2].argv[1:] == (
        "-m", "pdd.cli.main", "serve", "--role", "decode", "--config", "/s/decode-0.toml"
    )  # fmt: skip


def test_without_prefill_nodes_it_is_co_located():
    assert [daemon.name for daemon in plan(prefill_count=0, decode_count=2)] == [
        "scheduler-0",
        "decode-0",
        "decode-1",
    ]


def test_every_written_file_loads_and_says_what_was_meant(tmp_path):
    for daemon in plan(sets=["engine.max_num_seqs=3", 'engine.extra.x={"a b": [1.5, true]}']):
        path = tmp_path / "d.toml"
        path.write_text(daemon.config_text)
        config = load_config(path, environment={"HOME": "/h"}, role=daemon.role).config
        assert config.node.name == daemon.name
        assert config.node.state_dir == Path("/s") / daemon.name
        assert config.engine.model == "/models/smol"
        assert config.engine.served_model_name == "Smol"
        assert config.engine.max_num_seqs == 3
        assert config.engine.extra == {"x": {"a b": [1.5, True]}}


def test_nodes_know_the_scheduler_and_its_ports_are_those_asked_for():
    plans = plan()
    assert tables(plans, "http")["scheduler-0"] == {"listen": "127.0.0.1:8000"}
    assert tables(plans, "grpc")["scheduler-0"] == {"listen": "127.0.0.1:7000"}
    for name in ("prefill-0", "decode-0"):
        assert tables(plans)[name]["schedulers"] == ["127.0.0.1:7000"]
        assert tables(plans, "grpc")[name] == {"listen": "127.0.0.1:0"}


@pytest.mark.parametrize(
    ("cores", "threads", "dealt"),
    [
        ((0, 1), 1, {"prefill-0": [0], "decode-0": [1], "decode-1": [0]}),
        ((2, 3, 5, 7), 1, {"prefill-0": [2], "decode-0": [3], "decode-1": [5]}),
        ((2, 3, 5, 7), 2, {"prefill-0": [2, 3], "decode-0": [5, 7], "decode-1": [2, 3]}),
        ((4,), 1, {"prefill-0": [4], "decode-0": [4], "decode-1": [4]}),
        ((4,), 8, {"prefill-0": [4], "decode-0": [4], "decode-1": [4]}),
    ],
)
def test_cores_are_dealt_out_in_turn(cores, threads, dealt):
    nodes = tables(plan(cores=cores, threads_per_node=threads, decode_count=2))
    assert {name: nodes[name]["cpu_cores"] for name in dealt} == dealt
    assert "cpu_cores" not in nodes["scheduler-0"]


def test_gpus_are_dealt_out_one_per_node():
    nodes = tables(plan(gpus=("0", "GPU-x"), decode_count=2))
    assert [nodes[n]["gpus"] for n in ("prefill-0", "decode-0", "decode-1")] == [
        ["0"],
        ["GPU-x"],
        ["0"],
    ]


def test_environment_and_flags_override_for_every_daemon():
    plans = plan(
        environment={"PDD_LOG__LEVEL": "debug", "PDD_ENGINE__MAX_NUM_SEQS": "2"},
        sets=["engine.max_num_seqs=3"],
    )
    assert set(map(str, tables(plans, "log").values())) == {"{'level': 'debug'}"}
    assert {table["max_num_seqs"] for table in tables(plans, "engine").values()} == {3}


def test_keys_that_up_sets_itself_are_refused_with_what_to_use_instead():
    with pytest.raises(ConfigError) as caught:
        plan(sets=["http.listen=127.0.0.1:1"], environment={"PDD_NODE__STATE_DIR": "/x"})
    assert str(caught.value).splitlines() == [
        "$PDD_NODE__STATE_DIR: node.state_dir: use --state-dir",
        "--set http.listen: use --http-port",
    ]


def test_a_fault_that_every_daemon_has_is_told_once():
    with pytest.raises(ConfigError) as caught:
        plan(sets=["engine.max_num_seqs=-1"])
    assert str(caught.value).count("max_num_seqs: Input") == 1

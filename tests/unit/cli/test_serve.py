"""``pdd serve``: what the daemon gets."""

import sys
import types

import pytest
import structlog

from pdd.cli.main import main


@pytest.fixture
def daemons(monkeypatch):
    """Put stand-ins in place of both daemons; returns the configurations that they were given."""
    given: list[tuple[str, object]] = []
    for name in ("scheduler_daemon", "node_daemon"):
        module = types.ModuleType(f"pdd.daemon.{name}")
        module.run = lambda config, name=name: given.append((name, config)) or 7
        monkeypatch.setitem(sys.modules, f"pdd.daemon.{name}", module)
        monkeypatch.setattr(f"pdd.daemon.{name}", module, raising=False)
    monkeypatch.setattr("pdd.telemetry.logging.configure_logging", lambda *_, **__: None)
    monkeypatch.setenv("HOME", "/h")
    return given


def test_role_picks_the_daemon_and_its_exit_code_is_ours(daemons):
    assert main(["serve", "--role", "scheduler", "--set", "node.name=a"]) == 7
    assert main(["serve", "--role", "prefill", "--set", "node.name=b"]) == 7
    assert main(["serve", "--role", "decode", "--set", "node.name=c"]) == 7
    assert [(name, config.node.name, config.node.role.value) for name, config in daemons] == [
        ("scheduler_daemon", "a", "scheduler"),
        ("node_daemon", "b", "prefill"),
        ("node_daemon", "c", "decode"),
    ]


def test_role_may_be_in_the_file_alone(daemons, tmp_path):
    path = tmp_path / "d.toml"
    path.write_text('[node]\nname = "d"\nrole = "decode"\n')
    assert main(["serve", "--config", str(path)]) == 7
    assert daemons[0][0] == "node_daemon"


def test_flags_named_like_those_of_vllm_reach_the_engine_section(daemons):
    flags = "--model /m --served-model-name x --dtype float32 --max-model-len 99 --max-num-seqs 3"
    flags += " --max-num-batched-tokens 64 --block-size 32 --gpu-memory-utilization 0.5"
    flags += " --tensor-parallel-size 2 --no-enable-prefix-caching --no-enforce-eager"
    assert main(["serve", "--role", "decode", "--set", "node.name=a", *flags.split()]) == 7
    engine = daemons[0][1].engine
    assert engine.model_dump(mode="json") == engine.model_dump(mode="json") | {
        "model": "/m",
        "served_model_name": "x",
        "dtype": "float32",
        "max_model_len": 99,
        "max_num_seqs": 3,
        "max_num_batched_tokens": 64,
        "block_size": 32,
        "gpu_memory_utilization": 0.5,
        "tensor_parallel_size": 2,
        "enable_prefix_caching": False,
        "enforce_eager": False,
    }


def test_injected_faults_are_warned_about(daemons):
    with structlog.testing.capture_logs() as events:
        main(["serve", "--role", "decode", "--set", "node.name=a"])
        assert events == []
        arguments = ["--set", "node.name=a", "--set", "faults.transfer_delay_s=2"]
        main(["serve", "--role", "decode", *arguments])
    assert [(event["event"], event["log_level"]) for event in events] == [
        ("faults_injected", "warning")
    ]
    assert events[0]["transfer_delay_s"] == 2.0

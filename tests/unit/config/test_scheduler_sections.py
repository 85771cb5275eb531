"""Sections inside sections, and what is refused of the policy: all faults at once, each by name."""

from pathlib import Path

import pytest

from pdd.config.load import load_config
from pdd.config.sources import parse_set
from pdd.core.errors import ConfigError

HEAD = "[node]\nname = 'scheduler-0'\nrole = 'scheduler'\n"
ENVIRONMENT = {"HOME": "/h"}


def write(folder: Path, text: str) -> Path:
    path = folder / "pdd.toml"
    path.write_text(HEAD + text)
    return path


def test_a_section_inside_a_section_is_read_from_file_environment_and_flags(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "[scheduler]\nnode_timeout_s = 7\n[scheduler.policy]\nspill_above_fraction = 0.5\n"
        "decode_filters = ['spill']\ndecode_scorers = { free_kv = 3 }\n",
    )
    loaded = load_config(
        path,
        environment={**ENVIRONMENT, "PDD_SCHEDULER__PATH__MODE": "local"},
        flags=[parse_set("scheduler.queue.ageing_s=3"), parse_set("scheduler.node_timeout_s=8")],
    )
    config = loaded.config
    assert config.scheduler.node_timeout_s == 8
    assert config.scheduler_policy.spill_above_fraction == 0.5
    assert config.scheduler_policy.decode_filters == ("spill",)
    assert config.scheduler_policy.decode_scorers == {"free_kv": 3}
    assert config.scheduler_path.mode == "local"
    assert config.scheduler_queue.ageing_s == 3
    assert loaded.origin("scheduler.path.mode") == "$PDD_SCHEDULER__PATH__MODE"


def test_every_fault_of_the_policy_is_told_at_once_with_file_and_key(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "[scheduler.policy]\n"
        "decode_filters = ['headroom', 'headrom']\n"
        "decode_scorers = { free_kv = 1, fre_kv = 1 }\n"
        "prefill_scorers = { completion = 101 }\n"
        "spill_above_fraction = '85 %'\n"
        "[scheduler.path]\n"
        "local_prompt = 64\n"
        "local_stall_s = 0\n",
    )
    with pytest.raises(ConfigError) as caught:
        load_config(path, environment=ENVIRONMENT)
    faults = str(caught.value).splitlines()
    expected = (
        ("scheduler.policy.decode_filters: item [1]", "'headrom'"),
        ("scheduler.policy.decode_scorers: item [fre_kv]", "'free_kv'"),
        ("scheduler.policy.prefill_scorers: item [completion]", "less than or equal to 100"),
        ("scheduler.policy.spill_above_fraction", "valid number"),
        ("unknown key in [scheduler.path]: 'local_prompt'", "'local_prompt_tokens'"),
        ("scheduler.path.local_stall_s", "greater than 0"),
    )
    for where, what in expected:
        found = [fault for fault in faults if where in fault and what in fault]
        assert len(found) == 1, (where, what, faults)
        assert found[0].startswith(str(path))
    assert len(faults) == len(expected)


def test_an_unknown_section_inside_a_section_is_an_unknown_key(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="unknown key in \\[scheduler\\]: 'polcy'"):
        load_config(
            write(tmp_path, "[scheduler.polcy]\nspill_above_fraction = 0.5\n"),
            environment=ENVIRONMENT,
        )

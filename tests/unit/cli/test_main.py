"""Exit codes, messages, and how little is loaded to say them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pdd.cli.main import main

ROOT = Path(__file__).parents[3]
HEAVY = ["grpc", "transformers", "torch", "vllm", "aiohttp", "pydantic", "rich", "ucxx", "asyncio"]
HEAVY += ["numba", "numpy"]


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    """Run a command line in this process; return (exit code, stdout, stderr)."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.delenv("PDD_STATE_DIR", raising=False)

    def run(*arguments: str) -> tuple[int, str, str]:
        code = main(arguments)
        out, err = capsys.readouterr()
        return code, out, err.replace(str(tmp_path), "[TMP]")

    return run


def test_importing_the_command_line_loads_nothing_heavy():
    script = f"import sys, pdd.cli.main; print([m for m in {HEAVY} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout.strip() == "[]"


def test_help_names_every_command_but_the_hidden_one(run):
    code, out, _ = run("--help")
    assert code == 0
    for command in ("up", "down", "chat", "node", "serve", "config", "version"):
        assert f"\n  {command} " in out
    assert "supervise" not in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["dance"], "error: No such command 'dance'.\nTry 'pdd --help'.\n"),
        (
            ["serve", "--role", "king"],
            "error: Invalid value for '--role': 'king' is not one of 'scheduler', 'prefill', "
            "'decode'.\nTry 'pdd serve --help'.\n",
        ),
        (
            ["up", "--schedulers", "2"],
            "error: --schedulers 2: a group has 1, 3 or 5 of them.\nTry 'pdd up --help'.\n",
        ),
        (
            ["up", "--decode", "0"],
            "error: Invalid value for '--decode': 0 is not in the range 1<=x<=64.\n"
            "Try 'pdd up --help'.\n",
        ),
        (
            ["up", "--http-port", "9000", "--grpc-port", "9000"],
            "error: --http-port and --grpc-port are both 9000.\nTry 'pdd up --help'.\n",
        ),
        (
            ["up", "--set", "node.name=x", "--http-port", "0"],
            "error: --set node.name: pdd up names the nodes\n",
        ),
        (
            ["up", "--set", "engine.max_num_seqs=no", "--http-port", "0"],
            "error: --set engine.max_num_seqs: Input should be a valid integer, unable to parse "
            "string as an integer (got 'no')\n",
        ),
        (
            ["up", "--max-model-len=-1", "--http-port", "0"],
            "error: --max-model-len: engine.max_model_len: Input should be greater than or equal "
            "to 0 (got '-1')\n",
        ),
        (
            ["chat", "hi", "--url", "http://x", "--state-dir", "/x"],
            "error: --url and --state-dir name a cluster each; give one.\nTry 'pdd chat --help'.\n",
        ),
        (
            ["chat", " "],
            "error: the prompt is empty; give PROMPT, or write it to stdin.\n"
            "Try 'pdd chat --help'.\n",
        ),
        (
            ["serve", "--config", "/nonexistent.toml"],
            "error: /nonexistent.toml: No such file or directory\n",
        ),
        (["config", "check"], "error: Missing argument 'FILE'.\nTry 'pdd config check --help'.\n"),
        (
            ["why", "x", "--scheduler", "nowhere"],
            "error: Invalid value for '--scheduler': an address is written host:port, for example "
            "127.0.0.1:7070 (got 'nowhere')\nTry 'pdd why --help'.\n",
        ),
        (
            ["why", "x", "--scheduler", "http://127.0.0.1:8000"],
            "error: Invalid value for '--scheduler': an address is written host:port, without "
            "http:// or the like (got 'http://127.0.0.1:8000')\nTry 'pdd why --help'.\n",
        ),
        (
            ["doctor", "--scheduler", "127.0.0.1:99999"],
            "error: Invalid value for '--scheduler': port 99999 is above 65535 (got "
            "'127.0.0.1:99999')\nTry 'pdd doctor --help'.\n",
        ),
        (
            ["certs", "issue", "a"],
            "error: Missing option '--role'. Choose from:\n\tscheduler,\n\tprefill,\n\tdecode,\n"
            "\tclient\nTry 'pdd certs issue --help'.\n",
        ),
    ],
)
def test_wrong_usage_is_exit_code_2_and_says_what_to_do(run, arguments, message):
    assert run(*arguments) == (2, "", message)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["chat", "hi"],
            "error: no cluster runs in [TMP]/home/.local/state/pdd/up; start one with 'pdd up', or "
            "name it with --state-dir\n",
        ),
        (
            ["node", "list", "--state-dir", "/nonexistent"],
            "error: no cluster runs in /nonexistent; start one with 'pdd up', or name it with "
            "--state-dir\n",
        ),
    ],
)
def test_failure_is_exit_code_1(run, arguments, message):
    assert run(*arguments) == (1, "", message)


def test_refused_up_leaves_no_record(run, tmp_path):
    run("up", "--set", "node.name=x", "--http-port", "0", "--state-dir", str(tmp_path / "s"))
    assert [path.name for path in (tmp_path / "s").iterdir()] == ["lock"]


def test_state_dir_comes_from_the_environment(run, monkeypatch):
    monkeypatch.setenv("PDD_STATE_DIR", "/nonexistent/here")
    assert "no cluster runs in /nonexistent/here;" in run("chat", "hi")[2]


def test_down_without_a_cluster_says_so_and_succeeds(run):
    assert run("down") == (0, "not running\n", "")


def test_config_check_names_every_fault_one_per_line(run, tmp_path):
    path = tmp_path / "a.toml"
    path.write_text(
        '[node]\nname = "a"\nrole = "decode"\n[log]\nlevel = "x"\n[engine]\nmodell = 1\n'
    )
    code, out, err = run("config", "check", str(path))
    assert (code, out) == (2, "")
    assert err.splitlines() == [
        "error: [TMP]/a.toml: unknown key in [engine]: 'modell'; did you mean 'model'?",
        "error: [TMP]/a.toml: log.level: Input should be 'debug', 'info', 'warning' or 'error' "
        "(got 'x')",
    ]


def test_config_check_of_a_good_file(run, tmp_path):
    path = tmp_path / "a.toml"
    path.write_text('[node]\nname = "a"\nrole = "decode"\n[engine]\nmodel = "m"\n')
    assert run("config", "check", str(path)) == (0, f"{path}: valid, decode a\n", "")


def test_config_check_without_a_model_says_what_a_start_would(run, tmp_path):
    path = tmp_path / "a.toml"
    path.write_text('[node]\nname = "a"\nrole = "decode"\n')
    code, out, err = run("config", "check", str(path))
    assert (code, out) == (2, "")
    assert "engine.model is empty: name a model folder" in err


def test_config_show_tells_origins_as_table_and_json(run, monkeypatch):
    monkeypatch.setenv("PDD_ENGINE__MAX_NUM_SEQS", "3")
    code, out, _ = run("config", "show", "-o", "json", "--set", "log.level=debug")
    shown = json.loads(out)
    assert code == 0
    assert shown["engine.max_num_seqs"] == {"value": 3, "origin": "$PDD_ENGINE__MAX_NUM_SEQS"}
    assert shown["log.level"] == {"value": "debug", "origin": "--set log.level"}
    assert shown["log.format"] == {"value": "auto", "origin": "default"}
    _, table, _ = run("config", "show")
    (line,) = [line for line in table.splitlines() if line.startswith("engine.max_num_seqs")]
    assert line.split() == ["engine.max_num_seqs", "3", "$PDD_ENGINE__MAX_NUM_SEQS"]


def test_version_as_table_and_json(run):
    code, out, _ = run("version", "-o", "json")
    versions = json.loads(out)
    assert code == 0
    assert {"pdd", "python"} <= set(versions)
    assert run("version")[1].startswith("pdd ")


def test_a_reader_that_leaves_early_causes_no_traceback():
    done = subprocess.run(
        ["sh", "-c", f"{sys.executable} -m pdd.cli.main config example | head -1"],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    assert done.stdout.startswith("# Every key")
    assert done.stderr == ""

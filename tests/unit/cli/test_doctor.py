"""``pdd doctor`` as an operator runs it."""

import importlib.util
import json
import subprocess
import sys

import pytest

from pdd.cli.main import main


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    """Run a command line in this process; return (exit code, stdout, stderr)."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("XDG_STATE_HOME", "PDD_STATE_DIR", "XDG_CACHE_HOME", "PDD_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)

    def run(*arguments: str) -> tuple[int, str, str]:
        code = main(["doctor", *arguments])
        return code, *capsys.readouterr()

    return run


def test_a_machine_without_gpu_passes_with_the_defaults(run):
    if importlib.util.find_spec("ucxx") is None:
        pytest.skip("ucxx is not installed: the base install has none")
    code, out, err = run("--set", "engine.kind=synthetic")
    assert (code, err) == (0, ""), out
    lines = out.splitlines()
    assert all(line.split()[0] in ("ok", "warning") for line in lines)
    names = [line[9:].partition(":")[0] for line in lines]
    assert {"config", "python", "ucx", "rdma", "memlock", "gpu", "shm", "model"} < set(names)
    (model,) = [line for line in lines if " model: " in line]
    assert model.startswith("warning")
    assert "; next: run bin/pdd setup" in model


def test_the_command_itself_never_loads_ucx():
    script = (
        "from pdd.cli.main import main; import sys, pathlib;"
        " main(['doctor', '--set', 'engine.kind=synthetic']);"
        " maps = pathlib.Path('/proc/self/maps').read_text();"
        " print([name for name in sys.modules if name.startswith('ucxx')], 'libucp' in maps)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[] False"


def test_what_is_expected_and_missing_makes_it_fail(run):
    code, out, _ = run("--set", "transfer.expect_rdma=true", "--set", "engine.kind=synthetic")
    assert code == 1
    assert any(line.startswith("fault    rdma: ") for line in out.splitlines())


def test_json_has_every_check_and_the_counts(run):
    code, out, _ = run("-o", "json", "--scheduler", "127.0.0.1:1", "--set", "engine.kind=synthetic")
    told = json.loads(out)
    assert code == 1
    levels = [check["level"] for check in told["checks"]]
    assert (levels.count("fault"), levels.count("warning")) == (
        told["fault_count"],
        told["warning_count"],
    )
    assert all(set(check) == {"name", "level", "text", "advice"} for check in told["checks"])
    (cluster,) = [check for check in told["checks"] if check["name"] == "cluster"]
    assert cluster["level"] == "fault"
    assert "127.0.0.1:1" in cluster["text"]


def test_two_ways_to_name_a_cluster_are_refused(run, tmp_path):
    code, _, err = run("--scheduler", "127.0.0.1:1", "--state-dir", str(tmp_path))
    assert code == 2
    assert "give one" in err


def test_a_folder_without_a_cluster_is_told(run, tmp_path):
    code, _, err = run("--state-dir", str(tmp_path))
    assert code == 1
    assert "no cluster runs in" in err

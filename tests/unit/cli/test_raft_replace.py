"""What ``pdd raft replace`` refuses before it touches anything."""

from pathlib import Path

import pytest

from pdd.cli.main import main


@pytest.mark.parametrize(
    ("survivors", "why"),
    [
        (["a"], "'a' is not NAME=FOLDER"),
        (["a="], "'a=' is not NAME=FOLDER"),
        (["a=x"], "1 given, at least 2 are needed"),
        (["a=x", "a=y"], "'a' is named twice"),
        (["a=x", "dead=y"], "'dead' is named twice"),
    ],
)
def test_survivors_are_checked_first(
    survivors: list[str], why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = [f"--survivor={one}" for one in survivors]
    new = tmp_path / "new"
    assert main(["raft", "replace", "dead", *options, "--directory", str(new)]) == 2
    assert why in capsys.readouterr().err
    assert not new.exists()


def test_a_folder_that_is_there_is_not_overwritten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--survivor=a=x", "--survivor=b=y", "--directory", str(tmp_path)]
    assert main(["raft", "replace", "dead", *options]) == 2
    assert f"{tmp_path} exists" in capsys.readouterr().err

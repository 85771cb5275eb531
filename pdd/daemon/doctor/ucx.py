"""What UCX is here, asked of child processes."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pdd.transfer.rdma import bundled_ucx

_PROBE_TIMEOUT_S = 30.0
_INFO_TIMEOUT_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class UcxFacts:
    """``libraries``: copies of libucp that ucxx loads. ``is_bundled``: it is the wheel's.
    ``transports``: all that UCX was built with and finds on this machine, whatever UCX_TLS allows;
    None where no ucx_info is installed."""

    error: str = ""
    libraries: tuple[str, ...] = ()
    is_bundled: bool = False
    version: str = ""
    started: bool = False
    transports: tuple[str, ...] | None = None


def look_at_ucx(environment: Mapping[str, str]) -> UcxFacts:
    """``environment``: complete, as an engine's process would have it. Takes about a second."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pdd.transfer.ucx_probe"],
            env=dict(environment),
            capture_output=True,
            text=True,
            timeout=_PROBE_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return UcxFacts(error=f"UCX did not start within {_PROBE_TIMEOUT_S:g} s")
    try:
        found = json.loads(done.stdout)
    except ValueError:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        return UcxFacts(error=f"loading UCX ended with status {done.returncode}: {last}")
    libraries = tuple(found["libraries"])
    return UcxFacts(
        error=found["error"],
        libraries=libraries,
        is_bundled=_is_bundled(libraries),
        version=found["version"],
        started=found["started"],
        transports=_transports(libraries[0], environment) if libraries else None,
    )


def _is_bundled(libraries: tuple[str, ...]) -> bool:
    folder = bundled_ucx()
    return folder is not None and any(
        Path(library).resolve().is_relative_to(folder.resolve()) for library in libraries
    )


def _transports(library: str, environment: Mapping[str, str]) -> tuple[str, ...] | None:
    folder = Path(library).resolve().parent
    beside = folder.parent / "bin" / "ucx_info"
    info = str(beside) if beside.is_file() else shutil.which("ucx_info")
    if info is None:
        return None
    clean = {name: value for name, value in environment.items() if not name.startswith("UCX_")}
    paths = [str(folder), *filter(None, [clean.get("LD_LIBRARY_PATH")])]
    clean["LD_LIBRARY_PATH"] = ":".join(paths)  # its own library, not another copy
    try:
        done = subprocess.run(  # noqa: S603 - UCX's own tool
            [info, "-d"],
            env=clean,
            capture_output=True,
            text=True,
            timeout=_INFO_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return tuple(dict.fromkeys(re.findall(r"Transport: (\S+)", done.stdout)))

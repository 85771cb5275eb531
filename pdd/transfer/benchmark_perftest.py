"""UCX's own ``ucx_perftest`` as the ceiling: one hot buffer, no scattered blocks, no digests."""

import importlib.util
import os
import re
import socket
import subprocess
import time
from pathlib import Path

from pdd.transfer.environment import ucx_environment


def perftest() -> float | None:
    """GB/s of ``ucx_perftest`` (tag, 5 MiB, error handling, large segments); None without it."""
    found = importlib.util.find_spec("libucx")
    folders = list(found.submodule_search_locations or []) if found else []
    binary = next(
        (p for p in (Path(f) / "bin" / "ucx_perftest" for f in folders) if p.exists()), None
    )
    if binary is None:
        return None
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    environment = {
        **os.environ,
        **ucx_environment(transport="tcp", devices="lo"),
        "LD_LIBRARY_PATH": str(binary.parent.parent / "lib"),
    }
    environment.pop("UCX_LOG_FILE")
    server = subprocess.Popen(  # noqa: S603 - the binary of the installed UCX
        [binary, "-p", port], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        time.sleep(0.5)
        arguments = ["127.0.0.1", "-p", port, "-t", "tag_bw", "-s", "5242880", "-n", "200", "-e"]
        done = subprocess.run(  # noqa: S603 - as above
            [binary, *arguments, "-f"],
            env=environment,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None
    finally:
        server.kill()
        server.wait()
    return parse_perftest(done.stdout)


def parse_perftest(output: str) -> float | None:
    """GB/s from the last line of figures of ``ucx_perftest``: average bandwidth in MiB/s."""
    lines = [line for line in output.splitlines() if re.match(r"^\s*(Final:)?\s*\d+\s", line)]
    if not lines:
        return None
    # ... iterations, three latencies, average and overall bandwidth (MiB/s), two message rates
    columns = lines[-1].split()
    return round(float(columns[-4]) * (1 << 20) / 1e9, 3) if len(columns) >= 8 else None

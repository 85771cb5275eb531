"""Which UCX a node would load here, and whether it starts: ``python -m pdd.transfer.ucx_probe``.

A process of its own, because a process can hold only one UCX and cannot let go of it. Its
environment is that of an engine's process (see ``environment``). Prints one JSON object: ``error``,
``libraries`` (every libucp that is mapped; more than one does not work), ``version``, and
``started`` (a worker could be made with these UCX_TLS and UCX_NET_DEVICES).
"""

import ctypes
import json
import os
import sys
from pathlib import Path
from typing import Any

from pdd.core.errors import KVTransferError
from pdd.transfer.ucx_query import release_of


def main() -> int:
    """Look, print, leave without UCX's own clean-up."""
    # UCX writes to standard output, where the answer belongs alone.
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    answer.write(json.dumps(_look()))
    answer.flush()
    os._exit(0)


def _look() -> dict[str, Any]:
    found: dict[str, Any] = {"error": "", "libraries": [], "version": "", "started": False}
    try:
        import ucxx._lib.libucxx  # noqa: F401 - loading it is the question
    except (ImportError, OSError) as error:
        found["error"] = f"ucxx cannot be imported: {error}"
        return found
    found["libraries"] = _mapped()
    if len(found["libraries"]) == 1:
        release = release_of(ctypes.CDLL(found["libraries"][0]))
        found["version"] = ".".join(str(number) for number in release)
        from pdd.transfer.ucx_transport import UcxTransport

        try:
            UcxTransport().open()
            found["started"] = True
        except KVTransferError as error:
            found["error"] = str(error)
    found["libraries"] = _mapped()
    return found


def _mapped() -> list[str]:
    paths = {
        line.split(maxsplit=5)[-1] for line in Path("/proc/self/maps").read_text().splitlines()
    }
    return sorted(path for path in paths if Path(path).name.startswith(("libucp.so", "libucp-")))


if __name__ == "__main__":
    sys.exit(main())

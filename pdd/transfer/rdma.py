"""Whether this machine's UCX can do RDMA at all: to be asked before an engine starts on it.

PyPI's ``libucx-cu12`` is built ``--without-verbs --without-rdmacm``: it can never do RDMA, whatever
is configured. A GPU node needs a UCX of its own (MOFED's or HPC-X's, or built from source with
``--with-verbs --with-rdmacm --with-cuda --enable-mt``) and
``RAPIDS_LIBUCX_PREFER_SYSTEM_LIBRARY=true`` (``environment`` sets it), so that ucxx loads that one
and only that one. Read and written without such a node; not run on one yet.
"""

import importlib.util
import os
from collections.abc import Mapping
from ctypes.util import find_library
from pathlib import Path

_SYSTEM_FOLDERS = (
    "/usr/lib/ucx",
    "/usr/lib64/ucx",
    "/usr/local/lib/ucx",
    "/usr/lib/x86_64-linux-gnu/ucx",
    "/usr/lib/aarch64-linux-gnu/ucx",
)


def rdma_fault(environment: Mapping[str, str]) -> str:
    """Why UCX cannot do RDMA under this environment, and what to do; empty when it can."""
    prefers_system = environment.get("RAPIDS_LIBUCX_PREFER_SYSTEM_LIBRARY", "") == "true"
    if not prefers_system:
        return (
            "the UCX from PyPI has no verbs; install one with verbs and CUDA and set"
            " RAPIDS_LIBUCX_PREFER_SYSTEM_LIBRARY=true"
        )
    if find_library("ucp") is None:
        return (
            "no system UCX is found (libucp.so); install MOFED's or HPC-X's, or build one with"
            " --with-verbs --with-rdmacm --with-cuda --enable-mt"
        )
    folders = [Path(folder) for folder in _module_folders(environment)]
    if not any(list(folder.glob("libuct_ib*.so*")) for folder in folders):
        looked_in = ", ".join(str(folder) for folder in folders)
        return (
            f"the system's UCX has no libuct_ib (looked in {looked_in}); build it --with-verbs, or"
            " name its module folder in UCX_MODULE_DIR"
        )
    devices = Path("/sys/class/infiniband")
    if not devices.is_dir() or not any(devices.iterdir()):
        return "this machine has no RDMA device (/sys/class/infiniband is empty)"
    return ""


def bundled_ucx() -> Path | None:
    """The folder of PyPI's UCX, where it is installed."""
    found = importlib.util.find_spec("libucx")
    locations = list(found.submodule_search_locations or []) if found else []
    return Path(locations[0]) if locations else None


def _module_folders(environment: Mapping[str, str]) -> list[str]:
    named = environment.get("UCX_MODULE_DIR", "")
    beside = [
        f"{folder}/ucx"
        for folder in environment.get("LD_LIBRARY_PATH", "").split(os.pathsep)
        if folder
    ]
    return [named] if named else [*beside, *_SYSTEM_FOLDERS]

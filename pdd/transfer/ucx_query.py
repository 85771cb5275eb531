"""Asks UCX which transports an endpoint uses. ucxx does not expose this, so it goes by ctypes.

``ucp_ep_query`` (ucp.h, stable since UCX 1.12) fills an array that the caller sizes; the structures
below are those of the header. The library is the copy that this process has loaded already: a
second copy of UCX in one process does not work.
"""

import ctypes
from functools import cache
from pathlib import Path

_TRANSPORTS_FIELD = 1 << 3
_MAX_LANES = 16


class _Entry(ctypes.Structure):
    _fields_ = (  # type: ignore[mutable-override]
        ("transport_name", ctypes.c_char_p),
        ("device_name", ctypes.c_char_p),
    )


class _Transports(ctypes.Structure):
    _fields_ = (  # type: ignore[mutable-override]
        ("entries", ctypes.POINTER(_Entry)),
        ("num_entries", ctypes.c_uint),
        ("entry_size", ctypes.c_size_t),
    )


class _Attributes(ctypes.Structure):
    _fields_ = (  # type: ignore[mutable-override]
        ("field_mask", ctypes.c_uint64),
        ("name", ctypes.c_char * 32),
        ("local_sockaddr", ctypes.c_uint64 * 16),  # struct sockaddr_storage: 128 B, aligned to 8
        ("remote_sockaddr", ctypes.c_uint64 * 16),
        ("transports", _Transports),
        ("user_data", ctypes.c_void_p),
    )


@cache
def loaded_library() -> ctypes.CDLL | None:
    """The libucp that is mapped into this process."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = line.split(maxsplit=5)[-1]
        if Path(path).name.startswith("libucp.so") or Path(path).name.startswith("libucp-"):
            return ctypes.CDLL(path)
    return None


def release_of(library: ctypes.CDLL) -> tuple[int, int, int]:
    """ucp.h: ``void ucp_get_version(unsigned *major, unsigned *minor, unsigned *release)``."""
    major, minor, release = (ctypes.c_uint() for _ in range(3))
    library.ucp_get_version(*(ctypes.byref(number) for number in (major, minor, release)))
    return major.value, minor.value, release.value


def endpoint_lanes(handle: int) -> tuple[str, ...]:
    """``transport/device`` of every lane of a ``ucp_ep_h``, each once; empty if unknown."""
    library = loaded_library()
    if library is None:
        return ()
    entries = (_Entry * _MAX_LANES)()
    attributes = _Attributes(field_mask=_TRANSPORTS_FIELD)
    attributes.transports = _Transports(
        entries=ctypes.cast(entries, ctypes.POINTER(_Entry)),
        num_entries=_MAX_LANES,
        entry_size=ctypes.sizeof(_Entry),
    )
    query = library.ucp_ep_query
    query.argtypes = [ctypes.c_void_p, ctypes.POINTER(_Attributes)]
    query.restype = ctypes.c_int
    if query(handle, ctypes.byref(attributes)) != 0:
        return ()
    lanes = (
        f"{entry.transport_name.decode()}/{entry.device_name.decode()}"
        for entry in entries[: attributes.transports.num_entries]
        if entry.transport_name and entry.device_name
    )
    return tuple(dict.fromkeys(lanes))

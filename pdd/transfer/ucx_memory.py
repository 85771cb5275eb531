"""Registers a pool with UCX once, for as long as the worker lives.

UCX registers memory with the network card when a message first touches it, and keeps what it has
registered in a cache that can be evicted. One standing mapping over the whole pool keeps it
registered from the start, so that no transfer pays for it. ucxx does not expose this, so it goes by
ctypes, as ``ucx_query`` does. No remote key is made of it: a peer cannot reach the memory by it.

Over TCP and shared memory there is nothing to register and this costs nothing. That rendezvous
messages find the mapping on an RDMA device is read, not run (openucx, ``ucp_mem_map`` in ucp.h).
"""

import ctypes

from pdd.core.errors import KVTransferError
from pdd.transfer.ucx_query import loaded_library

_ADDRESS_FIELD = 1 << 0
_LENGTH_FIELD = 1 << 1


class _Parameters(ctypes.Structure):
    _fields_ = (  # type: ignore[mutable-override]
        ("field_mask", ctypes.c_uint64),
        ("address", ctypes.c_void_p),
        ("length", ctypes.c_size_t),
        ("flags", ctypes.c_uint),
        ("prot", ctypes.c_uint),
        ("memory_type", ctypes.c_int),
        ("exported_memh_buffer", ctypes.c_void_p),
    )


class MappedMemory:
    """``size_bytes`` at ``address``, registered with the UCX context ``context`` (a ucp_context_h).

    Raises:
        KVTransferError: UCX refuses, for instance for want of lockable memory.
    """

    def __init__(self, *, context: int, address: int, size_bytes: int) -> None:
        self._context = context
        handle = ctypes.c_void_p()
        library = loaded_library()
        if library is None:
            raise KVTransferError("libucp is not loaded in this process: no memory can be mapped")
        self._library = library
        library.ucp_mem_map.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
        library.ucp_mem_map.restype = ctypes.c_int
        library.ucp_mem_unmap.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
        library.ucp_mem_unmap.restype = ctypes.c_int
        parameters = _Parameters(
            field_mask=_ADDRESS_FIELD | _LENGTH_FIELD, address=address, length=size_bytes
        )
        status = library.ucp_mem_map(context, ctypes.byref(parameters), ctypes.byref(handle))
        if status != 0:
            raise KVTransferError(
                f"UCX cannot register a pool of {size_bytes} B (status {status}); raise the limit"
                " on locked memory (LimitMEMLOCK=infinity in the unit, ulimit -l), see pdd doctor"
            )
        self._handle: ctypes.c_void_p | None = handle

    def close(self) -> None:
        """Give the registration back; before the context is destroyed. Idempotent."""
        if self._handle is not None:
            self._library.ucp_mem_unmap(self._context, self._handle)
            self._handle = None

"""Calls from compiled functions straight into a C library, for a hash that has one already.

A compiled function (`pdd.core.compiled`) can call no Python, and a call through Python for each
80-byte block costs four times the hash itself. What a function in C returns in two registers ctypes
cannot say, so the call is written out for the compiler here. It is the last thing to reach for: a
wrong address or a wrong signature is no exception but a crash.

Code in the cache keeps the call as this file once made it, and `pdd.core.compiled` sees no change
of it: whoever changes this file changes the files that use it, too.
"""

import ctypes
import platform
import sys
from collections.abc import Callable
from typing import Any

import llvmlite.binding
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

WordPair = Callable[[int, int], tuple[Any, Any]]
"""``(address of the bytes, how many) -> (first, second)``, uint64 each; only callable from compiled
functions."""


def word_pair_function(library: str, symbol: str) -> WordPair | None:
    """A C function ``struct {uint64_t first, second;} f(const void *, size_t)``.

    ``library``: the path of a library or extension module. None where it does not export the
    symbol, or where C does not return such a struct in two registers (other systems than Linux and
    macOS, other processors than x86-64 and AArch64).
    """
    if sys.platform not in ("linux", "darwin") or platform.machine() not in (
        "x86_64",
        "aarch64",
        "arm64",
    ):
        return None
    try:
        function = getattr(ctypes.CDLL(library), symbol)
    except (OSError, AttributeError):
        return None
    # A name of its own: the compiler must not find another library's function of this name.
    name = f"pdd_{symbol}"
    llvmlite.binding.add_symbol(name, ctypes.cast(function, ctypes.c_void_p).value)

    @intrinsic  # type: ignore[untyped-decorator]  # numba has no stubs
    def call(typing_context: Any, address: Any, size: Any) -> Any:
        signature = types.UniTuple(types.uint64, 2)(types.uintp, types.uintp)

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            word = ir.IntType(64)
            form = ir.FunctionType(ir.LiteralStructType([word, word]), [word, word])
            function = cgutils.get_or_insert_function(builder.module, form, name)
            pair = builder.call(function, arguments)
            words = [builder.extract_value(pair, place) for place in (0, 1)]
            return context.make_tuple(builder, signature.return_type, words)

        return signature, generate

    return call  # type: ignore[no-any-return]

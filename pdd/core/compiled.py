"""Inner loops as machine code: numba's compiler behind one typed decorator.

For the few pure functions that walk arrays element by element for every request (the look-up in the
block directory, the scores of all nodes), where numpy would make a dozen passes over short arrays.
A compiled function takes numpy arrays and numbers and gives back the same; a call costs some 0.3 us
beside its work.

Signatures are written down, so that everything is compiled when the module is imported, never in
the middle of serving, and arguments of other types raise TypeError instead of compiling anew. They
use numba's names: ``float64``; ``uint32[::1]``, an array without gaps; ``boolean[:]``;
``Array(uint64, 2, 'C', True)``: two axes, no gaps, only read (a view of bytes is such). What a
function returns stands first: ``"int64(uint32[::1], int64)"``.

Machine code is kept in a cache: in ``NUMBA_CACHE_DIR`` where that is set, else in ``__pycache__``
beside the source, else in the user's cache folder. Loading takes some 5 ms a function, compiling
0.1-0.4 s; assigning to a slice of an array adds a second, which a loop over its elements does not.
``bin/pdd setup`` compiles all once. Who can write the cache can run code in this process, as with
any ``__pycache__``.

Names in the cache tell the source file's content and the processor. Schedulers that start at once
after an update would else find an old function under a new index: numba writes the index first.
What former versions left is never read; the folder may be emptied at any time.

numba does not see that another file has changed. Hence a compiled function may only call compiled
functions of its own file, and the constants that it names are written there.

Importing this module costs 0.2 s and 80 MB, which a scheduler pays and nobody else should: only
`pdd.directory` and `pdd.scheduler` may, and of those only what node daemons, the raft replica and
plain commands do not load (import-linter and tests/unit/architecture watch both). No other module
but `pdd.core.library_calls` imports numba.

A result is that of the function as it is written, ``NAME.py_func``, which tests can step through.
Numbers differ: integers have a width and wrap around, ``/`` by zero gives inf or nan, and an index
beyond the array is not noticed but reads whatever is there.
"""

import inspect
import warnings
import zlib
from collections.abc import Callable
from typing import ParamSpec, Protocol, TypeVar, cast

import llvmlite.binding
import numba
from numba.core.errors import NumbaError

P = ParamSpec("P")
R = TypeVar("R")


class Compiled(Protocol[P, R]):
    """A function in machine code."""

    py_func: Callable[P, R]
    """As it is written."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R: ...


def compiled(*signatures: str) -> Callable[[Callable[P, R]], Compiled[P, R]]:
    """Compile the function below for each of these signatures, now or from the cache.

    Raises:
        numba.core.errors.NumbaError: the function uses what cannot be compiled.
        ValueError: no signature, or it calls a compiled function of another file.
    """
    if not signatures:
        raise ValueError('signatures are missing: give each, such as "int64(uint32[::1], int64)"')

    def compile_now(function: Callable[P, R]) -> Compiled[P, R]:
        _check_calls(function)
        try:
            function.__qualname__ += f"_{_version_of(function):08x}"
            return _compile(function, signatures, cache=True)
        except NumbaError:
            raise  # a fault of the function itself
        except Exception as error:
            # No folder can be written, the disk is full, there is no source file, or an entry is
            # damaged, which ends in whatever its bytes make of it. Any other fault comes again.
            _warn_once(error)
            return _compile(function, signatures, cache=False)

    return compile_now


def _compile(
    function: Callable[P, R], signatures: tuple[str, ...], *, cache: bool
) -> Compiled[P, R]:
    # The error model of numpy spares a check at every division.
    decorator = numba.njit(list(signatures), cache=cache, error_model="numpy")
    return cast(Compiled[P, R], decorator(function))


def _version_of(function: Callable[..., object]) -> int:
    """32 bits of the source file that it is in, and of the processor that is compiled for."""
    source = "".join(inspect.findsource(function)[0])
    processor = llvmlite.binding.get_host_cpu_name()
    features = llvmlite.binding.get_host_cpu_features().flatten()
    return zlib.crc32(f"{processor} {features} {source}".encode())


def _check_calls(function: Callable[P, R]) -> None:
    for name in function.__code__.co_names:
        called = getattr(function.__globals__.get(name), "py_func", function)
        if called.__module__ != function.__module__:
            raise ValueError(
                f"{function.__qualname__} calls {name} of {called.__module__}, whose changes would "
                f"not reach cached code: move one of them to the file of the other"
            )


_warned: list[str] = []


def _warn_once(error: Exception) -> None:
    """For the first function; the others fail alike."""
    if not _warned:
        _warned.append(str(error))
        warnings.warn(
            "the scheduler's machine code cannot be kept, so that every start compiles it anew and "
            "takes some seconds longer: set NUMBA_CACHE_DIR to a folder that the scheduler can "
            "write (under systemd, one of CacheDirectory=) or, if it is set, empty that folder "
            f"({type(error).__name__}: {error})",
            RuntimeWarning,
            stacklevel=1,
        )

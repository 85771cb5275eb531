"""Inner loops as machine code: numba's compiler behind one typed decorator.

For the few pure functions that walk arrays element by element for every request (the look-up in the
block directory, the scores of all nodes), where numpy would make a dozen passes over short arrays.
A compiled function takes numpy arrays and numbers and gives back the same; a call costs some 0.3 us
beside its work.

Signatures are written down, so that everything is compiled when the module is imported, never in
the middle of serving. Arrays of other types raise TypeError instead of compiling anew; numbers are
converted as C does it (1.7 for an ``int64`` is 1), so that only a type checker sees a wrong one.
Signatures use numba's names: ``float64``; ``uint32[::1]``, an array without gaps; ``boolean[:]``;
``Array(uint64, 2, 'C', True)``: two axes, no gaps, only read (a view of bytes is such). What a
function returns stands first: ``"int64(uint32[::1], int64)"``.

Machine code is kept in a cache: in ``NUMBA_CACHE_DIR`` where that is set, else in ``__pycache__``
beside the source, else in the user's cache folder. Loading takes some 5 ms a function, compiling
0.1-0.4 s; assigning to a slice of an array adds a second, which a loop over its elements does not.
``bin/pdd setup`` compiles all once. Who can write the cache can run code in this process, as with
any ``__pycache__``.

Names in the cache tell the source file's content, the processor, and what the function names
beside: values of constants, and these names of the functions that it calls, wherever they come
from. numba itself sees only that the function's own file has changed; and schedulers that start at
once after an update would find an old function under a new index, which numba writes first. What
former versions left is never read; the folder may be emptied at any time.

Importing this module costs 0.2 s and 80 MB, which a scheduler pays and nobody else should: only
`pdd.directory` and `pdd.scheduler` may, and of those only what node daemons, the raft replica and
plain commands do not load (import-linter and tests/unit/architecture watch both). No other module
but `pdd.core.library_calls` imports numba.

A result is that of the function as it is written, ``NAME.py_func``, which tests can step through.
Numbers differ: integers have a width and wrap around, ``/`` by zero gives inf or nan, and an index
beyond the array is not noticed but reads whatever is there.
"""

import dis
import inspect
import math
import warnings
import zlib
from collections.abc import Callable
from types import CodeType
from typing import ParamSpec, Protocol, TypeVar, cast

import llvmlite.binding
import numba
import numpy as np
from numba.core.errors import NumbaError
from numba.core.extending import _Intrinsic

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
        ValueError: no signature, or it names what may change unseen: neither a number, a text, a
            tuple of such, a compiled function, nor numpy or math.
    """
    if not signatures:
        raise ValueError('signatures are missing: give each, such as "int64(uint32[::1], int64)"')

    def compile_now(function: Callable[P, R]) -> Compiled[P, R]:
        named = _named(function)
        try:
            function.__qualname__ += f"_{_version_of(function, named):08x}"
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


def _version_of(function: Callable[..., object], named: list[str]) -> int:
    """32 bits of the source file that it is in, of the processor that is compiled for, and of what
    it names."""
    source = "".join(inspect.findsource(function)[0])
    processor = llvmlite.binding.get_host_cpu_name()
    features = llvmlite.binding.get_host_cpu_features().flatten()
    return zlib.crc32(f"{processor} {features} {named} {source}".encode())


def _named(function: Callable[..., object]) -> list[str]:
    """Each name that is not its own, with what its machine code keeps of that for ever."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    values = {name: cell.cell_contents for name, cell in cells}
    codes = [function.__code__]
    for code in codes:  # grows meanwhile
        codes += [one for one in code.co_consts if isinstance(one, CodeType)]
        for step in dis.get_instructions(code):
            if step.opname == "LOAD_GLOBAL" and step.argval in function.__globals__:
                values[step.argval] = function.__globals__[step.argval]
    return [f"{name}: {_kept(function, name, values[name])}" for name in sorted(values)]


def _kept(function: Callable[..., object], name: str, value: object) -> str:
    called = getattr(value, "py_func", None)
    if called is not None:
        return f"{called.__module__}.{called.__qualname__}"  # its version among it
    if value is np or value is math or isinstance(value, _Intrinsic):  # see library_calls
        return name
    if _is_constant(value):
        return f"{type(value).__name__} {value!r}"
    raise ValueError(
        f"{function.__qualname__} names {name}, a {type(value).__name__} whose changes would not "
        "reach cached code: import the number or compiled function that it needs by its name"
    )


def _is_constant(value: object) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_constant, value))
    return value is None or isinstance(value, (bool, int, float, str, np.number, np.bool_))


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

"""`pdd.directory.keys.chain` compiled: the same keys in a fourth of the time.

For schedulers, which need a chain for every request; node daemons have no compiler and use the
other. The hash is xxhash's own, called in the library that its Python package brings. Where that
exports no such function, or one that gives other keys, `chain` here is the one in Python.
"""

import numpy as np
import numpy.typing as npt
import xxhash._xxhash

from pdd.core.compiled import compiled
from pdd.core.library_calls import word_pair_function
from pdd.directory import keys

U32 = npt.NDArray[np.uint32]

_KEY_WORDS = 4
_PROBES = (1, 2, 4, 5, 16, 17, 32, 56, 57, 64, 256)
"""Block sizes on which both ways are compared at import: xxh3 has a way of its own for each range
of lengths, of which the last begins at 240 bytes."""
_found = word_pair_function(xxhash._xxhash.__file__, "XXH3_128bits")


@compiled("uint32(uint64)")
def _big_endian(word: np.uint64) -> np.uint32:
    """Its lower half, bytes swapped: keys are the hash's big-endian form."""
    swapped = (word & np.uint64(0xFF)) << np.uint64(24)
    swapped |= (word & np.uint64(0xFF00)) << np.uint64(8)
    swapped |= word >> np.uint64(8) & np.uint64(0xFF00)
    swapped |= word >> np.uint64(24) & np.uint64(0xFF)
    return np.uint32(swapped)


def _compiled_chain(parent: bytes, packed: bytes, block_size_tokens: int) -> bytes:
    """See `pdd.directory.keys.chain`."""
    assert len(parent) == keys.KEY_SIZE_BYTES, parent  # what is compiled does not look
    tokens = np.frombuffer(packed, dtype=np.uint32)
    joined = np.empty(len(tokens) // block_size_tokens * _KEY_WORDS, dtype=np.uint32)
    _fill(np.frombuffer(parent, dtype=np.uint32), tokens, block_size_tokens, joined)
    return joined.tobytes()


def _gives_the_same() -> bool:
    parent = bytes(range(keys.KEY_SIZE_BYTES))
    for size in _PROBES:
        packed = bytes(position * 7 % 251 for position in range(4 * 3 * size))
        if _compiled_chain(parent, packed, size) != keys.chain(parent, packed, size):
            return False
    return True


chain = keys.chain
if _found is not None:
    _hash = _found

    @compiled("void(Array(uint32, 1, 'C', True), Array(uint32, 1, 'C', True), int64, uint32[::1])")
    def _fill(parent: U32, tokens: U32, block_size_tokens: int, joined: U32) -> None:
        """``joined``: four words for each full block in ``tokens``."""
        record = np.empty(_KEY_WORDS + block_size_tokens, dtype=np.uint32)
        for position in range(_KEY_WORDS):
            record[position] = parent[position]
        for block in range(len(joined) // _KEY_WORDS):
            start = block * block_size_tokens
            for position in range(block_size_tokens):
                record[_KEY_WORDS + position] = tokens[start + position]
            low, high = _hash(record.ctypes.data, record.nbytes)
            record[0], record[1] = _big_endian(high >> np.uint64(32)), _big_endian(high)
            record[2], record[3] = _big_endian(low >> np.uint64(32)), _big_endian(low)
            for position in range(_KEY_WORDS):
                joined[block * _KEY_WORDS + position] = record[position]

    if _gives_the_same():
        chain = _compiled_chain

"""Whose bytes are in a slot of shared memory, so that a reader notices when it is overtaken.

A slot comes back to its source by the target's answer, or with the loss of the connection, of which
the target may not know yet: then the source fills the slot anew while the target copies what
was announced to it. Digests would see that; this sees it without them.

::

    source                                      target, which holds the record of generation g
    ------                                      ----------------------------------------------
    generation := g - 1  (odd: being written)   header == (g, nonce, serial)?   no: overtaken
    --- fence ---                               --- fence ---
    the bytes, the nonce and the serial         copies the bytes
    --- fence ---                               --- fence ---
    generation := g      (even: whole)          header == (g, nonce, serial)?   no: overtaken
    sends the record of g over UCX

The generation of a slot only grows, so that a lane which begins anew with its old nonce and serials
is told apart too. If any byte of the copy is younger than generation g, then the odd number that
was stored before that byte is seen by the second look, given that (a) the source's store of the
number stays before its stores of the bytes, and (b) the target's loads of the bytes stay before its
load of the number. What is relied on for that:

- The three words are aligned to 8 bytes and numpy moves each by one instruction; neither x86-64
  nor AArch64 tears such a load or store. Every step is a call into C with the interpreter in
  between, so no compiler moves one across another.
- x86-64 keeps ordinary stores in order, and ordinary loads (b). It does not keep the streaming
  stores in order by which the C library copies long stretches (a). AArch64 keeps neither.
- ``Fence`` therefore stands between: it lets go of a lock that it holds and takes it again. The
  release keeps everything before it before it, the acquire everything after it after it, and
  a release is never passed by the acquire that follows it in the same thread: on x86-64 both are
  locked instructions, which also wait for streaming stores; on AArch64 a store-release and a
  load-acquire are kept in order (Arm Architecture Reference Manual, B2.3, "RCsc").
- That the bytes of g are there when the record is, needs no fence here: the record comes through
  the kernel's sockets, whose locks order what was written before the sending before what is read
  after the receiving.
"""

import threading

import numpy as np

from pdd.transfer.pool import ByteArray

_WORDS = 3
HEADER_BYTES = 8 * _WORDS


class Fence:
    """Keeps what this thread read and wrote before a call before what it reads and writes after.

    Called by one thread, the transfer thread: its lock is never waited for.
    """

    def __init__(self) -> None:
        self._held = threading.Lock()
        self._held.acquire()

    def __call__(self) -> None:
        self._held.release()
        self._held.acquire()


class SlotHeader:
    """The first ``HEADER_BYTES`` of ``memory``, little more than three words; see the module.

    ``memory``: aligned to 8 bytes, zero before its first use.
    """

    def __init__(self, memory: ByteArray, fence: Fence) -> None:
        self._words = memory[:HEADER_BYTES].view(np.uint64)
        self._fence = fence

    def begin(self) -> None:
        """The slot's bytes are about to change: whoever copies it now is overtaken."""
        generation = int(self._words[0])
        self._words[0] = generation + (2 if generation % 2 else 1)
        self._fence()

    def end(self, *, nonce: int, serial: int) -> int:
        """The slot's bytes are whole; returns their generation, for the record."""
        self._words[1] = nonce
        self._words[2] = serial
        self._fence()
        generation = int(self._words[0]) + 1
        self._words[0] = generation
        return generation

    def is_before(self, *, generation: int, nonce: int, serial: int) -> bool:
        """Whether the slot holds what was announced, before it is copied."""
        same = self._is(generation, nonce, serial)
        self._fence()
        return same

    def is_after(self, *, generation: int, nonce: int, serial: int) -> bool:
        """Whether it held that all the while, after it was copied."""
        self._fence()
        return self._is(generation, nonce, serial)

    def _is(self, generation: int, nonce: int, serial: int) -> bool:
        words = (int(self._words[0]), int(self._words[1]), int(self._words[2]))
        return words == (generation, nonce, serial)

"""The 64-bit UCX tag of every message of a transfer.

::

     63                              24 23                     0
    +----------------------------------+------------------------+
    |  nonce, 40 random bits           |  piece, 24 bits        |
    +----------------------------------+------------------------+

The decode node draws the nonce, one per attempt at a transfer, and tells it to one prefill node
over the authenticated control channel. Who does not know it matches no posted receive, so it
moves nothing. Piece ``RECORD_PIECE`` carries chunk records, in order; every other piece number is
used once per 2^24 - 1 messages of payload.
"""

NONCE_BITS = 40
PIECE_BITS = 24
HELLO_TAG = 1
"""Nonce zero, which no transfer has: the first message on every connection. It says nothing."""

RECORD_PIECE = (1 << PIECE_BITS) - 1
"""The piece number of records. UCX keeps messages of one tag and one endpoint in order."""


def make_tag(*, nonce: int, piece: int) -> int:
    """Join a nonce and a piece number (taken modulo the payload's number space).

    Raises:
        ValueError: the nonce is zero or does not fit 40 bits.
    """
    check_nonce(nonce)
    number = piece if piece == RECORD_PIECE else piece % RECORD_PIECE
    return (nonce << PIECE_BITS) | number


def check_nonce(nonce: int) -> int:
    """Return ``nonce``; zero is refused, since a forgotten nonce must not look like one."""
    if not 0 < nonce < (1 << NONCE_BITS):
        raise ValueError(f"nonce {nonce:#x} is not in 1..2^{NONCE_BITS}-1")
    return nonce

import pytest

from pdd.wire.tag import NONCE_BITS, RECORD_PIECE, check_nonce, make_tag


def test_a_tag_holds_nonce_and_piece_apart():
    assert make_tag(nonce=0xABCDEF0123, piece=7) == 0xABCDEF0123000007


def test_a_payload_piece_never_takes_the_number_of_records():
    tags = {make_tag(nonce=1, piece=piece) for piece in (RECORD_PIECE - 1, RECORD_PIECE + 1, 0)}
    assert make_tag(nonce=1, piece=RECORD_PIECE) not in tags


@pytest.mark.parametrize("nonce", [0, -1, 1 << NONCE_BITS])
def test_a_nonce_that_is_none_is_refused(nonce):
    with pytest.raises(ValueError, match="nonce"):
        check_nonce(nonce)

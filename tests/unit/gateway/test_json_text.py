"""JSON for the wire: the standard library's, with what a stream cannot take escaped."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdd.gateway import json_text
from pdd.gateway.json_text import json_bytes

documents = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(documents)
def test_a_document_is_one_line_that_says_the_same(document: object) -> None:
    encoded = json_bytes(document)
    assert json.loads(encoded) == document
    assert len(encoded.decode().splitlines()) == 1


@given(documents)
def test_with_and_without_the_encoder_in_c_it_is_the_same(document: object) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("json.encoder.c_make_encoder", None)
        assert json_text._make_encode()(document) == json_text._encode(document)


@pytest.mark.parametrize("value", [math.nan, [math.inf], {"a": -math.inf}])
def test_what_json_cannot_say_is_an_error(value: object) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        json_bytes(value)

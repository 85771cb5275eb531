"""The note that travels with a request for another scheduler to go on with."""

from dataclasses import replace

import msgpack
import pytest

from pdd.gateway.run import RunName
from pdd.gateway.takeover import from_note, with_note
from tests.unit.gateway.builders import make_job

NAME = RunName(path="/v1/completions", tenant="t", key="k", digest=b"d" * 16)


@pytest.mark.parametrize("choice_count", [1, 3])
def test_a_request_carries_all_that_makes_its_answer(choice_count: int) -> None:
    plain = make_job(usage_chunk=True, echo_text="Once")
    told = replace(
        plain.request,
        choice_count=choice_count,
        tenant="t",
        cache_salt="salt",
        affinity_key="me",
        deadline_s=7.0,
    )
    job = with_note(replace(plain, request=told), NAME)
    node_knows = replace(
        job.request, choice_count=1, tenant="", cache_salt="", affinity_key="", deadline_s=1.0
    )
    again, name = from_note(node_knows)
    assert again == job
    assert name == NAME


@pytest.mark.parametrize(
    "note",
    [
        b"",
        b"\x01",
        b"\xc1",
        b"\x80",
        msgpack.packb({"version": 2}),
        msgpack.packb({"version": 1, "tenant": 7}),
        msgpack.packb({"version": 1}),
    ],
)
def test_what_is_no_note_is_refused_with_the_reason(note: bytes) -> None:
    with pytest.raises(ValueError, match="its note"):
        from_note(replace(make_job().request, resume=note))

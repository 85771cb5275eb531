"""Which requests carry a note for another scheduler to go on with."""

from dataclasses import replace

from pdd.gateway.run import RunName
from pdd.gateway.takeover import from_note, with_note
from tests.unit.gateway.builders import make_job

NAME = RunName(path="/v1/completions", tenant="default", key="k", digest=b"d" * 16)


def test_a_request_of_one_choice_carries_all_that_makes_its_answer() -> None:
    job = with_note(make_job(), NAME)
    again, name = from_note(job.request)
    assert (again.request.request_id, again.stream, name) == ("r-test", job.stream, NAME)


def test_one_of_several_choices_carries_none_and_ends_with_its_scheduler() -> None:
    job = make_job()
    several = replace(job, request=replace(job.request, choice_count=2))
    assert with_note(several, NAME).request.resume == b""

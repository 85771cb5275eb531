"""What schedulers tell each other of a request comes back as it was."""

from dataclasses import fields

import pytest

from pdd.control.convert import request_from_submit
from pdd.control.run_convert import (
    end_from_proto,
    end_to_proto,
    error_from_proto,
    error_to_proto,
    job_to_proto,
)
from pdd.core.errors import (
    AdmissionRejected,
    InvalidRequest,
    NodeUnavailable,
    PddError,
    RequestFailed,
    RequestGone,
    SchedulerStopping,
    UnknownRequest,
)
from pdd.core.frames import Finish, FinishReason
from pdd.core.requests import Ended, Path, RequestUsage
from tests.builders import make_request


def test_every_figure_of_the_usage_arrives() -> None:
    numbers = {
        one.name: number
        for number, one in enumerate(fields(RequestUsage), start=1)
        if one.name not in ("path", "prefill_node", "decode_node")
    }
    usage = RequestUsage(path=Path.LOCAL, prefill_node=None, decode_node=None, **numbers)  # type: ignore[arg-type]
    ended = Ended(finish=Finish(reason=FinishReason.STOP, stop_reason="x"), usage=usage)
    assert end_from_proto(end_to_proto(ended)) == ended


@pytest.mark.parametrize(
    "error",
    [
        RequestGone("g"),
        UnknownRequest("u"),
        SchedulerStopping("s"),
        NodeUnavailable("n"),
        RequestFailed("f"),
        InvalidRequest("i", field="prompt", code="c"),
        AdmissionRejected("a", retry_after_s=3.0),
    ],
    ids=lambda one: type(one).__name__,
)
def test_an_error_keeps_its_kind_and_words(error: PddError) -> None:
    told = error_from_proto(error_to_proto(error))
    assert (type(told), str(told), vars(told)) == (type(error), str(error), vars(error))


def test_a_request_arrives_as_a_node_would_know_it() -> None:
    request = make_request("r1", prompt_token_ids=(1, 2, 3))
    told = request_from_submit(job_to_proto(request))
    assert (told.request_id, told.prompt_token_ids, told.sampling) == (
        request.request_id,
        request.prompt_token_ids,
        request.sampling,
    )

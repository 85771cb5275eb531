"""What schedulers of a group tell each other of a request, over the wire and back."""

import pytest

from pdd.control.group_convert import news_from_proto, news_to_proto
from pdd.core.identity import RequestId
from pdd.rpc.v1 import decisions_pb2
from pdd.scheduler.events import RequestCancelled


@pytest.mark.parametrize("count", [None, 0, 7])
def test_how_much_a_cancelled_request_has_said_is_told_or_that_nobody_knows(
    count: int | None,
) -> None:
    event = RequestCancelled(request_id=RequestId("r1"), output_token_count=count)
    item = news_to_proto(event)
    assert item is not None
    sent = decisions_pb2.HolderItem.FromString(item.SerializeToString())
    assert news_from_proto(sent.news) == event

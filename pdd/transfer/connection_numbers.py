"""Which life of a connection each side is in, so that both give up the same one. Pure.

Two ranks have an endpoint to each other each, and UCX pairs the two. A message that is answered
before its bytes move (rendezvous: what RDMA and GPU memory use) is answered to the endpoint that
the sender's is paired with. When one side has closed its own (to force quiescence) the other's goes
on taking messages, and each ends as cancelled: the answer has nowhere to go. Over TCP nothing tells
the other side in time. So each side counts the endpoints to a peer that it has lost, and a grant
says how many: a source that has lost fewer holds the one that is paired with a closed one, and
closes it before it sends.

::

    lost(peer)              the number grows by one
    grant with a higher --> ours is stale: close it (its loss makes the numbers equal), or, where
                            there is none, take the number over
    grant with ours, or a lower --> ours is as new as the peer's, or newer

A number is about one life of the peer. Bounds: ``REMEMBERED`` peers; one that is forgotten starts
at 0 again, which costs a transfer its one resume at most.
"""

from collections import OrderedDict

from pdd.transfer.values import PeerId

REMEMBERED = 4096


class ConnectionNumbers:
    """See the module."""

    def __init__(self) -> None:
        self._numbers: OrderedDict[PeerId, int] = OrderedDict()

    def of(self, peer: PeerId) -> int:
        """How many endpoints to ``peer`` have been lost here."""
        return self._numbers.get(peer, 0)

    def lost(self, peer: PeerId) -> None:
        """An endpoint to ``peer`` is gone, whoever closed it."""
        self._set(peer, self.of(peer) + 1)

    def heard(self, peer: PeerId, number: int, *, has_endpoint: bool) -> bool:
        """``peer`` says its own number. True when our endpoint to it is stale and must be closed.

        ``has_endpoint``: there is one whose loss has not been counted yet.
        """
        if number <= self.of(peer):
            return False
        self._set(peer, number - 1 if has_endpoint else number)
        return has_endpoint

    def _set(self, peer: PeerId, number: int) -> None:
        if number == 0:
            return
        self._numbers[peer] = number
        self._numbers.move_to_end(peer)
        if len(self._numbers) > REMEMBERED:
            self._numbers.popitem(last=False)

"""What a scheduler says to one attached node: each word becomes a message in the node's outbox."""

import asyncio
from collections.abc import Mapping

from pdd.control.convert import identity_to_proto
from pdd.control.outbox import Outbox
from pdd.core.identity import NodeIdentity
from pdd.rpc.v1 import cluster_pb2


class NodeSession:
    """One attached node. ``send`` may be called from the event loop at any time."""

    def __init__(self, identity: NodeIdentity, hello: cluster_pb2.Hello) -> None:
        self.identity = identity
        self.hello = hello
        self.outbox: Outbox[cluster_pb2.SchedulerMessage] = Outbox()
        self.closed = asyncio.Event()
        self.close_reason = ""

    def submit(self, message: cluster_pb2.SchedulerMessage) -> None:
        """Queue new work: ``message.submits``."""
        self.outbox.put(message)

    def cancel(self, request_id: str) -> None:
        """Queue a cancellation."""
        self.outbox.put(
            cluster_pb2.SchedulerMessage(cancels=cluster_pb2.CancelBatch(request_ids=[request_id]))
        )

    def first_token(
        self,
        request_id: str,
        generation: int,
        token_ids: Mapping[int, int],
        *,
        has_choices: bool = False,
        frame: cluster_pb2.TokenFrame | None = None,
    ) -> None:
        """Queue output token 0 of a decode job's choices, and the frame that an only one came in.

        ``has_choices``: the request has several, though perhaps all but one have ended.
        """
        message = cluster_pb2.FirstToken(request_id=request_id, generation=generation, frame=frame)
        if has_choices:
            message.choices.extend(
                cluster_pb2.ChoiceToken(index=index, token_id=token_id)
                for index, token_id in token_ids.items()
            )
        else:
            (message.token_id,) = token_ids.values()
        self.outbox.put(cluster_pb2.SchedulerMessage(first_token=message))

    def claim(self, request_id: str, generation: int) -> None:
        """Ask for all of a request that the node holds."""
        claim = cluster_pb2.Claim(request_id=request_id, generation=generation)
        claims = cluster_pb2.ClaimBatch(claims=[claim])
        self.outbox.put(cluster_pb2.SchedulerMessage(claims=claims))

    def seek(self, request_id: str, resume_key: bytes) -> None:
        """Ask whether the node holds a request, by its id or else by its key."""
        seek = cluster_pb2.Seek(request_id=request_id, resume_key=resume_key)
        self.outbox.put(cluster_pb2.SchedulerMessage(seek=seek))

    def introduce(self, peers: list[cluster_pb2.PeerNode], *, complete: bool) -> None:
        """Queue news of peers."""
        joined = cluster_pb2.PeersJoined(peers=peers, complete=complete)
        self.outbox.put(cluster_pb2.SchedulerMessage(peers_joined=joined))

    def dismiss(self, identity: NodeIdentity) -> None:
        """Queue the news that a peer has left."""
        left = cluster_pb2.PeerLeft(identity=identity_to_proto(identity))
        self.outbox.put(cluster_pb2.SchedulerMessage(peer_left=left))

    def ask_cache_snapshot(self) -> None:
        """Queue the question what its prefix cache holds."""
        ask = cluster_pb2.AskCacheSnapshot()
        self.outbox.put(cluster_pb2.SchedulerMessage(ask_cache_snapshot=ask))

    def ask_blocks(self, request_id: str, generation: int) -> None:
        """Queue a question for a request's blocks."""
        ask = cluster_pb2.AskBlocks(request_id=request_id, generation=generation)
        self.outbox.put(cluster_pb2.SchedulerMessage(ask_blocks=ask))

    def close(self, reason: str) -> None:
        """End the stream from this side. Idempotent."""
        self.close_reason = self.close_reason or reason
        self.closed.set()

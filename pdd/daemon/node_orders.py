"""What the core wants nodes to do, as messages to them.

A node without a session is passed over: its loss is on its way to the core as an event.
"""

from collections.abc import Mapping

from pdd.control.convert import frame_to_proto, logprobs_to_proto, sampling_to_proto
from pdd.control.node_session import NodeSession
from pdd.core.identity import NodeName, RequestId
from pdd.core.ports import Clock
from pdd.daemon.prompt_keys import prefix_salt
from pdd.daemon.request_stream import RequestStream
from pdd.rpc.v1 import cluster_pb2
from pdd.scheduler.core import SchedulerCore
from pdd.scheduler.effects import Cancel, DismissPeer, GiveFirstToken, IntroducePeers, Submit


class NodeOrders:
    """Each kind of order is one method; reads the scheduler's state, never changes it."""

    def __init__(
        self,
        *,
        core: SchedulerCore,
        sessions: Mapping[NodeName, NodeSession],
        streams: Mapping[RequestId, RequestStream],
        hellos: Mapping[NodeName, cluster_pb2.Hello],
        clock: Clock,
    ) -> None:
        """``hellos``: of every node that the core knows."""
        self._core = core
        self._sessions = sessions
        self._streams = streams
        self._hellos = hellos
        self._clock = clock

    def submit(self, effect: Submit) -> None:
        """A request, or what is left of it, to the node that is to compute it."""
        session = self._sessions.get(effect.node)
        if session is None:
            return
        request = effect.request
        sampling = request.sampling
        stream = self._streams.get(request.request_id)
        if stream is None:
            return  # its client left in this very step; the cancellation is on its way as an event
        assert effect.kind == "local" or not stream.token_count, "a shown token cannot travel"
        # Made inside its message: as an argument to a constructor a submit is copied, which takes
        # 20 us for a prompt of 2,000 tokens each time.
        message = cluster_pb2.SchedulerMessage()
        submit = message.submits.submits.add(
            request_id=request.request_id,
            generation=effect.generation,
            kind=effect.kind,
            prompt_token_ids=request.prompt_token_ids,
            sampling=sampling_to_proto(sampling),
            cache_salt=prefix_salt(request),
            priority=request.priority,
            deadline_s=effect.deadline_s,
            grammar_kind=sampling.grammar.kind if sampling.grammar else "",
            grammar_value=sampling.grammar.value if sampling.grammar else "",
            allowed_token_ids=sampling.allowed_token_ids,
            resume=request.resume,
            resume_key=request.resume_key,
        )
        if request.choice_count == 1:
            submit.emitted_token_ids.extend(stream.choices[0].token_ids)
        else:
            submit.choices.extend(
                cluster_pb2.SubmitChoice(
                    index=index, emitted_token_ids=stream.choices[index].token_ids
                )
                for index in effect.choices
            )
        if request.resume:
            self._add_history(submit, stream)
        if effect.kind == "decode":
            assert effect.source is not None
            self._add_source(submit.source, effect.source)
            submit.lends = effect.pull is not None
        elif effect.pull is not None:
            assert effect.source is not None
            self._add_source(submit.pull.source, effect.source)
            submit.pull.token_count = effect.pull.token_count
            submit.pull.wait_s = effect.pull.wait_s
        session.submit(message)

    def give_first_token(self, effect: GiveFirstToken) -> None:
        """To the decode node, which waits for it."""
        session = self._sessions.get(effect.node)
        if session is None:
            return
        stream = self._streams.get(effect.request_id)
        if stream is None:
            return  # its client left in this very step; the cancellation is on its way as an event
        first = stream.first_frame
        session.first_token(
            effect.request_id,
            effect.generation,
            effect.token_ids,
            has_choices=len(stream.choices) > 1,
            frame=None if first is None else frame_to_proto(first, generation=effect.generation),
        )

    def cancel(self, effect: Cancel) -> None:
        """A request that the node is to forget."""
        session = self._sessions.get(effect.node)
        if session is not None:
            session.cancel(effect.request_id)

    def introduce(self, effect: IntroducePeers) -> None:
        """Peers that have joined."""
        session = self._sessions.get(effect.node)
        if session is not None:
            peers = [self._peer(peer.name) for peer in effect.peers]
            session.introduce(peers, complete=effect.complete)

    def dismiss(self, effect: DismissPeer) -> None:
        """A peer that has left."""
        session = self._sessions.get(effect.node)
        if session is not None:
            session.dismiss(effect.peer)

    def _add_history(self, submit: cluster_pb2.Submit, stream: RequestStream) -> None:
        """What a scheduler that takes over cannot ask anybody any more."""
        if not submit.choices:
            submit.emitted_logprobs.extend(map(logprobs_to_proto, stream.choices[0].logprobs))
        request = self._core.requests.get(RequestId(submit.request_id))
        if request is None:
            return  # it has ended in this very step
        now_s = self._clock()
        submit.arrived_age_s = now_s - request.arrived_s
        submit.placed_age_s = 0.0 if request.placed_s is None else now_s - request.placed_s
        if request.first_token_s is not None:
            submit.first_token_age_s = now_s - request.first_token_s

    def _add_source(self, to: cluster_pb2.PeerNode, name: NodeName) -> None:
        """Where blocks come from."""
        hello = self._hellos[name]
        to.identity.CopyFrom(hello.identity)
        to.address = hello.address
        to.ucx_worker_addresses.extend(hello.ucx_worker_addresses)

    def _peer(self, name: NodeName) -> cluster_pb2.PeerNode:
        """A node as its join told."""
        hello = self._hellos[name]
        return cluster_pb2.PeerNode(
            identity=hello.identity,
            address=hello.address,
            ucx_worker_addresses=hello.ucx_worker_addresses,
            fingerprint=hello.fingerprint,
        )

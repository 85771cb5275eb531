"""What is true between any two events."""

from collections import Counter

from pdd.scheduler.following import may_move
from pdd.scheduler.requests import Phase
from pdd.scheduler.state import State


def check(state: State) -> None:
    """Assert the invariants; for tests and for idle moments."""
    assert state.queue == sorted(state.queue, key=state.turn), "the queue is out of order"
    told = Counter(request.request.tenant for request in state.requests.values())
    assert state.tenants == told, "a tenant's requests are miscounted"
    keyed = Counter(one.request.resume_key for one in state.requests.values())
    del keyed[b""]
    assert {key: len(ones) for key, ones in state.keyed.items()} == keyed, "a key is miscounted"
    queued = set(state.queue)
    assert len(queued) == len(state.queue), "a request is queued twice"
    for request_id, request in state.requests.items():
        assert (request.phase is Phase.QUEUED) == (request_id in queued), request_id
        if request.phase is not Phase.QUEUED:
            runs_on = request.runs_on()
            assert runs_on is not None, f"{request_id} runs nowhere"
            assert request_id in state.nodes[runs_on].leases, f"{request_id} holds no lease"
            node = state.nodes[runs_on]
            grown = node.choice_blocks(
                prompt_token_count=len(request.request.prompt_token_ids),
                output_token_count=request.granted_tokens,
                choice_count=len(request.open_choices),
            )
            assert node.sequences[request_id] == len(request.open_choices), request_id
            if request.decode is not None:
                assert node.leases[request_id] == grown, f"{request_id}: lease and grant differ"
    if state.kept_for is not None:
        assert state.kept_for[0] in queued, "room is kept for one who does not wait"
    for name, switch in state.roles.switches.items():
        node = state.nodes[name]
        assert (node.role, node.next_role) == (switch.source, switch.target), name
    state.nodes.check()
    for node in state.nodes.values():
        node.check()
        assert (node.next_role is None) == (node.name not in state.roles.switches), node.name
        assert not node.is_pinned or node.role is node.home_role, f"{node.name} is pinned"
        for request_id in node.leases:
            holder = state.requests.get(request_id)
            assert holder is not None, f"{node.name} leases blocks to nobody: {request_id}"
            assert node.name in (holder.prefill, holder.decode), request_id
            assert holder.phase is not Phase.QUEUED, request_id
        # A scheduler that does not lead may hold places of two leaders at one node until the second
        # has heard of the first one's, a round trip later; the engine preempts if it comes to that.
        # Whoever comes to lead takes back what is too much, but for what cannot move.
        if state.leads and node.unleased_block_count() < 0:
            movable = [name for name in node.leases if may_move(state.requests[name])]
            assert not movable, f"{node.name} promised too many blocks: {movable}"

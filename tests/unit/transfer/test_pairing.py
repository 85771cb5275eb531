from pdd.core.identity import NodeIdentity, NodeName
from pdd.transfer.pairing import PeerNode, pair_faults, rank_links


def make_fingerprint(**changes):
    """A node that can be cut anyhow; 4 heads, 3 layers."""
    fields = {
        "model": "tiny",
        "tensor_parallel_size": "2",
        "kv_layers": "3",
        "kv_heads": "4",
        "block_size": "16",
        "kv_token_bytes": "32",
        "kv_order": "LHN",
        "kv_reshard": "yes",
    } | changes
    return {name: value for name, value in fields.items() if value is not None}


def make_peer(fingerprint, *, rank_count):
    return PeerNode(
        identity=NodeIdentity(name=NodeName("decode-0"), uuid="u", boot_epoch=3),
        control_address="host:1",
        ucx_addresses=tuple(bytes([rank]) for rank in range(rank_count)),
        fingerprint=fingerprint,
    )


def links_of(ours, theirs):
    own, other = int(ours["tensor_parallel_size"]), int(theirs["tensor_parallel_size"])
    assert pair_faults(ours, theirs, peer="decode-0") == []
    return rank_links(ours, rank_count=own, peer=make_peer(theirs, rank_count=other))


def test_nodes_of_one_cut_exchange_whole_blocks_rank_by_rank():
    links = links_of(make_fingerprint(), make_fingerprint())
    assert [(link.own_rank, link.peer.rank) for link in links] == [(0, 0), (1, 1)]
    assert all(link.send is None and link.receive is None for link in links)
    assert links[1].peer.ucx_address == b"\x01"
    assert links[1].peer.identity.boot_epoch == 3


def test_other_tensor_parallelism_is_bridged_by_parts_of_blocks():
    links = links_of(make_fingerprint(), make_fingerprint(tensor_parallel_size="4"))
    assert [(link.own_rank, link.peer.rank) for link in links] == [(0, 0), (0, 1), (1, 2), (1, 3)]
    own_block, other_block = 3 * 2 * 16 * 32, 3 * 1 * 16 * 32
    for link in links:
        assert sum(size for _, size in link.send) == other_block
        assert link.receive == link.send, "the same bytes go either way"
        assert all(offset + size <= own_block for offset, size in link.send)


def test_both_sides_of_a_bridge_agree_on_pairs_and_bytes():
    two, four = make_fingerprint(kv_order="HLN"), make_fingerprint(tensor_parallel_size="4")
    ours = {(link.own_rank, link.peer.rank): link for link in links_of(two, four)}
    theirs = {(link.peer.rank, link.own_rank): link for link in links_of(four, two)}
    assert ours.keys() == theirs.keys()
    for pair, link in ours.items():
        assert sum(size for _, size in link.send) == sum(size for _, size in theirs[pair].receive)


def test_an_engine_that_moves_whole_blocks_refuses_another_cut_with_both_values():
    theirs = make_fingerprint(
        tensor_parallel_size="4", kv_reshard=None, kv_block_shape="16x1x64", model="tiny"
    )
    ours = make_fingerprint(kv_reshard=None, kv_block_shape="16x2x64")
    [fault] = pair_faults(ours, theirs, peer="decode-0")
    assert fault.startswith("tensor_parallel_size is 2 here and 4 at decode-0")
    assert "rank by rank" in fault


def test_one_engine_that_cannot_be_cut_is_enough_to_refuse():
    theirs = make_fingerprint(tensor_parallel_size="4", kv_reshard=None)
    faults = pair_faults(make_fingerprint(), theirs, peer="decode-0")
    assert any("kv_reshard is yes here and unknown at decode-0" in fault for fault in faults)


def test_a_cut_that_cannot_be_bridged_is_refused_with_the_reason_of_the_plan():
    ours = make_fingerprint(tensor_parallel_size="1", kv_heads="3")
    theirs = make_fingerprint(tensor_parallel_size="2", kv_heads="3")
    [fault] = pair_faults(ours, theirs, peer="decode-0")
    assert "tensor_parallel_size is 1 here and 2 at decode-0" in fault
    assert "kv_head_count 3 and tp_size 2: neither divides the other" in fault


def test_other_differences_are_named_however_blocks_are_cut():
    theirs = make_fingerprint(tensor_parallel_size="4", model="huge", block_size="32")
    assert pair_faults(make_fingerprint(), theirs, peer="node decode-0", here="at node p-0") == [
        "model is tiny at node p-0 and huge at node decode-0",
        "block_size is 16 at node p-0 and 32 at node decode-0",
    ]


def test_a_fingerprint_without_a_cut_cannot_be_bridged():
    theirs = make_fingerprint(tensor_parallel_size="4", kv_layers="some")
    [fault] = pair_faults(make_fingerprint(kv_layers="some"), theirs, peer="decode-0")
    assert "does not tell how blocks are cut" in fault

"""Which node holds which KV blocks: a pure room.

    keys        token ids -> chain of 128-bit block keys
    mirror      on a node: its engine's KV events -> numbered deltas and snapshots
    entries     deltas, snapshots <-> versioned entries
    machine     the replicated state machine: apply, look up, snapshot, hash
    nodes       whose cache is known up to which event
    index       blocks -> nodes      over  table (keys -> words)  and  node_sets (words -> nodes)

A look-up is a hint. No byte is skipped on its word: the engine's own hash decides.
Where a request is, and at whom, is in `pdd.cell.sequences`.
"""

"""Which node holds which KV blocks: a pure room.

    keys        token ids -> chain of 128-bit block keys
    mirror      on a node: its engine's KV events -> numbered deltas and snapshots
    entries     deltas, snapshots <-> versioned entries
    machine     the replicated state machine: apply, look up, snapshot, hash
    nodes       whose cache is known up to which event
    index       blocks -> nodes      over  table (keys -> words)  and  node_sets (words -> nodes)
    buckets     the table's inner loops, compiled; compiled_keys: the chain of a prompt's, likewise

Each scheduler has one of its own, fed by every node (`pdd.daemon.directory_feed`): it is not in the
log, and `pdd.cell` says why and what that was measured to cost. ``apply`` takes entries all the
same, so that a history can be replayed and compared.

A look-up is a hint. No byte is skipped on its word: the engine's own hash decides.
Where a request is, and at whom, is in `pdd.cell.sequences`.
"""

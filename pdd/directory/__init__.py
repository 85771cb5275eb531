"""Which node holds which KV blocks, and where every running sequence is: a pure room.

    keys        token ids -> chain of 128-bit block keys
    mirror      on a node: its engine's KV events -> numbered deltas and snapshots
    entries     deltas, snapshots, sequence changes <-> versioned log entries
    machine     the replicated state machine: apply, look up, locate, snapshot, hash
    nodes       whose cache is known up to which event
    index       blocks -> nodes      over  table (keys -> words)  and  node_sets (words -> nodes)
    sequences   requests -> nodes, blocks and owner

A look-up is a hint. No byte is skipped on its word: the engine's own hash decides.
"""

"""What the schedulers of a cell have agreed on: the replicated state, a pure room.

    operations  what can be said: members, cordons, overrides, quotas; and blocks and sequences
    codec       operations <-> versioned bytes; this release reads its own and the one before
    tables      rows with a hash that is kept up to date row by row
    state       the hard tables and what each operation does to them
    machine     the state machine that raft drives (`pdd.raft.machine.StateMachine`)
    followed    the soft part where somebody keeps it: the block directory, fed by the same log
    pacing      which entry to propose next: hard ones first, soft ones in batches

*Hard* entries (members and their boot epochs, roles, cordons, configuration overrides, quotas) are
answered after commit and fsync, and are what a snapshot holds. *Soft* entries (blocks, sequences)
go through the same log in the same order and are forgotten with it: no snapshot and no state hash
knows them, and they are answered with nothing. They come back from the nodes, which know better.

The sequence table is soft for three reasons. A new leader takes the nodes' own reports as truth, so
a table that survived would only be contradicted. Block ids are many (2k tokens at tensor
parallelism 4 are 500 numbers), and a snapshot that holds a thousand sequences' is megabytes of
what the next second makes stale. And what is in the hash must be in the snapshot: soft entries are
in neither, so a replica that was restored from a snapshot agrees with one that never stopped.
"""

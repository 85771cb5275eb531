"""What the schedulers of a cell have agreed on: the replicated state, a pure room.

    operations  what can be said for good: members, cordons, roles, overrides, quotas
    codec       operations <-> versioned bytes, of this release and of what the one before writes
    tables      rows with a hash that is kept up to date row by row
    state       the hard tables and what each operation does to them
    machine     the state machine that raft drives (`pdd.raft.machine.StateMachine`)
    sequences   the soft part: which scheduler has which request, and where that runs
    claims      which scheduler may run a client's key, as the leader grants it
    pacing      which entry to propose next: hard ones first, soft ones in batches

*Hard* entries (members and their boot epochs, roles, cordons, configuration overrides, quotas) are
answered after commit and fsync, and are what a snapshot holds. *Soft* entries (where requests are)
go through the same log in the same order and are forgotten with it: no snapshot and no state hash
knows them, and they are answered with nothing.

The sequence table is soft because it is a hint. A new leader takes the nodes' own reports as truth,
so a table that survived would only be contradicted; and what is in the hash must be in the
snapshot. It says who has a request, on which nodes and in which attempt; not the block ids, which
are many (2k tokens at tensor parallelism 4 are 500 numbers) and which the nodes tell at any time.

The block directory does not go through the log. Every node is attached to every scheduler and tells
each of them what its cache holds, numbered, so that a scheduler sees what it has missed and asks
(``daemon/cache_feed``, ``daemon/directory_feed``). Through the log the same bytes would be written
to three disks with an fsync, pass through the leader twice, and come later. What that costs is
measured by `pdd bench raft` (``soft_rows``), which commits as many bytes; three processes on one
2-core machine, idle::

    soft load beside hard entries                     bytes/s    hard entries' p99
    none                                                    0    4.5 ms
    sequence table of 5,000 requests/s                 1.1 MB    6.6 ms
    700,000 blocks/s, were they in the log            11.2 MB   11.3 ms

So the directory of a follower is never older than the leader's, survives a lost majority, and adds
nothing to log or snapshots, however many keys it has. A scheduler that starts, or comes back, has
it from the nodes: each tells the number it has reached, the scheduler asks those for a snapshot
whose number it does not know, a few at a time, and decides without a prefix it does not know yet
(it is computed again, nothing is wrong). A change of leaders needs nothing: the next has its own.
"""

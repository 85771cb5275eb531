"""Consensus: a replicated log that never loses what it has acknowledged.

A pure room: no clock, no I/O, no asyncio, no global randomness. `RaftCore` takes inputs (`tick`,
`step`, `propose`, `read_index`, `transfer`) and gives one `Ready`, whose fields say what the
driver must do and in which order. The same object runs under the simulator and in production.

    values        Entry, HardState, Snapshot: what the log is made of
    messages      what replicas say to each other, and what is refused at the door
    codec         messages to and from bytes, with a version on every envelope
    config        voters, timing in ticks, and every bound
    quorum        arithmetic of majorities
    log           entries held in memory, conflict search, what is durable, what is applied
    progress      what the leader knows of one follower; flow control
    state         everything one replica knows; Leadership is what exists only while leading
    roles         follower, pre-candidate, candidate, leader: the transitions
    election      votes, pre-votes, campaigns, leadership transfer
    replication   append, heartbeat, commit
    snapshots     sending and installing them
    reads         ReadIndex
    ready         the output, with its ordering duties
    core          RaftCore, the facade over all of the above
    machine       the StateMachine contract, and Applier which drives one
    sessions      exactly-once commands: the session table inside the replicated state
    proposals     what became of a proposal: ok, rejected or unknown

Source: D. Ongaro, J. Ousterhout, "In Search of an Understandable Consensus Algorithm" (extended
version, 2014), called "the paper" here; D. Ongaro, "Consensus: Bridging Theory and Practice"
(2014), called "the thesis". Limits of this version: 1, 3 or 5 fixed voters, no membership change
while running, no reads by lease (a clock takes no part in safety).
"""

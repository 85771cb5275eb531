"""``pdd drill schedulers``: break a whole cluster under load, round by round, and check what
clients were told.

faults    what is done to whom in a round, drawn from the seed. Pure.
relay     the network between the schedulers, which can be cut
cluster   three schedulers and synthetic nodes as processes of this one
load      clients at all schedulers, and what each of them saw
verdict   what must hold of it, and what it took. Pure.
run       the rounds

``pdd drill raft`` is a level below: replicas of the log alone, and every write of theirs checked
(``pdd.replication.drill``).
"""

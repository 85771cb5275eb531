"""``pdd drill raft``: break real replica processes under load, then check every promise.

faults     what is done to whom in a round, drawn from the seed
workload   clients, what they were told, and the history they record
soft_load  soft entries beside them
verdict    what must hold afterwards; pure
run        the rounds
"""

"""The raft driver's side of the world: what one replica keeps on disk.

errors      what can be wrong with a disk, and what to do about it
filesystem  the few calls used, as a Protocol; the real one, and a simulated one in the tests
record      one WAL record: header, checksum, and how a torn write is told from damage
segment     one preallocated file of records
wal         the sequence of segments: append, roll, replay, drop what a snapshot covers
snapshots   snapshot files
storage     both together: what `Ready` asks to persist, and what a restart finds
"""

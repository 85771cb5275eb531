"""The synthetic engine: real in everything but arithmetic.

::

    engine     the driver: asyncio loop, step times, faults
    transfers  one fate per job from the transfers of all ranks; prefixes that are pulled and lent
    batch      which sequences compute what in a step; admission, preemption      (pure)
    ledger     who holds which block; prefix cache; counts of block states        (pure)
    kv_rows    the bytes that a position writes, and what all bytes of a sequence say
    choice     from those bytes to the next token                                 (pure)
    rules      which jobs are taken, when an output ends                          (pure)
    sequence   one job's state
    model      a tokenizer and configuration as a model folder, made in code

A position's bytes follow from the row before it, read from the pool, its token and its index; the
next token follows from *all* bytes of the sequence, read at every step. So a block that is wrong,
stale, missing or somebody else's changes the text, and equal text means equal blocks.
"""

"""Moves the KV blocks of a sequence from one pool to reserved blocks of another, rank to rank.

Knows nothing of vLLM: blocks are byte ranges of registered memory (``pool``). ``engine`` is the
way in; ``protocol_source`` and ``protocol_target`` decide (pure, with the diagrams); ``driver``
obeys them in the one thread that owns UCX; ``ucx_transport`` is the only module that knows ucxx.

Importing this package must stay cheap and must not import ucxx: vLLM's processes import it, and
UCX may be loaded in the worker process only.
"""

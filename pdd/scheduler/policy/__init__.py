"""Which path, which nodes: a pipeline of small pure parts, put together by configuration.

    question (one request) ─► candidates (nodes of a role, with what each would cost it)
        ─► filters (drop some, each says why) ─► scorers (each in [0, 1], weighted sum)
        ─► picker (the best; ties by rendezvous hash) ─► decider (prefill elsewhere, or here)

Candidates are columns, one number per node and quantity (``pdd.scheduler.pools``), and a filter or
scorer looks at all of them at once: a decision among hundreds of nodes costs about what one among a
few does. What a part says of one node, in words, is only made for those that somebody reads of.

``candidate`` is what parts read, ``filters`` and ``scorers`` hold one function per idea,
``profile`` runs them and keeps what each said, ``decider`` chooses the path, ``place`` puts all of
it together. The names in a profile are the keys of ``FILTERS`` and ``SCORERS``; ``pdd.config``
knows the same names.
"""

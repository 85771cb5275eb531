"""Which path, which nodes: a pipeline of small pure parts, put together by configuration.

    question (one request) ─► candidates (nodes of a role, with what each would cost it)
        ─► filters (drop some, each says why) ─► scorers (each in [0, 1], weighted sum)
        ─► picker (the best; ties by rendezvous hash) ─► decider (prefill elsewhere, or here)

``candidate`` is what parts read, ``filters`` and ``scorers`` hold one function per idea,
``profile`` runs them and keeps what each said, ``decider`` chooses the path, ``place`` puts all of
it together. The names in a profile are the keys of ``FILTERS`` and ``SCORERS``; ``pdd.config``
knows the same names.
"""

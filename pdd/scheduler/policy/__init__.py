"""Which path, which nodes: a pipeline of small pure parts, put together by configuration.

    question (one request) ─► candidates (nodes of a role, with what each would cost it)
        ─► filters (drop some, each says why) ─► scorers (each in [0, 1], weighted sum)
        ─► picker (the best; ties by rendezvous hash) ─► decider (prefill elsewhere, or here)

Candidates are columns of one table, one number per node and quantity (``pdd.scheduler.pools``).
Filters and scorers are compiled functions of one column each, and one call runs all that the
configuration names over a whole pool: a decision among hundreds of nodes costs not much more than
one among a few. What a part says of one node in words is only made where somebody reads it.

``parts`` holds one compiled function per idea, and what runs them; ``filters`` and ``scorers`` give
them their names, and filters their words. ``candidate`` is what is asked and of whom, ``profile``
runs the parts that are configured and keeps what each said, ``decider`` chooses the path, ``place``
puts all of it together. The names in a profile are the keys of ``FILTERS`` and ``SCORERS``;
``pdd.config`` knows the same names.
"""

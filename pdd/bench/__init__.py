"""Load generators and what is made of their samples: ``pdd bench serve`` and ``pdd bench gateway``.

How a run goes, and where:

1. ``arrivals``, ``traces``, ``workload``   (pure) who asks when, and for what: fixed by the seed
   before the first request leaves.
2. ``prompts``        (pure) text of a wished length in tokens, whatever the tokenizer is.
3. ``workers``        starts processes; ``worker`` is what runs in one: ``generator`` sends,
                      ``http_client`` speaks HTTP on raw sockets, ``token_events`` (pure) reads
                      server-sent events.
4. ``samples``        what was seen of each request, as columns; merged from all processes.
5. ``percentiles``, ``goodput``, ``report``, ``picture``   figures, JSON and drawing of it.

``ceiling`` measures how fast the generator itself can be. ``cluster`` starts a cluster for as long
as a measurement takes: ``gateway_*`` measures the scheduler process of a synthetic one, ``live_*``
(``pdd bench transfer --live``) the transfers between two real engines.
"""

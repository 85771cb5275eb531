"""A client of pdd's HTTP API that survives lost connections and lost schedulers.

::

    async with Client(["http://10.0.0.1:8000", "http://10.0.0.2:8000"]) as client:
        async for document in client.stream("/v1/chat/completions", body):
            ...

What goes wrong is one of ``pdd.core.errors``: ``NodeUnavailable`` when nobody serves at any
address, ``RequestFailed`` when a server has refused or lost the request.

``client``   requests and streams; goes on at the next address after the last event that came.
``retry``    which address next, after what pause, and when to give up. Pure.
``sse``      reads server-sent events. Pure.

It needs ``aiohttp`` and ``pdd.core.errors``, nothing else of pdd.
"""

from pdd.client.client import Client

__all__ = ["Client"]

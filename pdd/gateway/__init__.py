"""The front door: OpenAI-compatible HTTP with server-sent events, and the public gRPC service.

What happens to a request, and where:

1. ``http_connection``  one client's connection: bytes in, answers out, one after the other, with
                        bounds of size and time. ``http_reader`` parses, ``http_request`` judges.
2. ``front``            says who answers: ``answer`` for inference, ``framework`` (an aiohttp
                        application, ``app``) for every other page, on the same port.
3. ``body``, ``schema_*``  parse and check every field; ``sampling_fields`` makes ``Sampling``.
4. ``door``             renders the chat template, tokenises once, checks lengths and vocabulary.
                        HTTP and gRPC both come through here: one place says what is allowed.
5. ``answer``           is the sink that the scheduler calls for every token, and ends every answer
                        exactly once. ``event_stream`` is its way out, bounded for slow readers.
                        ``request_opening`` says what is answered: a new request, or one that runs
                        or ran (``runs``): with the same key, or continued after ``event_ids``.
                        ``takeover`` is what travels along, for another scheduler to go on.
6. ``completions``, ``chat``   shape the answer; pure, so that their bytes can be tested alone.
7. ``errors``           the edge table: every error of ``pdd.core.errors`` as HTTP and as gRPC.

From a node's message to the client's socket there is no task switch, queue or future: the driver
calls ``Answer.token``, which writes (``text_flow`` is all that it needs for most of them). Work
per token is what this room is careful about; work per request may be plain.

Only ``grpc_inference`` knows protobuf.
"""

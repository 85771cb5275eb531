"""The front door: OpenAI-compatible HTTP with server-sent events, and the public gRPC service.

What happens to a request, and where:

1. ``body``           reads and parses it, within bounds of size, time and depth.
2. ``schema_*``       checks every field; ``sampling_fields`` turns them into ``Sampling``.
3. ``door``           renders the chat template, tokenises once, checks lengths and vocabulary.
                      HTTP and gRPC both come through here: one place says what is allowed.
4. ``serving``        drives ``Inference.generate`` and ends every response exactly once.
5. ``completions``, ``chat``   shape the answer; pure, so that their bytes can be tested alone.
6. ``errors``         the edge table: every error of ``pdd.core.errors`` as HTTP and as gRPC.

Only ``grpc_inference`` knows protobuf.
"""

"""pdd serves large language models with prefill and decode on separate nodes.

The life of a request, and the room that each step lives in:

1. ``gateway``    takes HTTP or gRPC, validates, renders the chat template, tokenises once.
2. ``scheduler``  (pure) picks a prefill node and a decode node; reserves blocks on the latter.
3. ``control``    sends the decode node its reservation and the prefill node the prompt.
4. ``engine``     runs the prompt in chunks; ``connector`` (inside vLLM's worker) hands every
                  finished KV block to ``transfer``, which moves it over UCX into the blocks
                  that the decode engine has reserved, while the next chunk computes.
5. The first token leaves for the client as soon as the prefill node has it.
6. The decode node appends it to the waiting sequence, checks that every block arrived
   (nonce, count and digest, from its own memory) and continues with the second token.
7. Frames ``(first_token_index, token_ids, text_offset, text)`` stream to the scheduler, which
   shows each token once and ends the request exactly once.
8. Usage tells which path was taken, what it cost, and how many bytes really moved.

Rooms import only downwards; ``lint-imports`` checks it (``pyproject.toml``). Rooms that decide
(``core``, ``wire``, ``scheduler``, ``directory``, ``raft``, ``cell``, ``timing``,
``transfer.protocol_*``) know no clock, socket or log. ``cell`` is the state that the schedulers
agree on by ``raft``, whose processes ``replication`` runs; ``directory`` says which nodes hold
which blocks, as those tell every scheduler.
This module imports nothing: vLLM loads ``pdd.connector`` in each of its worker processes.
"""

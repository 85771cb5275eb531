"""Engines behind one interface (``port``), and the way from engine steps to frames.

``vllm_engine`` runs vLLM's AsyncLLM, ``vllm_forks`` several choices of one job on it;
``link_server`` is the daemon's end of the socket to the connector's worker halves; ``synthetic`` is
a whole engine without a model, real in everything but arithmetic; ``output_*`` turns tokens into
text and frames.
"""

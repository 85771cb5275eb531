"""What runs inside vLLM's own processes.

vLLM makes the connector twice: a *scheduler half* in ``VLLM::EngineCore`` and a *worker half* in
each ``VLLM::Worker``. Only pickled metadata passes between them, once per engine step. pdd's
node daemon is a third process; it talks to the worker halves over one Unix socket each.

    node daemon (AsyncLLM)          EngineCore                        Worker (one per rank)
    ──────────────────────          ──────────                        ─────────────────────
    generate(params) ── zmq ──────► on_new_request
                                    update_state_after_alloc
                                    build_connector_meta ─ metadata ► bind_connector_metadata
                                                                        targets open, grants leave
                                                                      (forward)
                                                                      wait_for_save
                                                                        finished blocks leave
    ◄─────────── link: progress, ready, control ───────────────────── link thread
    ───────────► link: first token, control, drop ──────────────────► transfer engine
                                    update_connector_output ◄ output ─ get_transfer_results
                                      first token appended
                                      blocks freed or sequence promoted

A prefill job that pulls a prefix (``params.Pull``) is loaded like a decode job, then computed and
sent like any prefill job. A decode job lends (``JobParams.lends``) the cached blocks that vLLM
holds for it while it waits: ``scheduler_side`` names them with its target, ``worker_side`` offers
them.

``facade`` is the class that vLLM loads (``kv_connector_module_path="pdd.connector.facade"``).
This module imports nothing, so that a daemon may read ``link_messages`` without loading vLLM.

Contracts: ``vllm/distributed/kv_transfer/kv_connector/v1/base.py`` and
``vllm/v1/core/sched/scheduler.py``, vLLM 0.32 and 0.33.
"""

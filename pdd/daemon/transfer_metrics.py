"""Which of the transfer engines' counters are metrics, and under which names.

A node sends what its engine counts (``NodeStatus.transfer_counters``), rank 0's where there are
several ranks. Only names that stand here are kept, so that neither memory nor labels can grow with
what a node invents. Names as in Prometheus: base units, ``_total`` on what only grows.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from pdd.core.identity import NodeName
from pdd.transfer.values import Reason

_PREFIX = "pdd_kv_transfer_"
_REFUSED = "refused_"


@dataclass(frozen=True, slots=True)
class _Known:
    name: str
    help: str
    grows: bool = True
    prefix: str = _PREFIX


_KNOWN = {
    "sent_bytes": _Known("sent_bytes", "KV bytes that a node has sent"),
    "received_bytes": _Known("received_bytes", "KV bytes that a node has received"),
    "ucx_bytes": _Known("sent_ucx_bytes", "KV bytes sent through UCX"),
    "shared_bytes": _Known("sent_shared_memory_bytes", "KV bytes sent through shared memory"),
    "chunks_sent": _Known("sent_chunks", "Chunks that a node has sent"),
    "chunks_received": _Known("received_chunks", "Chunks that a node has received"),
    "chunks_discarded": _Known("discarded_chunks", "Chunks that came for nobody"),
    "digest_mismatches": _Known("digest_mismatches", "Chunks that came with other bytes"),
    "chunks_overtaken": _Known(
        "overtaken_chunks", "Chunks whose slot in shared memory was used anew before their copy"
    ),
    "resumes": _Known("resumes", "Transfers that went on after a lost connection"),
    "grants_refused": _Known("refused_grants", "Grants of a node that their source refused"),
    "unanswered_grants": _Known("unanswered_grants", "Grants of a node that nobody answered"),
    "peers_lost": _Known("lost_peers", "Connections that broke"),
    "connects": _Known("connects", "Connections that a node has opened"),
    "endpoints_closed": _Known("closed_endpoints", "Connections closed to end reads or writes"),
    "callers_refused": _Known("refused_callers", "Messages in the name of another node"),
    "control_send_failures": _Known("control_send_failures", "Control messages not sent"),
    "transfers_completed": _Known("received_transfers", "Transfers into a node that completed"),
    "transfer_s": _Known("received_transfer_seconds", "Time these took, from ticket to last block"),
    "moving_s": _Known(
        "received_moving_seconds", "Time these took, from their source's answer to the last block"
    ),
    "pulls_completed": _Known("completed_pulls", "Prefixes that a prefill node has pulled"),
    "pulls_not_held": _Known(
        "not_held_pulls", "Prefixes of which the decode node held no more, or not all, when asked"
    ),
    "pulls_failed": _Known("failed_pulls", "Prefixes that did not come in time, or not whole"),
    "pulled_bytes": _Known("pulled_bytes", "KV bytes of pulled prefixes"),
    "thread_cpu_s": _Known("thread_cpu_seconds", "CPU time of the transfer thread"),
    "source_open": _Known("open_sources", "Prefill jobs whose blocks may be fetched", grows=False),
    "target_open": _Known("open_targets", "Decode jobs that wait for blocks", grows=False),
    "pending_grants": _Known("pending_grants", "Grants that came before their job", grows=False),
    "quarantined_blocks": _Known("quarantined_blocks", "Blocks that may be written", grows=False),
    "messages_in_flight": _Known("messages_in_flight", "Messages on their way", grows=False),
    "staging_buffers_lent": _Known("staging_buffers_lent", "Staging buffers in use", grows=False),
    "shared_slots": _Known(
        "shared_memory_slots", "Slots of shared memory, 0 where it cannot be had", grows=False
    ),
    "shared_slots_lent": _Known(
        "shared_memory_slots_lent", "Slots of shared memory in use", grows=False
    ),
    "held_prompts": _Known(
        "held_prompts",
        "Long prompts that wait in a node's engine for their turn",
        grows=False,
        prefix="pdd_node_",
    ),
}
_REASONS = {f"{_REFUSED}{reason.value}": reason.value for reason in Reason}


def known_counters(counters: Mapping[str, float]) -> dict[str, float]:
    """Those that have a metric."""
    return {name: value for name, value in counters.items() if name in _KNOWN or name in _REASONS}


def transfer_metrics(
    counters_by_node: Mapping[NodeName, Mapping[str, float]],
) -> Iterator[Metric]:
    """One family per name that any node has sent; every sample is labelled with its node."""
    for counter, known in _KNOWN.items():
        family_type = CounterMetricFamily if known.grows else GaugeMetricFamily
        family = family_type(known.prefix + known.name, known.help, labels=["node"])
        for node, counters in counters_by_node.items():
            if counter in counters:
                family.add_metric([node], counters[counter])
        if family.samples:
            yield family
    refusals = CounterMetricFamily(
        f"{_PREFIX}refusals", "Messages and grants that a node refused", labels=["node", "reason"]
    )
    for node, counters in counters_by_node.items():
        for counter, reason in _REASONS.items():
            if counter in counters:
                refusals.add_metric([node, reason], counters[counter])
    if refusals.samples:
        yield refusals

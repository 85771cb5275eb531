"""Roles as metrics: what autoscalers of Kubernetes or Slurm go by, and what was switched.

``pdd_role_wanted_replicas`` is how many nodes of a duty would carry the present load as intended,
whoever provides them; ``pdd_role_replicas`` how many take work. They are there in every mode of the
role controller, also when it is off. An autoscaler that follows both pools needs no controller; one
that adds and removes nodes of a fixed total leaves the split to it.
"""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from pdd.daemon.role_desk import RoleDesk


def role_metrics(desk: RoleDesk) -> Iterator[Metric]:
    """Read from the scheduler core at each scrape."""
    pools = desk.pools()
    for name, text, field in (
        ("pdd_role_replicas", "Nodes of a role that take work", "node_count"),
        (
            "pdd_role_wanted_replicas",
            "Nodes of a role that would carry its present load as intended",
            "wanted_count",
        ),
        (
            "pdd_role_load_nodes",
            "How many nodes the work of a role would keep fully busy, smoothed",
            "load_nodes",
        ),
        (
            "pdd_role_pressure",
            "Load of a role over what its nodes are to carry: above 1 they are too few",
            "pressure",
        ),
    ):
        family = GaugeMetricFamily(name, text, labels=["role"])
        for pool in pools:
            family.add_metric([pool.role], getattr(pool, field))
        yield family
    good, late = desk.late_fractions()
    yield GaugeMetricFamily(
        "pdd_role_good_requests_fraction",
        "Of the requests of the last roles.guard_window_s: those that met the objectives",
        value=good,
    )
    family = GaugeMetricFamily(
        "pdd_role_late_requests_fraction",
        "Of the same requests: those that were late by a role",
        labels=["role"],
    )
    for role, fraction in late.items():
        family.add_metric([role], fraction)
    yield family
    switches = CounterMetricFamily(
        "pdd_role_switches",
        "What happened to nodes' roles: by whom, and whether advised, begun, done or abandoned",
        labels=["target", "by", "stage"],
    )
    for (target, by, stage), count in sorted(desk.switch_counts().items()):
        switches.add_metric([target, by, stage], count)
    yield switches

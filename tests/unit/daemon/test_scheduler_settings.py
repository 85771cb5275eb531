"""The configuration and the scheduler core agree on names and defaults."""

from pdd.config.sections import Config, NodeSection, PolicyFilter, PolicyScorer
from pdd.core.identity import Role
from pdd.daemon.scheduler_settings import scheduler_settings
from pdd.scheduler.policy.filters import FILTERS
from pdd.scheduler.policy.scorers import SCORERS
from pdd.scheduler.settings import SchedulerSettings


def test_every_part_of_the_policy_can_be_named_and_no_other() -> None:
    assert {part.value for part in PolicyFilter} == set(FILTERS)
    assert {part.value for part in PolicyScorer} == set(SCORERS)


def test_defaults_are_those_of_the_core_but_for_how_soon_a_node_is_lost() -> None:
    config = Config(node=NodeSection(name="scheduler-0", role=Role.SCHEDULER))
    settings = scheduler_settings(config)
    core = SchedulerSettings(node_silence_s=config.scheduler.node_timeout_s)
    assert settings == core

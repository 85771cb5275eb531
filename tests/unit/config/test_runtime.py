"""Keys that may change while a cluster runs, checked by the same schema as a file's."""

import pytest

from pdd.config.runtime import overridden, runtime_keys
from pdd.config.sections import Config, NodeSection, PathMode, PolicyScorer
from pdd.core.errors import ConfigError
from pdd.core.identity import Role

CONFIG = Config(node=NodeSection(name="scheduler-0", role=Role.SCHEDULER))


def test_values_are_read_as_after_set_and_the_rest_stays() -> None:
    changed = overridden(
        CONFIG,
        {
            "scheduler.path.mode": "local",
            "scheduler.policy.decode_filters": "headroom,spill",
            "scheduler.policy.prefill_scorers": '{"completion": 2.5}',
            "scheduler.queue_limit_requests": "7",
        },
    )
    assert changed.scheduler_path.mode is PathMode.LOCAL
    assert changed.scheduler_policy.decode_filters == ("headroom", "spill")
    assert changed.scheduler_policy.prefill_scorers == {PolicyScorer.COMPLETION: 2.5}
    assert changed.scheduler.queue_limit_requests == 7
    assert changed.scheduler.node_timeout_s == CONFIG.scheduler.node_timeout_s
    assert overridden(CONFIG, {}) == CONFIG


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("scheduler.path.mod", "local", "did you mean 'mode'"),
        ("schedulr.path", "local", "unknown section"),
        ("scheduler.path.mode", "fast", "got 'fast'"),
        ("scheduler.queue_limit_requests", "0", "greater than or equal to 1"),
        ("scheduler.queue.ageing_s", "1e-310", "greater than or equal to 0.001"),
        ("scheduler.policy.spill_above_fraction", "2", "less than or equal to 1"),
        ("scheduler.policy.decode_scorers", "{", "is not JSON"),
        ("http.listen", "127.0.0.1:1", "takes effect at a start only"),
        ("scheduler.node_timeout_s", "9", "takes effect at a start only"),
    ],
)
def test_what_does_not_fit_is_refused_by_key_and_value(key: str, value: str, why: str) -> None:
    with pytest.raises(ConfigError, match=f"(?s){key}.*{why}"):
        overridden(CONFIG, {key: value})


def test_all_faults_are_named_at_once() -> None:
    with pytest.raises(ConfigError) as refused:
        overridden(CONFIG, {"scheduler.path.mode": "fast", "http.listen": "x"})
    assert len(str(refused.value).splitlines()) == 2


def test_every_key_that_may_change_has_a_value_that_is_taken() -> None:
    tables = CONFIG.model_dump(mode="json", by_alias=True)
    assert len(runtime_keys()) > 15
    for name in runtime_keys():
        section, _, key = name.rpartition(".")
        value = tables[section][key]
        text = str(value).replace("'", '"') if isinstance(value, list | dict) else str(value)
        assert overridden(CONFIG, {name: text}) == CONFIG

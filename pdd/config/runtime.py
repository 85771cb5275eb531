"""Which keys may change while a cluster runs, and a configuration with such changes. Pure.

They are what the scheduler core takes up from one decision to the next. What is bound to a port, a
file or the size of something made at the start is not among them.
"""

from collections.abc import Mapping

from pdd.config.relations import broken_relations
from pdd.config.schema import fields_of, sections, split_name, unknown, value_of
from pdd.config.sections import Config
from pdd.core.errors import ConfigError

_WHOLE_SECTIONS = ("scheduler.policy", "scheduler.path", "scheduler.queue")
_SINGLE_KEYS = ("scheduler.queue_limit_requests",)


def runtime_keys() -> list[str]:
    """``section.key`` of each, in the order of the file."""
    return [
        f"{section}.{key}"
        for section in sections()
        for key in fields_of(section)
        if section in _WHOLE_SECTIONS or f"{section}.{key}" in _SINGLE_KEYS
    ]


def overridden(config: Config, overrides: Mapping[str, str]) -> Config:
    """``config`` with other values. ``overrides``: by ``section.key``, written as after ``--set``.

    Raises:
        ConfigError: one line per fault.
    """
    faults = []
    values: dict[str, dict[str, object]] = {}
    for name, text in overrides.items():
        section, key = split_name(name)
        try:
            _check_key(name, section, key)
            values.setdefault(section, {})[key] = value_of(section, key, text)
        except ValueError as error:
            faults.append(f"{name}: {error}")
    if faults:
        raise ConfigError("\n".join(faults))
    changed = config
    for section, update in values.items():
        field = _field_name(section)
        former = getattr(changed, field)
        changed = changed.model_copy(update={field: former.model_copy(update=update)})
    broken = [one.message for one in broken_relations(changed)]
    if broken:
        raise ConfigError("\n".join(broken))
    return changed


def _check_key(name: str, section: str, key: str) -> None:
    """Raises ValueError."""
    if section not in sections():
        raise ValueError(unknown(section, list(sections()), noun="section"))
    if key not in fields_of(section):
        raise ValueError(unknown(key, list(fields_of(section)), noun=f"key in [{section}]:"))
    if name not in runtime_keys():
        raise ValueError(
            "takes effect at a start only: write it into the file. Keys that may change while a "
            f"cluster runs: {', '.join(f'{one}.*' for one in _WHOLE_SECTIONS)}, "
            f"{', '.join(_SINGLE_KEYS)}"
        )


def _field_name(section: str) -> str:
    names = (name for name, field in Config.model_fields.items() if section in (field.alias, name))
    return next(names)

"""Load a configuration: file < environment < flags, all faults at once, each with its origin.

A fault is one line: ``ORIGIN: section.key: what is wrong (got VALUE)``. The origin is a file, a
``$VARIABLE`` or a flag; ``--set section.key`` does not name the key twice. A key that two sources
set wrongly is two faults, because both have to be mended.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic_core import PydanticUndefined

from pdd.config.relations import broken_relations
from pdd.config.schema import faults_of, fields_of, sections, split_name
from pdd.config.sections import Config, TransferTransport
from pdd.config.sources import (
    Flag,
    Setting,
    Source,
    fault_line,
    read_environment,
    read_file,
    read_flags,
)
from pdd.config.tls_files import broken_files
from pdd.core.errors import ConfigError
from pdd.core.identity import Role

DEFAULT_ORIGIN = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A valid configuration, and where each value came from."""

    config: Config
    origins: Mapping[str, str]
    """``section.key`` -> origin, for every key that is not at its default."""

    def origin(self, name: str) -> str:
        return self.origins.get(name, DEFAULT_ORIGIN)


def load_config(
    path: Path | None,
    *,
    environment: Mapping[str, str],
    flags: Sequence[Flag] = (),
    role: Role | None = None,
    presets: Sequence[Setting] = (),
) -> Loaded:
    """Read, merge and check.

    Args:
        path: TOML file; None for none.
        environment: usually ``os.environ``; also gives HOME and STATE_DIRECTORY.
        flags: overrides, the last one wins.
        presets: settings below the file, for a program that starts daemons.
        role: from ``--role``: fills a missing ``node.role`` and must equal a present one.
    Raises:
        ConfigError: one line per fault.
    """
    sources = [Source(list(presets), [])]
    if path is not None:
        sources.append(read_file(path))
    sources += [read_environment(environment), read_flags(flags)]
    faults = [fault for source in sources for fault in source.faults]
    settings = [setting for source in sources for setting in source.settings]
    if path is not None and not settings and faults:
        # An unreadable file misses every key; saying so for each of them would bury the cause.
        raise ConfigError("\n".join(faults))

    faulty = [s for s in settings if faults_of(s.section, s.key, s.value)]
    faults += [
        fault_line(setting.origin, f"{setting.name}: {sentence}")
        for setting in faulty
        for sentence in faults_of(setting.section, setting.key, setting.value)
    ]
    merged = _merge([setting for setting in settings if setting not in faulty])
    faulty_names = {setting.name for setting in faulty}

    if role is not None:
        faults += _role_fault(merged, role)
        if "node.role" not in merged:
            merged["node.role"] = _setting("node", "role", role.value, origin="--role")
    for name in _missing(merged):
        if name not in faulty_names:
            place = path if path is not None else "configuration"
            faults.append(f"{place}: {name}: is missing{_HOW_TO_GIVE.get(name, '')}")
        section, key = split_name(name)
        merged[name] = _setting(section, key, _PLACEHOLDERS[name], origin="placeholder")
        faulty_names.add(name)  # nothing is told by comparing others with a placeholder
    for setting in _derived(merged, environment):
        merged.setdefault(setting.name, setting)

    config = Config.model_validate(_as_tables(merged))
    for broken in (*broken_relations(config), *broken_files(config)):
        if not faulty_names.intersection(broken.keys):
            origins = [merged[key].origin for key in broken.keys if key in merged]
            faults.append(fault_line(origins[-1] if origins else DEFAULT_ORIGIN, broken.message))
    if faults:
        raise ConfigError("\n".join(faults))
    return Loaded(config=config, origins={name: s.origin for name, s in merged.items()})


_PLACEHOLDERS = {"node.name": "missing", "node.role": Role.SCHEDULER.value}
"""Stand in for required keys that are missing, so that the other keys are still checked.
The result is thrown away, because there is a fault."""

_HOW_TO_GIVE = {
    "node.name": "; give the node a name that is unique in the cluster",
    "node.role": "; write scheduler, prefill or decode, or use --role",
}


def _merge(settings: Sequence[Setting]) -> dict[str, Setting]:
    """Last one wins. Tables (``engine.extra``) are merged key by key."""
    merged: dict[str, Setting] = {}
    for setting in settings:
        value = setting.value
        before = merged.get(setting.name)
        if isinstance(value, dict) and before is not None and isinstance(before.value, dict):
            value = before.value | value
        merged[setting.name] = _setting(setting.section, setting.key, value, origin=setting.origin)
    return merged


def _missing(merged: Mapping[str, Setting]) -> list[str]:
    return [
        f"{section}.{key}"
        for section in sections()
        for key, field in fields_of(section).items()
        if field.default is PydanticUndefined and f"{section}.{key}" not in merged
    ]


def _role_fault(merged: Mapping[str, Setting], role: Role) -> list[str]:
    said = merged.get("node.role")
    if said is None or said.value == role:
        return []
    return [
        f"--role {role}: {said.origin} says node.role = '{said.value}'; "
        "drop --role or name the file of the other node"
    ]


def _derived(merged: Mapping[str, Setting], environment: Mapping[str, str]) -> list[Setting]:
    """Defaults that depend on other values."""
    derived: list[Setting] = []
    name = str(merged["node.name"].value)
    if "STATE_DIRECTORY" in environment:
        # systemd separates several by colons; the unit names one.
        folder, origin = environment["STATE_DIRECTORY"].split(":")[0], "$STATE_DIRECTORY"
    else:
        folder, origin = str(user_state_dir(environment) / name), DEFAULT_ORIGIN
    derived.append(_setting("node", "state_dir", folder, origin=origin))
    if (model := merged.get("engine.model")) is not None:
        served = Path(str(model.value)).name
        derived.append(_setting("engine", "served_model_name", served, origin=model.origin))
    if merged["node.role"].value == Role.SCHEDULER:
        derived.append(
            _setting("grpc", "listen", "127.0.0.1:7070", origin="default of a scheduler")
        )
    transport = merged.get("transfer.transport")
    if transport is not None and transport.value == TransferTransport.RDMA:
        derived.append(_setting("transfer", "expect_rdma", True, origin=transport.origin))
    return derived


def user_state_dir(environment: Mapping[str, str]) -> Path:
    """``pdd`` in the user's folder for state, as the XDG base directory specification has it."""
    base = environment.get("XDG_STATE_HOME") or ""
    if base.startswith("/"):
        return Path(base) / "pdd"
    return Path(environment.get("HOME") or "~").expanduser() / ".local" / "state" / "pdd"


def _setting(section: str, key: str, value: object, *, origin: str) -> Setting:
    return Setting(section=section, key=key, value=value, origin=origin)


def _as_tables(merged: Mapping[str, Setting]) -> dict[str, dict[str, object]]:
    tables: dict[str, dict[str, object]] = {section: {} for section in sections()}
    for setting in merged.values():
        tables[setting.section][setting.key] = setting.value
    return tables

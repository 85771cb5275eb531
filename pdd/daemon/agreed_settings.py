"""Overrides and quotas that are agreed on become events of the scheduler core, once each."""

import structlog

from pdd.cell.state import CellState
from pdd.config.runtime import overridden
from pdd.config.sections import Config
from pdd.core.errors import ConfigError
from pdd.daemon.scheduler_settings import scheduler_settings
from pdd.scheduler.events import QuotasChanged, SettingsChanged
from pdd.scheduler.quotas import Quota

log = structlog.get_logger(__name__)


class AgreedSettings:
    """Remembers what the core was told."""

    def __init__(self, config: Config) -> None:
        """``config``: this scheduler's own, without overrides."""
        self.config = config
        self._overrides_hash = 0
        self._quotas_hash = 0

    def events(self, state: CellState) -> list[SettingsChanged | QuotasChanged]:
        """What the core must be told so that it goes by ``state``'s overrides and quotas."""
        events: list[SettingsChanged | QuotasChanged] = []
        if state.overrides.hash != self._overrides_hash:
            self._overrides_hash = state.overrides.hash
            config, faults = usable(self.config, state)
            for key, fault in faults.items():
                log.warning("override_not_used", key=key, reason=fault)
            log.info("overrides_changed", count=len(state.overrides) - len(faults))
            events.append(SettingsChanged(settings=scheduler_settings(config)))
        if state.quotas.hash != self._quotas_hash:
            self._quotas_hash = state.quotas.hash
            quotas = {
                tenant: Quota(
                    requests_max=state.quotas[tenant].running_requests_max,
                    tokens_per_minute_max=state.quotas[tenant].tokens_per_minute_max,
                )
                for tenant in state.quotas.names()
            }
            log.info("quotas_changed", count=len(quotas))
            events.append(QuotasChanged(quotas=quotas))
        return events


def usable(config: Config, state: CellState) -> tuple[Config, dict[str, str]]:
    """``config`` with the overrides that this release can use, and by key why it cannot use others:
    a scheduler of another release has checked those."""
    faults: dict[str, str] = {}
    for key in state.overrides.names():
        try:
            config = overridden(config, {key: state.overrides[key].value})
        except ConfigError as error:
            faults[key] = str(error)
    return config, faults

"""Cordons that are agreed on become events of the scheduler core, once each. Pure."""

from pdd.cell.state import CellState, Cordon
from pdd.core.identity import NodeName
from pdd.scheduler.events import NodeCordoned, NodeUncordoned


class AgreedCordons:
    """Remembers what the core was told."""

    def __init__(self) -> None:
        self._told: dict[str, Cordon] = {}

    def events(self, state: CellState) -> list[NodeCordoned | NodeUncordoned]:
        """What the core must be told so that it knows ``state``'s cordons and no others."""
        events: list[NodeCordoned | NodeUncordoned] = []
        present = {name: state.cordons[name] for name in state.cordons.names()}
        for name, former in self._told.items():
            cordon = present.get(name)
            # A drain does not become a cordon again: one was lifted and another one set since.
            if cordon is None or (former.is_drain and not cordon.is_drain):
                events.append(NodeUncordoned(node=NodeName(name)))
        for name, cordon in present.items():
            if cordon != self._told.get(name):
                events.append(
                    NodeCordoned(
                        node=NodeName(name), message=cordon.message, is_drain=cordon.is_drain
                    )
                )
        self._told = present
        return events

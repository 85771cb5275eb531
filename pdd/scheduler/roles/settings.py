"""What the role controller goes by."""

from dataclasses import dataclass
from enum import StrEnum

from pdd.core.identity import Role


class RoleMode(StrEnum):
    """What the controller may do. It measures in every mode."""

    OFF = "off"
    ADVISE = "advise"  # say what it would switch
    AUTO = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleSettings:
    """``prefill_count_min``, ``decode_count_min``: nodes that take work which the controller leaves
    in each pool. ``*_load_target``: the part of a pool's capacity that is to be used.

    ``window_s``: loads are smoothed over about this time. ``backlog_horizon_s``: work that waits is
    to be done within so long. ``gain_fraction``: the more pressed pool must be so much less pressed
    after a switch. ``sustain_s``: a switch must have been wished for so long without a break.
    ``cooldown_s``: pause after a switch. ``step_fraction``: of all nodes, at most so many move
    together, but at least one may. ``switch_deadline_s``: a node that still runs old work then
    keeps its duty.

    ``ttft_s``, ``tpot_s``: what a request must keep to count as good. ``guard_window_s``: so long
    before a switch and after it its requests are compared. ``guard_loss_fraction``: a switch after
    which so many more of them are late is undone. ``guard_count_min``: fewer requests say nothing.
    ``guard_rest_s``: so long no switch goes the way of one that was undone.
    """

    mode: RoleMode = RoleMode.OFF
    prefill_count_min: int = 1
    decode_count_min: int = 1
    prefill_load_target: float = 0.7
    decode_load_target: float = 0.85
    window_s: float = 20.0
    backlog_horizon_s: float = 10.0
    gain_fraction: float = 0.2
    sustain_s: float = 10.0
    cooldown_s: float = 60.0
    step_fraction: float = 0.1
    switch_deadline_s: float = 300.0
    ttft_s: float = 1.0
    tpot_s: float = 0.1
    guard_window_s: float = 60.0
    guard_loss_fraction: float = 0.1
    guard_count_min: int = 20
    guard_rest_s: float = 300.0

    def count_min(self, role: Role) -> int:
        """Nodes that the controller leaves in a pool."""
        return self.prefill_count_min if role is Role.PREFILL else self.decode_count_min

    def load_target(self, role: Role) -> float:
        """The part of a pool's capacity that is to be used."""
        return self.prefill_load_target if role is Role.PREFILL else self.decode_load_target

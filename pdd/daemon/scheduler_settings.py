"""From the configuration to the settings of the scheduler core."""

from pdd.config.sections import Config, RolesSection
from pdd.scheduler.roles.settings import RoleMode, RoleSettings
from pdd.scheduler.settings import (
    EstimateSettings,
    PathMode,
    PathSettings,
    PolicySettings,
    PullMode,
    QueueSettings,
    SchedulerSettings,
)


def scheduler_settings(config: Config) -> SchedulerSettings:
    """All of them; what the configuration does not have keeps the core's default."""
    policy, path = config.scheduler_policy, config.scheduler_path
    estimates, queue = config.scheduler_estimates, config.scheduler_queue
    return SchedulerSettings(
        queue_request_count_max=config.scheduler.queue_limit_requests,
        node_silence_s=config.scheduler.node_timeout_s,
        decision_memory_s=config.scheduler.decision_memory_s,
        decision_count_max=config.scheduler.decision_limit_requests,
        policy=PolicySettings(
            prefill_filters=tuple(policy.prefill_filters),
            decode_filters=tuple(policy.decode_filters),
            prefill_scorers={str(name): value for name, value in policy.prefill_scorers.items()},
            decode_scorers={str(name): value for name, value in policy.decode_scorers.items()},
            spill_above_fraction=policy.spill_above_fraction,
            affinity_tokens_min=policy.affinity_min_tokens,
            prefill_full_s=policy.prefill_full_s,
            headroom_fraction=policy.headroom_fraction,
            large_fraction=policy.large_request_fraction,
            large_share_fraction=policy.large_share_fraction,
            inbound_full_s=policy.inbound_full_s,
        ),
        path=PathSettings(
            mode=PathMode(path.mode.value),
            local_prompt_tokens_max=path.local_prompt_tokens,
            local_stall_s=path.local_stall_s,
            pull=PullMode(path.pull.value),
        ),
        estimates=EstimateSettings(
            prefill_tokens_per_s=estimates.prefill_tokens_per_s,
            decode_tokens_per_s=estimates.decode_tokens_per_s,
            link_bytes_per_s=estimates.link_bytes_per_s,
            handover_s=estimates.handover_s,
            output_tokens=estimates.output_tokens,
            half_life_s=estimates.half_life_s,
        ),
        queue=QueueSettings(ageing_s=queue.ageing_s, patience_s=queue.patience_s),
        roles=_role_settings(config.roles),
    )


def _role_settings(roles: RolesSection) -> RoleSettings:
    return RoleSettings(
        mode=RoleMode(roles.mode.value),
        prefill_count_min=roles.min_prefill_nodes,
        decode_count_min=roles.min_decode_nodes,
        prefill_load_target=roles.prefill_load_target,
        decode_load_target=roles.decode_load_target,
        window_s=roles.window_s,
        backlog_horizon_s=roles.backlog_horizon_s,
        gain_fraction=roles.gain_fraction,
        sustain_s=roles.sustain_s,
        cooldown_s=roles.cooldown_s,
        step_fraction=roles.step_fraction,
        switch_deadline_s=roles.switch_deadline_s,
        ttft_s=roles.ttft_objective_s,
        tpot_s=roles.tpot_objective_s,
        guard_window_s=roles.guard_window_s,
        guard_loss_fraction=roles.guard_loss_fraction,
        guard_count_min=roles.guard_min_requests,
        guard_rest_s=roles.guard_rest_s,
    )

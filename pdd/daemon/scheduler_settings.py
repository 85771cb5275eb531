"""From the configuration to the settings of the scheduler core."""

from pdd.config.sections import Config
from pdd.scheduler.settings import (
    EstimateSettings,
    PathMode,
    PathSettings,
    PolicySettings,
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
    )

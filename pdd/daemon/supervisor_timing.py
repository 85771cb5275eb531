"""The supervisor's time limits in one place, because they must fit into each other.

A stop takes at most ``STOP_LIMIT_S``, of which daemons have ``STOP_GRACE_S`` before SIGKILL:

    0 s             nodes get SIGTERM
    nodes gone, or SCHEDULER_AFTER_S: the scheduler gets SIGTERM, so that it can still end the
                    open streams of its nodes properly
    STOP_GRACE_S    whatever is left gets SIGKILL
"""

STOP_LIMIT_S = 10.0
STOP_GRACE_S = 8.0
SCHEDULER_AFTER_S = 6.0
KILL_WAIT_S = 1.0
"""From SIGKILL to the process being gone; a process stuck in the kernel is left, and named."""

GUARD_GRACE_S = 7.0
"""What the guard gives to daemons whose supervisor was killed."""

CLEANUP_GRACE_S = 3.0
"""What is given to the engine processes of a daemon that died, before it is restarted."""

PROGRESS_INTERVAL_S = 10.0
"""How often a daemon that is still starting is mentioned."""

MEMBERSHIP_POLL_S = 0.25
"""How often the scheduler is asked whether all nodes have joined, while starting."""

LOG_TAIL_LINES = 20
"""How much of the log of a daemon that failed to start is shown."""

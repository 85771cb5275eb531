"""What the supervisor has to know of a daemon, and writing it to the state folder.

Loads nothing heavy: the supervisor lives as long as its cluster.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pdd.core.errors import PddError
from pdd.core.identity import Role
from pdd.daemon.supervisor_state import write_atomically


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonPlan:
    """One daemon to start."""

    name: str
    role: Role
    state_dir: Path
    config_path: Path
    config_text: str
    log_path: Path
    argv: tuple[str, ...]


def write_plans(plans: Sequence[DaemonPlan]) -> None:
    """Write configurations, make the daemons' folders, begin their logs anew.

    Raises:
        PddError: it cannot be written (disk full, no permission); nothing of it stays.
    """
    written: list[Path] = []
    made: list[Path] = []
    try:
        for plan in plans:
            for folder in (plan.log_path.parent, plan.state_dir):
                if not folder.exists():
                    folder.mkdir(mode=0o700, parents=True)
                    made.append(folder)
            write_atomically(plan.config_path, plan.config_text)
            written.append(plan.config_path)
            plan.log_path.write_bytes(b"")
            written.append(plan.log_path)
    except OSError as error:
        for path in written:
            path.unlink(missing_ok=True)
        for folder in reversed(made):
            with suppress(OSError):  # somebody else put something in
                folder.rmdir()
        raise PddError(
            f"cannot write {error.filename}: {error.strerror}; make room, or use another "
            "--state-dir"
        ) from error

"""Where a daemon keeps what must survive a restart."""

import os
from pathlib import Path

from pdd.config.sections import Config


def state_dir_of(config: Config) -> Path:
    """``node.state_dir``, else systemd's ``$STATE_DIRECTORY``, else a folder of the user's."""
    if config.node.state_dir != Path():
        return config.node.state_dir
    from_systemd = os.environ.get("STATE_DIRECTORY")
    if from_systemd:
        return Path(from_systemd)
    home = os.environ.get("XDG_STATE_HOME")
    base = Path(home) if home else Path.home() / ".local" / "state"
    return base / "pdd" / config.node.name

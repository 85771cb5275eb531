"""``python -m pdd.model``: make the default model if need be and print its folder.

Called by ``bin/pdd setup``. Exit code 0 done, 1 failed with one line on stderr.
"""

import signal
import sys
from types import FrameType

from pdd.core.errors import PddError
from pdd.model.default import ensure_default_model


def main() -> int:
    """Return the exit code."""
    # As an exception, so that the temporary folder is removed on the way out.
    signal.signal(signal.SIGTERM, _exit_on_signal)
    try:
        folder = ensure_default_model()
    except PddError as error:
        sys.stderr.write(f"pdd: error: {error}\n")
        return 1
    sys.stdout.write(f"{folder}\n")
    return 0


def _exit_on_signal(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main())

"""`python -m holdfast.simulation` plays seeds, replays one, and makes a failing one short."""

from __future__ import annotations

import signal
import sys

from holdfast.simulation.runs.commands import main

if __name__ == "__main__":
    # As Ctrl-C: it says what was done, and ends the processes that play.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main(sys.argv[1:]))

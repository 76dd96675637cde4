"""`python -m holdfast.simulation` plays seeds, replays one, and makes a failing one short."""

from __future__ import annotations

import signal
import sys

from holdfast.simulation.runs.commands import main

if __name__ == "__main__":
    # Treated as Ctrl-C, which prints what was done and ends the worker processes.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main(sys.argv[1:]))

"""`python -m holdfast.simulation` plays seeds, replays one, and makes a failing one short."""

from __future__ import annotations

import sys

from holdfast.simulation.commands import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

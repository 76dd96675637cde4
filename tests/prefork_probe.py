"""`python -m tests.prefork_probe CODE`: says what it finds itself to be, and ends with CODE when stdin does."""

from __future__ import annotations

import json
import os
import signal
import sys

# Where tests run in the background of a shell, interrupts are ignored from the beginning.
signal.signal(signal.SIGINT, signal.default_int_handler)
facts = {
    "parent": os.getppid(),
    "group": os.getpgid(0),
    "session": os.getsid(0),
    "directory": os.getcwd(),
    "arguments": sys.argv[1:],
    "variables": sorted(os.environ),
    "threads": len(os.listdir("/proc/self/task")),
    # One more is open while they are listed.
    "descriptors": len(os.listdir("/proc/self/fd")) - 1,
}
try:
    print(json.dumps(facts), flush=True)
    sys.stdin.read()
except KeyboardInterrupt:
    sys.exit(99)
sys.exit(int(sys.argv[1]))

"""What a script learns from the exit code alone."""

from __future__ import annotations

OK = 0
FAILED = 1
"""Refused or failed; asking again will not help."""
USAGE = 2
LATER = 3
"""Unreachable, or not now: the same command may succeed later."""
NOT_FOUND = 4
INTERRUPTED = 130
BROKEN_PIPE = 141
"""What a shell sees of a program that SIGPIPE ended, as `holdfast ls | head` should."""

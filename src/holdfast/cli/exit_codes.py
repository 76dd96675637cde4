"""Exit codes, from which a script learns what to do next."""

from __future__ import annotations

from holdfast.environment.client_settings import BadSetting
from holdfast.errors import HoldfastError, ObjectNotFound, TryAgain, Uncertain

OK = 0
FAILED = 1
"""Refused or failed; asking again will not help."""
USAGE = 2
LATER = 3
"""Unreachable, or not now: the same command may succeed later."""
NOT_FOUND = 4
INTERRUPTED = 130
BROKEN_PIPE = 141
"""The exit code of a program that SIGPIPE ended, as `holdfast ls | head` should be."""


class Interrupted(Exception):
    """Ctrl-C. The text says what was really left."""


def exit_code_of(error: HoldfastError) -> int:
    if isinstance(error, ObjectNotFound):
        return NOT_FOUND
    if isinstance(error, BadSetting):
        return USAGE
    return LATER if isinstance(error, TryAgain | Uncertain) else FAILED

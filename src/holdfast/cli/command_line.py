"""Secrets on the command line, hidden from `ps` as soon as the process runs.

Everybody on a machine can read the command line of every process. The kernel shows the memory that the arguments lie
in, so overwriting it there hides them, for children that are forked as well. They could be seen for the moment before:
a file (`--token-file`, `password_file=` in a URL) or the environment is better.
"""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

SECRETS = re.compile(rb"(?<=\0--token\0)[^\0]+|(?<=\0--token=)[^\0]+|(?<=[?&]password=)[^&\0]+")
_ARG_START, _ARG_END = 45, 46
"""Columns of /proc/self/stat after the process's name: where the arguments begin and end in memory."""


def hide_secrets() -> int:
    """Overwrite secrets among the arguments of this process; how many there were. Where the kernel does not show its
    arguments (no /proc), nobody else sees them either."""
    try:
        shown = Path("/proc/self/cmdline").read_bytes()
        columns = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return 0
    found = list(SECRETS.finditer(shown))
    if not found:
        return 0
    start, end = int(columns[_ARG_START]), int(columns[_ARG_END])
    if end - start != len(shown) or ctypes.string_at(start, len(shown)) != shown:
        return 0  # Somebody has changed the title of the process already.
    for secret in found:
        ctypes.memset(start + secret.start(), ord("*"), secret.end() - secret.start())
    return len(found)

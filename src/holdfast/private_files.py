"""Files for this user alone: a process's umask, its directories, and files that an older version left open to others.

Snapshots, logs of records and disk files hold keys and bytes of everybody who uses the cluster.
"""

from __future__ import annotations

import logging
import os
import stat
from pathlib import Path

PRIVATE_DIRECTORY = 0o700
OTHERS = 0o077

log = logging.getLogger("holdfast.private_files")


def keep_private() -> None:
    """Whatever this process makes from now on, whichever library does it, is for its own user alone."""
    os.umask(OTHERS)


def private_directory(path: Path) -> Path:
    """Make the directory for this user alone; close one to others that they may enter, and say so."""
    path.mkdir(mode=PRIVATE_DIRECTORY, parents=True, exist_ok=True)
    found = path.stat()
    if not found.st_mode & OTHERS:
        return path
    if _is_shared(path, found):
        log.warning("other users may look into %s: keep the files of this process in a directory of its own", path)
    else:
        _close(path, found)
    return path


def _is_shared(path: Path, found: os.stat_result) -> bool:
    """Is it somebody else's too? Closing /tmp, /srv or /var/lib would stop other programs."""
    foreign = found.st_uid != os.geteuid()
    return foreign or bool(found.st_mode & stat.S_ISVTX) or path.resolve().parent in (Path("/"), Path("/var"))


def close_to_others(path: Path) -> None:
    """Close a file to others, if it exists and is ours. It is not opened: that would release a database's locks."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return
    if found.st_mode & OTHERS and found.st_uid == os.geteuid():
        _close(path, found)


def _close(path: Path, found: os.stat_result) -> None:
    # What its owner may do is left as it is: a directory may be read-only on purpose.
    mode = stat.S_IMODE(found.st_mode) & ~OTHERS
    try:
        path.chmod(mode)
    except OSError as error:
        log.warning("other users may look into %s, and it cannot be closed to them: %s", path, error.strerror)
    else:
        log.warning("other users could look into %s; it is closed to them now (mode %04o)", path, mode)

"""The memory and disk space that this machine can still give, and refusals that name the figures.

The kernel kills processes rather than refuse memory: memory that a node lends is touched, so a node that lends more
than there is brings its host down. Both the machine's own figure (MemAvailable) and the limits of this process's
control groups (versions 1 and 2, each ancestor) count.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from holdfast.errors import Refused

KEPT_FOR_OTHERS = 512 << 20
KEPT_SHARE = 16
"""A sixteenth of the available memory, at most 512 MiB, is left for this process itself and for all others."""
GROUP_LIMITS = ("memory.max", "memory/memory.limit_in_bytes")
UNLIMITED = 1 << 60
"""Version 1 gives about 2**63 if there is no limit."""


def available_memory(root: Path = Path("/")) -> int | None:
    """Bytes that may still be taken, by the tightest of all limits; None if the machine does not tell."""
    found = [figure for figure in (_machine(root), *_groups(root)) if figure is not None]
    return max(0, min(found)) if found else None


def most_memory(root: Path = Path("/")) -> int:
    """All memory that the machine or its tightest control group has, used or not; 0 if neither tells."""
    whole = _figure(root / "proc/meminfo", r"^MemTotal:\s+(\d+) kB", 1024)
    limits = (_figure(root / "sys/fs/cgroup" / name, r"^(\d+)$") for name in GROUP_LIMITS)
    found = [figure for figure in (whole, *limits) if figure is not None and figure < UNLIMITED]
    return min(found, default=0)


def memory_to_lend(available: int) -> int:
    """How much of the available memory a node may take."""
    return available - min(KEPT_FOR_OTHERS, available // KEPT_SHARE)


def check_memory(wanted_bytes: int, available: int | None) -> None:
    """Refuse to take more memory than is available, before a page is touched."""
    if available is not None and wanted_bytes > (most := memory_to_lend(available)):
        raise Refused(
            f"{wanted_bytes:,} bytes of memory would be taken, but only {most:,} can be: the machine or its control "
            f"group has {available:,} available, and some must stay for others. Nothing was taken; lend less, or use "
            "--force"
        )


def check_disk(directory: Path, wanted_bytes: int, held_bytes: int) -> None:
    """Refuse a disk tier that the file system cannot hold. `held_bytes`: the tier's existing files, which count."""
    space = os.statvfs(directory)
    free = space.f_bavail * space.f_frsize
    if wanted_bytes > free + held_bytes:
        raise Refused(
            f"the disk tier would take {wanted_bytes:,} bytes, but the file system of {directory} has {free:,} free, "
            f"and {held_bytes:,} are the tier's already. Nothing was taken; give less --disk-size, or use --force"
        )


def _machine(root: Path) -> int | None:
    return _figure(root / "proc/meminfo", r"^MemAvailable:\s+(\d+) kB", 1024)


def _groups(root: Path) -> Iterator[int | None]:
    """For each control group that limits this process: its limit minus the memory in use that cannot be dropped."""
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        _, kinds, path = line.split(":", 2)
        if kinds == "":
            yield from _limits(root / "sys/fs/cgroup", path, "memory.max", "memory.current", "inactive_file")
        elif "memory" in kinds.split(","):
            files = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            yield from _limits(root / "sys/fs/cgroup/memory", path, *files)


def _limits(top: Path, path: str, limit: str, usage: str, droppable: str) -> Iterator[int | None]:
    group = top / path.lstrip("/")
    if not group.is_dir():
        group = top  # A container sees its own group as the top.
    while True:
        most = _figure(group / limit, r"^(\d+)$")
        used = _figure(group / usage, r"^(\d+)$")
        if most is not None and used is not None and most < UNLIMITED:
            yield most - used + (_figure(group / "memory.stat", rf"^{droppable} (\d+)$") or 0)
        if group == top:
            return
        group = group.parent


def _figure(path: Path, pattern: str, unit: int = 1) -> int | None:
    try:
        found = re.search(pattern, path.read_text(encoding="ascii"), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) * unit if found is not None else None

"""Which machine this is, so that processes on the same one can take the shorter way."""

from __future__ import annotations

from pathlib import Path


def this_host() -> str:
    """Identity of this machine: its kernel's boot id, or nothing where there is none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        # Not Linux, or a sandbox without /proc: then nothing is taken to be local.
        return ""

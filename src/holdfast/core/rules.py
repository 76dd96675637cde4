"""The numbers that decisions depend on. Everything else that may be set belongs to a shell."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from holdfast.messages.shapes import SettingValue

LeaseSync: TypeAlias = Literal["off", "batched", "every"]
StandbyEviction: TypeAlias = Literal["follow", "independent", "none"]


@dataclass(frozen=True, slots=True)
class Rules:
    lease_ttl_ms: int = 10_000
    soft_pin_ttl_ms: int = 1_800_000
    grant_timeout_ms: int = 30_000
    shared_grant_bytes: int = 8 << 20
    write_window_bytes: int = 256 << 20
    high_watermark: float = 0.90
    eviction_margin: float = 0.05
    evict_soft_pinned: bool = True
    degraded_puts: bool = False
    """Store a put with fewer copies than it asked for while nodes are away, and make the others when they are back."""
    session_lease_ms: int = 12_000
    session_reply_left_ms: int = 5_000
    session_jeopardy_ms: int = 30_000
    report_interval_ms: int = 10_000
    lease_sync: LeaseSync = "batched"
    standby_eviction: StandbyEviction = "follow"
    standby_eviction_grace_ms: int = 0
    renewal_interval_ms: int = 1_000
    urgent_renewal_ms: int = 1_000
    copy_bytes_per_second: int = 512 << 20
    copy_window_bytes: int = 64 << 20
    """What may be under way to one node at once."""
    offload_ahead: float = 0.10
    """The share of memory, of the longest unused in it, that is kept on disks as well."""
    disk_away_ms: int = 3_600_000
    """How long the replicas of a disk whose node is away are kept."""

    @property
    def logs_evictions(self) -> bool:
        return self.standby_eviction == "follow"


DAY_MS = 86_400_000
CHANGEABLE: dict[str, tuple[type[bool | int | float], float, float]] = {
    "lease_ttl_ms": (int, 1, DAY_MS),
    "soft_pin_ttl_ms": (int, 1, 365 * DAY_MS),
    "grant_timeout_ms": (int, 1, DAY_MS),
    "shared_grant_bytes": (int, 64 << 10, 1 << 40),
    "write_window_bytes": (int, 1 << 20, 1 << 50),
    "high_watermark": (float, 0.01, 1.0),
    "eviction_margin": (float, 0.0, 0.99),
    "evict_soft_pinned": (bool, 0, 1),
    "degraded_puts": (bool, 0, 1),
    "offload_ahead": (float, 0.0, 1.0),
    "copy_bytes_per_second": (int, 0, 1 << 50),
    "copy_window_bytes": (int, 1 << 20, 1 << 50),
    "report_interval_ms": (int, 50, DAY_MS),
}
"""Name -> kind, least, most."""


def in_force(own: Rules, changed: dict[str, SettingValue]) -> Rules:
    """The rules that a master was started with, under what was changed since. One that a newer version can change and
    this one cannot is left alone."""
    return replace(own, **{name: value for name, value in changed.items() if name in CHANGEABLE})  # type: ignore[arg-type]


MAX_GRANTS_PER_CLIENT = 1_024
"""Bounds what one client can make a master remember, beside the bytes that `write_window_bytes` bounds."""
AHEAD_SHARE = 4
"""What one client is granted ahead is at most one part in so many of the room under the watermark."""
EVICT_STEP = 8_192
"""Victims of one step: a step must not hold up the requests behind it."""
NAMED_EVICTIONS = 64
"""A grant over fewer evicted objects than this names them; over more, it says that all are gone that lie there."""
VISIT_SLOTS = 32_768
"""Slots that one removal by pattern visits."""
LIST_SLOTS = 4_096
"""Slots that one listing visits: with the longest keys, the answer still fits into a frame."""
REMEMBERED_ANSWERS = 65_536
REMEMBERED_DEPARTED = 65_536
REMEMBERED_EPOCHS = 256
SCALAR_BELOW = 12
"""Batches smaller than this are cheaper one by one than as array operations."""
COPY_OBJECTS = 512
"""Objects that one command has a node copy."""
COPY_BYTES = 16 << 20
"""Bytes that one command has a node copy, unless a single object is larger."""
COPY_AGAIN_MS = 2_000
"""Until a copy that failed is tried again."""
REMEMBERED_HITS = 65_536
"""Objects on disk of which it is known that they were read once."""
SECOND_HIT = 2
BRIM_SHARE = 0.5
"""Of the memory above the watermark, so much may be taken by objects that wait for a disk to take them."""
OFFLOAD_SHARE = 16
"""At most one part in so many of a disk's node's memory is on its way to the disk at once."""

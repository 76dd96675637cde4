"""The numbers that decisions depend on. All other settings belong to a shell."""

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
    """While nodes are away, store a put with fewer replicas than it asked for; make the others when they are back."""
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
    """The most bytes of copies under way to one node at once."""
    offload_ahead: float = 0.10
    """Share of memory whose objects, the longest unused, are kept on disks as well."""
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
"""Name -> (type, least, most)."""


def in_force(own: Rules, changed: dict[str, SettingValue]) -> Rules:
    """The rules that a master was started with, overridden by the settings changed since. A setting that only a newer
    version knows is ignored."""
    return replace(own, **{name: value for name, value in changed.items() if name in CHANGEABLE})  # type: ignore[arg-type]


MAX_GRANTS_PER_CLIENT = 1_024
"""Bounds the memory that one client takes in a master; `write_window_bytes` bounds the bytes it is granted."""
AHEAD_SHARE = 4
"""A prefetched grant may take at most 1/4 of the room under the watermark."""
EVICT_STEP = 8_192
"""The most victims per step: a step must not hold up the requests behind it."""
NAMED_EVICTIONS = 64
"""A grant over at most this many unlogged evictions names them; over more, it says that all objects there are gone."""
VISIT_SLOTS = 32_768
"""The most slots that one removal by pattern visits."""
LIST_SLOTS = 4_096
"""The most slots that one listing visits: even with the longest keys, the reply fits into a frame."""
REMEMBERED_ANSWERS = 65_536
REMEMBERED_DEPARTED = 65_536
REMEMBERED_EPOCHS = 256
SCALAR_BELOW = 12
"""Batches smaller than this are cheaper one by one than as array operations."""
COPY_OBJECTS = 512
"""The most objects per copy command."""
COPY_BYTES = 16 << 20
"""The most bytes per copy command, unless a single object is larger."""
COPY_AGAIN_MS = 2_000
"""Delay before a failed copy is retried."""
REMEMBERED_HITS = 65_536
"""The most objects on disk that are remembered as read once."""
SECOND_HIT = 2
BRIM_SHARE = 0.5
"""Share of the memory above the watermark that objects waiting for a disk may take."""
OFFLOAD_SHARE = 16
"""At most 1/16 of a node's memory is on its way to its disk at once."""

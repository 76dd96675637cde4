"""The numbers that decisions depend on. All other settings belong to a shell.

A default is written here and nowhere else: `settings.MasterSettings` takes its own from `Rules`, and adds what an
operator reads about it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Literal, TypeAlias, TypeVar

from holdfast.messages.shapes import SettingValue

LeaseSync: TypeAlias = Literal["off", "batched", "every"]
StandbyEviction: TypeAlias = Literal["follow", "independent", "none"]
DAY_MS = 86_400_000

V = TypeVar("V", bool, int, float)


def _changeable(default: V, least: float, most: float) -> V:
    """A rule that may be changed while the cluster runs, within these bounds."""
    rule: V = field(default=default, metadata={"bounds": (least, most)})
    return rule


@dataclass(frozen=True, slots=True)
class Rules:
    lease_ttl_ms: int = _changeable(10_000, 1, DAY_MS)
    soft_pin_ttl_ms: int = _changeable(1_800_000, 1, 365 * DAY_MS)
    grant_timeout_ms: int = _changeable(30_000, 1, DAY_MS)
    shared_grant_bytes: int = _changeable(8 << 20, 64 << 10, 1 << 40)
    write_window_bytes: int = _changeable(256 << 20, 1 << 20, 1 << 50)
    high_watermark: float = _changeable(0.90, 0.01, 1.0)
    eviction_margin: float = _changeable(0.05, 0.0, 0.99)
    evict_soft_pinned: bool = _changeable(True, 0, 1)
    lease_share: float = _changeable(0.80, 0.0, 1.0)
    """Share of the memory of a tenant, or of a cluster without tenants, that may be leased at the same time."""
    degraded_puts: bool = _changeable(False, 0, 1)
    """While nodes are away, store a put with fewer replicas than it asked for; make the others when they are back."""
    offload_ahead: float = _changeable(0.10, 0.0, 1.0)
    """Share of memory whose objects, the longest unused, are kept on disks as well."""
    copy_bytes_per_second: int = _changeable(512 << 20, 0, 1 << 50)
    copy_window_bytes: int = _changeable(64 << 20, 1 << 20, 1 << 50)
    """The most bytes of copies under way to one node at once."""
    report_interval_ms: int = _changeable(10_000, 50, DAY_MS)
    session_lease_ms: int = 12_000
    session_reply_left_ms: int = 5_000
    session_jeopardy_ms: int = 30_000
    lease_sync: LeaseSync = "batched"
    standby_eviction: StandbyEviction = "follow"
    standby_eviction_grace_ms: int = 0
    renewal_interval_ms: int = 1_000
    urgent_renewal_ms: int = 1_000
    disk_away_ms: int = 3_600_000
    """How long the replicas of a disk whose node is away are kept."""

    @property
    def logs_evictions(self) -> bool:
        return self.standby_eviction == "follow"


DEFAULTS = Rules()
CHANGEABLE: dict[str, tuple[type[bool | int | float], float, float]] = {
    rule.name: (type(rule.default), *rule.metadata["bounds"]) for rule in fields(Rules) if "bounds" in rule.metadata
}
"""Name -> (type, least, most)."""


def in_force(own: Rules, changed: dict[str, SettingValue]) -> Rules:
    """The rules that a master was started with, overridden by the settings changed since. A setting that only a newer
    version knows is ignored."""
    return replace(own, **{name: value for name, value in changed.items() if name in CHANGEABLE})  # type: ignore[arg-type]


MAX_GRANTS_PER_CLIENT = 1_024
"""Bounds the memory that one client takes in a master; `write_window_bytes` bounds the bytes it is granted."""
PREFETCH_SHARE = 4
"""A prefetched grant may take at most 1/4 of the room under the watermark."""
EVICT_STEP = 8_192
"""The most victims per step: a step must not hold up the requests behind it."""
NAMED_EVICTIONS = 64
"""A grant over at most this many unlogged evictions names them; over more, it says that all objects there are gone."""
VISIT_SLOTS = 32_768
"""The most slots that one removal by pattern visits."""
REMOVAL_STEP_SLOTS = 512
"""Of these, the slots that it visits before others have their turn: matched and removed, they take some 0.6 ms. Array
operations take most of a short step whatever its length: 1.1 us an object here, 2.2 in steps of 128."""
STEP_OBJECTS = 1_024
"""Of a request for many objects that are looked at one by one, those that are decided before others have their turn: 2
to 5 ms. Batches of up to this size, such as the usual 512, are one step."""
LIST_SLOTS = 4_096
"""The most slots that one listing visits: even with the longest keys, the reply fits into a frame."""
REMEMBERED_ANSWERS = 65_536
REMEMBERED_DEPARTED = 65_536
REMEMBERED_REVOKED = 16_384
"""Clients that may not come back. Beyond that the oldest are forgotten; 160 KB of a snapshot."""
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

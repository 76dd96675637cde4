"""The primary's own knowledge of tenants: leases that it gave to their clients, and counts since it began."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from holdfast.instant import Instant


@dataclass(slots=True)
class LeaseRoom:
    """How many more bytes may be leased, by tenant (see `objects.lease_share`)."""

    left: dict[int, int] = field(default_factory=dict)
    leased: dict[int, int] = field(default_factory=dict)
    """As of the last count."""
    count_at: Instant = 0
    """The next count, whatever is left."""
    count_again_at: Instant = 0
    """Not before, even if nothing is left: a count is a pass over the whole catalogue."""


@dataclass(slots=True)
class TenantBook:
    lease_room: LeaseRoom = field(default_factory=LeaseRoom)
    evicted: Counter[int] = field(default_factory=Counter)
    """Objects evicted since this primary began, by tenant."""
    refused: Counter[int] = field(default_factory=Counter)
    """Requests that a quota refused since this primary began, by tenant."""

"""Which tenant each range was granted to last: memory goes from one to another only when it is cleared (ADR 55).

1. A grant whose ranges were the same tenant's last, or nobody's since they were cleared, is given at once.
2. Otherwise its record is logged, the nodes are told to clear the ranges, and the put waits. Not before the record is
   durable: where evictions are not logged, it is what says that the old content is gone (I9).
3. When all nodes have confirmed, the ranges are the new tenant's, and the put gets its grant. If one cannot, the put is
   told to take another grant, and this one ends by its timeout.

All of it is this primary's own. Nothing is known of what earlier ones granted and freed: such ranges are cleared once.
"""

from __future__ import annotations

from holdfast.core.space.range_map import RangeMap
from holdfast.ids import GrantId, SegmentHandle

CLEAN = -1
"""Nobody's: there is nothing to be read."""
UNKNOWN = -2


class FormerTenants:
    """Numbers of tenants by range. Without an entry it is what all ranges were at first."""

    __slots__ = ("_at_first", "_maps", "awaited")

    def __init__(self, at_first: int) -> None:
        self._at_first = at_first
        self._maps: dict[SegmentHandle, RangeMap] = {}
        self.awaited: dict[GrantId, set[str]] = {}
        """Grants whose ranges are being cleared -> the nodes that have not confirmed yet."""

    def put(self, segment: SegmentHandle, offset: int, length: int, tenant: int) -> None:
        self._map_of(segment).put(offset, length, tenant)

    def differ(self, segment: SegmentHandle, offset: int, length: int, tenant: int) -> bool:
        """Was any of it another's than this tenant's?"""
        return any(each not in (tenant, CLEAN) for each in self._map_of(segment).over(offset, length))

    def forget(self, segment: SegmentHandle) -> None:
        self._maps.pop(segment, None)

    def _map_of(self, segment: SegmentHandle) -> RangeMap:
        found = self._maps.get(segment)
        if found is None:
            found = self._maps[segment] = RangeMap(self._at_first)
        return found

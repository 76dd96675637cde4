"""Which tenant each range was granted to last: memory goes from one to another only when it is cleared (ADR 55).

1. A grant whose ranges were the same tenant's last, or nobody's since they were cleared, is given at once.
2. Otherwise its record is logged as uncleared, the nodes are told to clear the ranges, and the put waits. Not before
   the record is durable: where evictions are not logged, it is what says that the old content is gone (I9).
3. When all nodes have confirmed, a record says so, the ranges are the new tenant's, and the put gets its grant. If one
   cannot, or another primary takes over first, the put is told to take another grant, and this one ends by its timeout.

Only the records outlive this primary. It does not know what earlier ones granted and freed: such ranges are cleared
once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from holdfast.core.primary.decision import Clearing, Command
from holdfast.core.space.range_map import RangeMap
from holdfast.ids import GrantId, SegmentHandle
from holdfast.messages import commands as c

CLEAN = -1
"""Nobody's: there is nothing to be read."""
UNKNOWN = -2
CLEARED_AT_ONCE = 1 << 30
"""Bytes that a node is told to wipe before it is heard of again: a second of the twelve that its session lasts."""
ORDERS_AT_ONCE = 256
"""Likewise of orders: a quarter of the commands that may wait for one node."""


@dataclass(slots=True)
class Clearance:
    """A grant whose ranges are being cleared."""

    tenant: int
    left_bytes: int
    """What nodes have not confirmed yet."""


@dataclass(slots=True)
class _Orders:
    """Of one node."""

    waiting: deque[tuple[GrantId, c.Clear]] = field(default_factory=deque)
    told: int = 0
    told_bytes: int = 0


class FormerTenants:
    """Numbers of tenants by range. Without an entry it is what all ranges were at first."""

    __slots__ = ("_at_first", "_maps", "_orders", "awaited")

    def __init__(self, at_first: int) -> None:
        self._at_first = at_first
        self._maps: dict[SegmentHandle, RangeMap] = {}
        self._orders: dict[str, _Orders] = {}
        self.awaited: dict[GrantId, Clearance] = {}

    def put(self, segment: SegmentHandle, offset: int, length: int, tenant: int) -> None:
        self._map_of(segment).put(offset, length, tenant)

    def differ(self, segment: SegmentHandle, offset: int, length: int, tenant: int) -> bool:
        """Was any of it another's than this tenant's?"""
        return any(each not in (tenant, CLEAN) for each in self._map_of(segment).over(offset, length))

    def forget(self, segment: SegmentHandle) -> None:
        self._maps.pop(segment, None)

    def clear(self, grant: GrantId, tenant: int, orders: Iterable[c.Clear]) -> list[Command]:
        """Have these ranges cleared for the grant, no more at a time than a node's session allows."""
        clearance = self.awaited[grant] = Clearance(tenant, 0)
        nodes = {}
        for order in orders:
            node = order.segment.node
            nodes[node] = self._orders.setdefault(node, _Orders())
            nodes[node].waiting += ((grant, piece) for piece in _pieces(order))
            clearance.left_bytes += order.length
        return [command for node in nodes for command in self._next(node)]

    def confirmed(self, node: str, clearing: Clearing, is_done: bool) -> list[Command]:
        """The node has done one order, or will not. Then the others that wait for it fail, too: it is away, or older
        than orders to clear. Returns what to tell it next."""
        orders = self._orders[node]
        orders.told -= 1
        orders.told_bytes -= clearing.size_bytes
        if not is_done:
            self.awaited.pop(clearing.grant, None)
            for grant, _ in orders.waiting:
                self.awaited.pop(grant, None)
            orders.waiting.clear()
        elif (clearance := self.awaited.get(clearing.grant)) is not None:
            clearance.left_bytes -= clearing.size_bytes
        told = self._next(node)
        if not orders.told:
            del self._orders[node]
        return told

    def _next(self, node: str) -> list[Command]:
        orders, told = self._orders[node], []
        while orders.waiting and (
            not orders.told
            or (orders.told < ORDERS_AT_ONCE and orders.told_bytes + orders.waiting[0][1].length <= CLEARED_AT_ONCE)
        ):
            grant, order = orders.waiting.popleft()
            if grant not in self.awaited:  # It has ended, or is not cleared elsewhere.
                continue
            orders.told += 1
            orders.told_bytes += order.length
            told.append(Command(node, c.CLEAR, c.encode_body(order), True, Clearing(grant, order.length)))
        return told

    def _map_of(self, segment: SegmentHandle) -> RangeMap:
        found = self._maps.get(segment)
        if found is None:
            found = self._maps[segment] = RangeMap(self._at_first)
        return found


def _pieces(order: c.Clear) -> Iterable[c.Clear]:
    end = order.offset + order.length
    for offset in range(order.offset, end, CLEARED_AT_ONCE):
        yield msgspec.structs.replace(order, offset=offset, length=min(CLEARED_AT_ONCE, end - offset))

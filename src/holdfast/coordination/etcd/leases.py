"""Leases in etcd that many published values share: a value lives as long as asked for, or up to a quarter longer.

One lease per value would double the writes, and leave a lease behind for each.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from holdfast.coordination.etcd import rpc
from holdfast.coordination.etcd.channel import EtcdChannel
from holdfast.instant import Clock

SHARED_FOR = 0.25
"""Share of the time to live for which new values are attached to the same lease."""


class Shared(NamedTuple):
    lease: int
    until: float


class SharedLeases:
    def __init__(self, channel: EtcdChannel, clock: Clock) -> None:
        self._channel = channel
        self._clock = clock
        self._by_ttl: dict[int, Shared] = {}

    async def lease_for(self, ttl_ms: int) -> int:
        """A lease that lasts at least `ttl_ms` from now."""
        now = self._clock()
        known = self._by_ttl.get(ttl_ms)
        if known is not None and now < known.until:
            return known.lease
        shared_s = SHARED_FOR * ttl_ms / 1000
        ttl = rpc.LeaseGrantRequest(TTL=math.ceil(ttl_ms / 1000 + shared_s))
        lease = int((await self._channel.write(lambda stubs: stubs.lease.LeaseGrant, ttl)).ID)
        # Counted from before the request, so that the lease lasts longer than is assumed here.
        self._by_ttl = {ms: one for ms, one in self._by_ttl.items() if one.until > now}
        self._by_ttl[ttl_ms] = Shared(lease, now + shared_s)
        return lease

    def forget(self, lease: int) -> None:
        self._by_ttl = {ms: one for ms, one in self._by_ttl.items() if one.lease != lease}

"""A bound on requests per second, of which a second's worth may come at once after a pause."""

from __future__ import annotations

import math

from holdfast.core.state.tenants import Tenant
from holdfast.instant import Instant


class RequestRate:
    __slots__ = ("_at", "_left", "_most")

    def __init__(self, per_second: int) -> None:
        self._most = float(per_second)
        self._left = self._most
        self._at: Instant = 0

    def is_of(self, tenant: Tenant) -> bool:
        """Is this the rate that the tenant's quota allows?"""
        return self._most == tenant.requests_per_second

    def take(self, now: Instant, always: bool = False) -> int:
        """Count one request. 0: it may go on; else the milliseconds after which it may. `always`: it goes on in any
        case, and those behind it wait for it, for a second at most."""
        self._left = min(self._most, self._left + max(0, now - self._at) * self._most / 1000)
        self._at = now
        if always:
            self._left = max(self._left - 1, -self._most)
        elif self._left < 1:
            return max(1, math.ceil((1 - self._left) * 1000 / self._most))
        else:
            self._left -= 1
        return 0

"""Leases that lookups of a `native_plugin` leave behind. LMCache locks what a lookup finds, but in its own process: the
connector is told of lookups and loads, never of an unlock.

The life of a hold:

1. A lookup finds an object and leases it; the client keeps the lease alive.
2. The load that follows ends it. Each lookup waits for a load of its own.
3. Where none comes, because LMCache has unlocked the object unread, it ends after `seconds`, or earlier if so many are
   held that a client could not hold more.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

MOST_NAMES = 32_768
"""Half of what one client may lease, so that a lookup of as many names as that is still answered."""


@dataclass(slots=True)
class Hold:
    until: float
    count: int = 0


class LookupHolds:
    """For any thread. Every method gives the names whose leases have ended, as often as they were leased."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._lock = threading.Lock()
        self._holds: dict[str, Hold] = {}
        """The one that ends first comes first."""

    def found(self, names: Sequence[str], now: float) -> list[str]:
        """A lookup has leased these."""
        with self._lock:
            for name in names:
                hold = self._holds.pop(name, None) or Hold(0.0)
                self._holds[name] = hold
                hold.count += 1
                hold.until = now + self._seconds
            return self._end_old(now)

    def loaded(self, names: Sequence[str], now: float) -> list[str]:
        """One load of each has ended, whatever came of it."""
        with self._lock:
            ended: list[str] = []
            for name in names:
                hold = self._holds.get(name)
                if hold is not None:
                    ended.append(name)
                    hold.count -= 1
                    if not hold.count:
                        del self._holds[name]
            return ended + self._end_old(now)

    def removed(self, names: Sequence[str]) -> list[str]:
        """LMCache removes these, so it has no lock on them."""
        with self._lock:
            return [name for name in names if (hold := self._holds.pop(name, None)) for _ in range(hold.count)]

    def over(self, now: float) -> list[str]:
        with self._lock:
            return self._end_old(now)

    def _end_old(self, now: float) -> list[str]:
        ended: list[str] = []
        while self._holds:
            name, hold = next(iter(self._holds.items()))
            if hold.until > now and len(self._holds) <= MOST_NAMES:
                break
            del self._holds[name]
            ended += [name] * hold.count
        return ended

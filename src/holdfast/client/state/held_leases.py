"""lease_many and release_many: counted leases, kept alive in the background until they are released.

The life of a held lease:

1. Taken: `lease_many` locates the object, which leases it, and counts the holder.
2. Kept: the keeper locates all held keys again, in one request, when a third of the lease has passed. So reads of them
   need no round trip either, even if the objects have moved meanwhile, and a new primary is asked like the old one.
3. Released: `release_many` was called as often as it was taken. The lease at the master expires.
4. Dropped: the object was removed by force or replaced, or the master could not be reached for a whole lease and has
   evicted it. Another object under the same key is not what was leased.

While a lease is held, a removal by the same client is refused like one by any other client (ADR 34).
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from holdfast.client.state.leases import LeaseRow
from holdfast.client.state.own_removals import Entry, OwnRemovals
from holdfast.errors import Refused
from holdfast.instant import relied_on

log = logging.getLogger("holdfast.client")

MOST_HELD = 65_536
"""The most keys that may be held. They are renewed every 3 seconds by 9 requests at most, of 7,500 keys each."""
RENEW_AFTER = 1 / 3
TRY_AGAIN_AFTER = 1 / 10
"""A failed renewal is tried again after this share of a lease."""


@dataclass(slots=True, eq=False)
class HeldLease:
    id: int
    """The object that was leased; 0 if the history has changed since: then any object under the key counts."""
    count: int


class HeldLeases:
    """Held leases by key, with how often each was taken. Threads share it."""

    __slots__ = ("_by_key", "_entry", "_lock", "_own_removals", "renew_at")

    def __init__(self, own_removals: OwnRemovals) -> None:
        self._own_removals = own_removals
        self._by_key: dict[str, HeldLease] = {}
        self._entry: Entry = None
        self._lock = threading.Lock()
        self.renew_at = math.inf
        """When all of them are renewed together."""

    def __len__(self) -> int:
        return len(self._by_key)

    def __contains__(self, key: object) -> bool:
        return key in self._by_key

    def check_room(self, keys: Collection[str]) -> None:
        with self._lock:
            coming = sum(key not in self._by_key for key in keys)
            if len(self._by_key) + coming > MOST_HELD:
                raise Refused(
                    f"this client holds {len(self._by_key):,} leases and may hold {MOST_HELD:,}; nothing was leased. "
                    "Release some first"
                )

    def take(self, keys: Iterable[str], found: Mapping[str, LeaseRow], ttl_ms: int) -> None:
        """Count one more holder of each of these keys that was found."""
        with self._lock:
            for key in keys:
                row = found.get(key)
                if row is None:
                    continue
                held = self._by_key.get(key)
                if held is None or held.id not in (0, row[5]):
                    # The object that was held under this key is gone.
                    held = self._by_key[key] = HeldLease(row[5], 0)
                held.id = row[5]
                held.count += 1
                self.renew_at = min(self.renew_at, row[0] - relied_on(ttl_ms / 1000) * (1 - RENEW_AFTER))
            if self._by_key and self._entry is None:
                # A removal by this client finds the keys in the dict itself.
                self._entry = self._own_removals.begin_read(self._by_key)

    def release(self, keys: Iterable[str]) -> None:
        """Count one holder less of each; keys that are not held are skipped."""
        with self._lock:
            for key in keys:
                held = self._by_key.get(key)
                if held is not None:
                    held.count -= 1
                    if held.count <= 0:
                        del self._by_key[key]
            self._end_if_empty()

    def held(self) -> dict[str, HeldLease]:
        with self._lock:
            return dict(self._by_key)

    def renewed(self, before: Mapping[str, HeldLease], found: Mapping[str, LeaseRow]) -> None:
        """Take over the master's reply about the keys that were held when it was asked, and drop the lost ones."""
        with self._lock:
            for key, held in before.items():
                row = found.get(key)
                if row is not None and held.id in (0, row[5]):
                    held.id = row[5]
                elif self._by_key.get(key) is held:
                    del self._by_key[key]
                    log.info("the lease on %r is dropped: the object is gone", key)
            self._end_if_empty()

    def history_changed(self) -> None:
        """Renew at once: the objects under these keys have other ids now."""
        with self._lock:
            for held in self._by_key.values():
                held.id = 0
            if self._by_key:
                self.renew_at = 0.0

    def clear(self) -> None:
        with self._lock:
            self._by_key.clear()
            self._end_if_empty()

    def _end_if_empty(self) -> None:
        if not self._by_key:
            self.renew_at = math.inf
            self._own_removals.end_read(self._entry)
            self._entry = None

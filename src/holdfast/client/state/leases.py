"""Places that this client may read without asking, because it holds a lease on them.

Until the lease ends the object cannot leave its place (I2, I8), so a hot key costs no round trip. A lease counts from
before the request was sent, and is shortened for clocks that differ. A place without a lease (`NO_LEASE`) is not kept:
whoever copies from it asks afterwards whether the object was still there. The number kept is bounded: past it the
oldest quarter is forgotten, which only costs asking again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import NamedTuple, TypeAlias

from holdfast.instant import RELIED_SHARE
from holdfast.messages.shapes import Ticket

MAX_LEASES = 65_536
_RELIED_SECONDS_PER_MS = RELIED_SHARE / 1000


NO_LEASE = 1e-9
"""The end of a lease that was not given, because the tenant has leased its share. Long ago; and not 0, which would be
doubted as if it were of a restored history (`Segments.doubts`)."""


def lease_until(sent_at: float, ttl_ms: int) -> float:
    return sent_at + ttl_ms * _RELIED_SECONDS_PER_MS if ttl_ms else NO_LEASE


class ReadLease(NamedTuple):
    """An object, its place, and until when it is sure to be there."""

    until: float
    segment: int
    start: int
    stop: int
    checksum: int
    id: int
    others: tuple[tuple[int, int], ...]
    """Further replicas: (segment, offset)."""
    history: int
    """The log id of the master that was asked. Under another history the same numbers name other objects (I19)."""
    tickets: tuple[Ticket, ...] = ()
    """For its replicas that are read over TCP, if tickets were asked for."""

    def ticket_for(self, segment: int) -> Ticket | None:
        for ticket in self.tickets:
            if ticket.segment == segment:
                return ticket
        return None

    @property
    def size_bytes(self) -> int:
        return self.stop - self.start


LeaseRow: TypeAlias = tuple[float, int, int, int, int, int, tuple[tuple[int, int], ...], int, tuple[Ticket, ...]]
"""The fields of a `ReadLease` as a plain tuple: a batch of them is made in C, and most are never read one by one.
Nothing in it is tracked by the garbage collector, so that the thousands of them are not, either."""


class Leases:
    """Leases by key. Every step is one dict operation, so that threads need no lock."""

    __slots__ = ("by_key", "limit")

    def __init__(self, limit: int = MAX_LEASES) -> None:
        self.limit = limit
        self.by_key: dict[str, LeaseRow] = {}

    def live(self, key: str, now: float) -> ReadLease | None:
        row = self.by_key.get(key)
        if row is None or now >= row[0]:
            return None
        return row if type(row) is ReadLease else ReadLease._make(row)

    def are_live(self, keys: Iterable[str], now: float) -> list[bool]:
        return [row is not None and now < row[0] for row in map(self.by_key.get, keys)]

    def keep(self, leases: Mapping[str, LeaseRow]) -> None:
        if len(self.by_key) + len(leases) > self.limit:
            self._forget_oldest(len(leases))
        self.by_key.update(leases)

    def keep_one(self, key: str, lease: LeaseRow) -> None:
        if len(self.by_key) >= self.limit:
            self._forget_oldest(1)
        self.by_key[key] = lease

    def drop(self, key: str) -> None:
        self.by_key.pop(key, None)

    def drop_many(self, keys: Iterable[str]) -> None:
        for key in keys:
            self.by_key.pop(key, None)

    def revoke(self, ids: set[int]) -> None:
        """Forget the leases on these objects."""
        # list() copies in one step; another thread may add keys meanwhile.
        for key, row in list(self.by_key.items()):
            if row[5] in ids and self.by_key.get(key) is row:
                self.by_key.pop(key, None)

    def clear(self) -> None:
        self.by_key.clear()

    def _forget_oldest(self, coming: int) -> None:
        surplus = len(self.by_key) + coming - self.limit
        # list() copies in one step; another thread may add keys meanwhile.
        for key in list(islice(list(self.by_key), max(surplus, self.limit // 4))):
            self.by_key.pop(key, None)

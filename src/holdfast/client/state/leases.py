"""Places that this client may read without asking, because it holds a lease on them.

Until the lease ends the object cannot leave its place (I2, I8), so a hot key costs no round trip. A lease counts from
before the request was sent, and is shortened for clocks that differ. A place without a lease (`NO_LEASE`) is not kept:
whoever copies from it asks afterwards whether the object was still there. The number kept is bounded: past it the
oldest quarter is forgotten, which only costs asking again.

The leases of a batch come as columns and are kept as such: one object, under each of its keys. Most are never read one
by one, and a tuple per key would take longer than all else that is done for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import compress, islice, repeat
from operator import add
from typing import NamedTuple, TypeAlias, final

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


@final
class LeaseColumns:
    """Leases that came in one reply and end together, on objects with one replica each, in mapped memory."""

    __slots__ = ("_rows", "checksums", "history", "ids", "keys", "segments", "sizes", "starts", "until")

    def __init__(self, keys: Sequence[str], until: float, columns: Sequence[Sequence[int]], history: int) -> None:
        self.keys = keys
        self.until = until
        self.ids, self.segments, self.starts, self.sizes, self.checksums = columns
        self.history = history
        self._rows: dict[str, LeaseRow] | None = None

    @property
    def rows(self) -> dict[str, LeaseRow]:
        """The lease of each key, made when one is first asked for."""
        found = self._rows
        if found is None:
            stops = map(add, self.starts, self.sizes)
            places = (self.segments, self.starts, stops, self.checksums, self.ids)
            rows = zip(repeat(self.until), *places, repeat(()), repeat(self.history), repeat(()), strict=False)
            found = self._rows = dict(zip(self.keys, rows, strict=False))
        return found

    def keys_of(self, ids: set[int]) -> list[str]:
        return [] if ids.isdisjoint(self.ids) else [*compress(self.keys, map(ids.__contains__, self.ids))]


class Leases:
    """Leases by key. Every step is one dict operation, so that threads need no lock."""

    __slots__ = ("_in_columns", "by_key", "limit")

    def __init__(self, limit: int = MAX_LEASES) -> None:
        self.limit = limit
        self.by_key: dict[str, LeaseRow | LeaseColumns] = {}
        self._in_columns = 0
        """The most rows that kept columns have, those of keys that are not kept any more among them."""

    def row(self, key: str) -> LeaseRow | None:
        """The lease on this key that was kept last, if one is: it may have ended."""
        kept = self.by_key.get(key)
        return kept.rows[key] if type(kept) is LeaseColumns else kept

    def rows(self, keys: Sequence[str]) -> list[LeaseRow | None]:
        """`row` of each, in fewer steps."""
        kept = [*map(self.by_key.get, keys)]
        return [each.rows[key] if type(each) is LeaseColumns else each for key, each in zip(keys, kept, strict=True)]

    def live(self, key: str, now: float) -> ReadLease | None:
        row = self.row(key)
        if row is None or now >= row[0]:
            return None
        return row if type(row) is ReadLease else ReadLease._make(row)

    def are_live(self, keys: Iterable[str], now: float) -> list[bool]:
        return [
            kept is not None and now < (kept.until if type(kept) is LeaseColumns else kept[0])
            for kept in map(self.by_key.get, keys)
        ]

    def keep(self, leases: Mapping[str, LeaseRow]) -> None:
        if len(self.by_key) + len(leases) > self.limit:
            self._forget_oldest(len(leases))
        self.by_key.update(leases)

    def keep_columns(self, columns: LeaseColumns) -> None:
        count = len(columns.keys)
        if len(self.by_key) + count > self.limit:
            self._forget_oldest(count)
        self._in_columns += count
        if self._in_columns > 2 * self.limit:
            self._forget_sparse()
        self.by_key.update(dict.fromkeys(columns.keys, columns))

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
        kept = list(self.by_key.items())
        gone: list[tuple[str, LeaseRow | LeaseColumns]] = [
            (key, row) for key, row in kept if type(row) is not LeaseColumns and row[5] in ids
        ]
        gone += [(key, columns) for columns in self._columns() for key in columns.keys_of(ids)]
        for key, row in gone:
            if self.by_key.get(key) is row:
                self.by_key.pop(key, None)

    def clear(self) -> None:
        self.by_key.clear()

    def _columns(self) -> Counter[LeaseColumns]:
        """The columns that are kept: for how many keys."""
        return Counter(kept for kept in list(self.by_key.values()) if type(kept) is LeaseColumns)

    def _forget_sparse(self) -> None:
        """Columns take the memory of all their rows for as long as one is kept. So of those with few such rows, none is
        kept any more, or a key per reply would hold the memory of hundreds."""
        kept = self._columns()
        sparse = {columns for columns, count in kept.items() if 2 * count < len(columns.keys)}
        self._in_columns = sum(len(columns.keys) for columns in kept.keys() - sparse)
        self.drop_many(key for columns in sparse for key in columns.keys if self.by_key.get(key) is columns)

    def _forget_oldest(self, coming: int) -> None:
        surplus = len(self.by_key) + coming - self.limit
        # list() copies in one step; another thread may add keys meanwhile.
        for key in list(islice(list(self.by_key), max(surplus, self.limit // 4))):
            self.by_key.pop(key, None)

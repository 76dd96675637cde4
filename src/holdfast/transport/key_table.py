"""Reads the key table that a master of this machine shows in memory (wire.key_table_layout): no round trip.

Where the table gives no sure answer, the master is asked instead: while the table is being changed, while it is not
known that the master still leads (I12), and when it has hung up. Whatever is in the memory, a lookup stays inside of it
and ends.
"""

from __future__ import annotations

import mmap
import os
import select
import socket
import threading
from typing import Protocol, cast

from holdfast.errors import Unreachable
from holdfast.instant import Clock, now_seconds, relied_on
from holdfast.messages.requests import Welcome
from holdfast.transport.addresses import LOCAL
from holdfast.wire.key_table_layout import (
    ASKED,
    CONFIRMED,
    FIRST_PLACES,
    GOOD_MS,
    KIND,
    MAGIC,
    MASK,
    MOST_PROBES,
    SEQUENCE,
    fingerprint,
    fingerprints,
)

FETCH_SECONDS = 0.5
LOOK_SECONDS = 0.1
"""How often to read until when the master leads."""


class Line(Protocol):
    """A connection to a master; `closed` is true before its descriptor can be reused."""

    address: str
    closed: bool
    welcome: Welcome

    @property
    def descriptor(self) -> int: ...


def key_table_of(line: Line) -> KeyTableReader | None:
    """The key table of a master on this machine; None: ask the master for everything."""
    welcome = line.welcome
    if not (welcome.key_table and line.address.startswith(LOCAL)):
        return None
    try:
        descriptor = fetch(welcome.key_table, welcome.key_table_secret)
        try:
            memory = mmap.mmap(descriptor, os.fstat(descriptor).st_size, mmap.MAP_SHARED, mmap.PROT_READ)
        finally:
            os.close(descriptor)
        return KeyTableReader(memory, line)
    except (OSError, ValueError, Unreachable):
        # No descriptor or address space is left, or the master is about to end.
        return None


def fetch(name: str, secret: bytes) -> int:
    """The descriptor of the table's memory, from the master behind this abstract socket; Unreachable if it has none."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        try:
            connection.settimeout(FETCH_SECONDS)
            connection.connect("\0" + name)
            connection.sendall(secret)
            _, descriptors, _, _ = socket.recv_fds(connection, 1, 1)
        except OSError as error:
            raise Unreachable(f"the master's keys cannot be seen from here ({error})") from None
    if not descriptors:
        raise Unreachable("the master does not show its keys")
    return descriptors[0]


class KeyTableReader:
    """The key table of the master behind one connection, while that is open; for any thread."""

    __slots__ = (
        "_cells",
        "_clock",
        "_floors",
        "_good_until",
        "_hung_up",
        "_line",
        "_lock",
        "_look_at",
        "_most_places",
        "_prefix",
        "_seen",
        "_top",
    )

    def __init__(self, memory: mmap.mmap, line: Line, clock: Clock = now_seconds) -> None:
        self._cells = memoryview(memory).cast("Q")
        if len(self._cells) < 2 * FIRST_PLACES or self._cells[KIND] != MAGIC:
            raise Unreachable("the master shows its keys in another way than this client knows")
        self._most_places = len(self._cells) - FIRST_PLACES
        self._prefix = line.welcome.namespace.encode()
        """Of the client's tenant: its keys have it there."""
        # Any number of threads may poll at once, which a select.poll object refuses.
        hang_up = select.epoll()
        hang_up.register(line.descriptor, 0)
        self._hung_up = hang_up.poll
        self._line = line
        self._clock = clock
        self._lock = threading.Lock()
        self._good_until = 0.0
        self._look_at = 0.0
        self._seen = clock()
        self._top = self._cells[ASKED]
        self._floors = [(self._top, self._seen)] * 2
        """The last two numbers that were seen and then replaced, and when each was last seen: every later number was
        asked for after that time."""

    def has(self, key: str) -> bool | None:
        """Is it there? None: ask the master."""
        cells = self._cells
        sequence = cells[SEQUENCE]
        mask = cells[MASK]
        if sequence & 1 or mask >= self._most_places:
            return None
        wanted = fingerprint(self._prefix + key.encode())
        there = cells[FIRST_PLACES + (wanted & mask)]
        # Most are found at the first place, or it is empty.
        found = there == wanted or (there != 0 and self._is_behind(wanted, mask))
        return found if self._was_true(sequence) else None

    def has_each(self, keys: list[str]) -> list[bool] | None:
        """The same for many, all at one moment."""
        cells = self._cells
        sequence = cells[SEQUENCE]
        mask = cells[MASK]
        if sequence & 1 or mask >= self._most_places:
            return None
        found: list[bool | None] = [
            (there := cells[FIRST_PLACES + (wanted & mask)]) == wanted or (there != 0 and self._is_behind(wanted, mask))
            for wanted in fingerprints(keys, self._prefix)
        ]
        # None among them: a key may be further away than keys ever are, in a table that is wrong.
        return cast("list[bool]", found) if None not in found and self._was_true(sequence) else None

    def _is_behind(self, wanted: int, mask: int) -> bool | None:
        """Is it behind its home place? None: not as far as keys ever are, and no free place was found either."""
        cells = self._cells
        for at in range(wanted + 1, wanted + MOST_PROBES):
            there = cells[FIRST_PLACES + (at & mask)]
            if there == wanted:
                return True
            if not there:
                return False
        return None

    def _was_true(self, sequence: int) -> bool:
        """Was a lookup that began at this sequence what the master would have answered?"""
        now = self._clock()
        if now >= self._look_at:
            self._observe()
        return (
            now < self._good_until
            and not self._hung_up(0, 1)
            and not self._line.closed
            and self._cells[SEQUENCE] == sequence
        )

    def _observe(self) -> None:
        """Read until when the master leads, as far as can be told. A number that is new since the last reading was
        asked for after that reading; a confirmation of it counts at least from there."""
        cells = self._cells
        with self._lock:
            now = self._clock()
            asked = cells[ASKED]
            if asked != self._top:
                self._floors = [(self._top, self._seen), self._floors[0]]
                self._top = asked
            self._seen = now
            confirmed = cells[CONFIRMED]
            since = next((seen for floor, seen in self._floors if confirmed > floor), None)
            if since is not None:
                self._good_until = since + relied_on(cells[GOOD_MS] / 1000)
            self._look_at = now + LOOK_SECONDS

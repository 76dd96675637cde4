"""The memory that this client may write to.

A large put or a batch has a grant of its own; small puts share one, filled from the front, so that each needs only
its commit. A streak of large puts shares one too, and the commit that fills it up prefetches the next
(ADR 25). A grant is given back once nobody writes to it: its id waits in `finished` for the next request to carry it,
or in `torn` if bytes of it may still be under way on a broken connection. No grant is given back while a copy may run,
and none is forgotten: memory that is not given back is lost to everybody (I11).
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeAlias

from holdfast.ids import LARGE_ALIGN, LARGE_FROM, SMALL_ALIGN, GrantId, extent_of
from holdfast.instant import relied_on
from holdfast.messages.shapes import Range

IDLE_SECONDS = 5.0
EXTEND_AFTER = 1 / 3
CARRIED_WITHIN_SECONDS = 1.0
"""Finished grants wait this long for a request that carries them."""
STREAK_SECONDS = 1.0
"""Large puts that follow each other within this time are a streak; its grant waits this long for the next one."""
STREAK_BYTES = 64 << 20
"""The most memory that a streak prefetches. It is less if the master's write window is small."""

Kind: TypeAlias = tuple[int, tuple[str, ...], bool]
"""Puts share a grant if they want the same (replicas, preferred places), and if both are small or in a streak."""


@dataclass(slots=True, eq=False)
class WriteGrant:
    id: GrantId
    length: int
    ranges: tuple[Range, ...]
    timeout: float
    until: float
    extend_at: float
    last_used: float
    kind: Kind | None = None
    """None: the grant belongs to one put."""
    used: int = 0
    users: int = 0
    retired: bool = False
    torn: bool = False
    void: bool = False
    """The grant is of an old history: memory that is mapped under its numbers now belongs to others."""

    @property
    def idle_seconds(self) -> float:
        """How long it may be without users before it is retired."""
        return STREAK_SECONDS if self.kind is not None and self.kind[2] else IDLE_SECONDS

    def extended(self, sent_at: float) -> None:
        self.until = sent_at + relied_on(self.timeout)
        self.extend_at = sent_at + self.timeout * EXTEND_AFTER


def lay_out(sizes: Sequence[int], start: int = 0) -> tuple[list[int], int]:
    """Offsets for objects of these sizes, large ones first so that all are aligned; and the end of the last one."""
    longest = max(sizes, default=0)
    if longest < LARGE_FROM:
        if sizes and min(sizes) == longest:  # All alike, as most batches are.
            extent = (longest + SMALL_ALIGN - 1) & -SMALL_ALIGN
            end = start + extent * len(sizes)
            return [*range(start, end, extent)], end
        extents = [(size + SMALL_ALIGN - 1) & -SMALL_ALIGN for size in sizes]
        offsets = [*accumulate(extents, initial=start)]
        return offsets, offsets.pop()
    offsets = [0] * len(sizes)
    at = start
    large = [index for index, size in enumerate(sizes) if size >= LARGE_FROM]
    if large:
        at = -(-at // LARGE_ALIGN) * LARGE_ALIGN
        for index in large:
            offsets[index] = at
            at += extent_of(sizes[index])
    for index, size in enumerate(sizes):
        if size < LARGE_FROM:
            offsets[index] = at
            at += -(-size // SMALL_ALIGN) * SMALL_ALIGN
    return offsets, at


class Grants:
    """All grants that this client holds. Callers pass `now`; the lock only makes each step atomic for threads."""

    def __init__(self, client: int) -> None:
        self.client = client
        self.by_id: dict[GrantId, WriteGrant] = {}
        self.finished: list[GrantId] = []
        self.torn: list[GrantId] = []
        self.finished_at = 0.0
        self._shared: dict[Kind, WriteGrant] = {}
        self._asking: set[Kind] = set()
        self._streak: tuple[Kind, float] | None = None
        """The kind of the last large put, and when it ended."""
        self._prefetched_bytes = 0
        """The size of this streak's last prefetch, in bytes."""
        self._serial = 0
        self._lock = threading.Lock()

    def belong_to(self, client: int) -> None:
        """Take this number from now on. Grants of another one are another's, for every master that knows this one."""
        if client != self.client:
            self.clear()
            with self._lock:
                self.client = client

    def next_id(self) -> GrantId:
        with self._lock:
            self._serial += 1
            return GrantId(self.client, self._serial)

    def may_ask(self, kind: Kind) -> bool:
        """May the caller ask for a shared grant? True for one at a time: meanwhile the others take their own."""
        with self._lock:
            if kind in self._asking:
                return False
            self._asking.add(kind)
            return True

    def asked(self, kind: Kind) -> None:
        with self._lock:
            self._asking.discard(kind)

    def add(self, grant: WriteGrant, now: float) -> None:
        """Add a new grant. A shared one replaces the one before."""
        with self._lock:
            self.by_id[grant.id] = grant
            if grant.kind is None:
                grant.users = 1
                return
            before = self._shared.get(grant.kind)
            self._shared[grant.kind] = grant
            if before is not None:
                self._retire(before, now)

    def reserve(self, kind: Kind, sizes: Sequence[int], now: float) -> tuple[WriteGrant, list[int]] | None:
        """Room in the shared grant, with the caller counted as one of its users; None if a new grant is needed."""
        with self._lock:
            grant = self._usable(kind, now)
            if grant is None:
                return None
            offsets, end = lay_out(sizes, grant.used)
            return (grant, offsets) if self._fill_to(grant, end, now) else None

    def reserve_one(self, kind: Kind, size: int, now: float) -> tuple[WriteGrant, int] | None:
        """The same for one object."""
        with self._lock:
            grant = self._usable(kind, now)
            if grant is None:
                return None
            align = LARGE_ALIGN if size >= LARGE_FROM else SMALL_ALIGN
            offset = -(-grant.used // align) * align
            return (grant, offset) if self._fill_to(grant, offset - (-size // align) * align, now) else None

    def _usable(self, kind: Kind, now: float) -> WriteGrant | None:
        grant = self._shared.get(kind)
        if grant is not None and now >= grant.until:
            self._retire(grant, now)
            return None
        return grant

    def _fill_to(self, grant: WriteGrant, end: int, now: float) -> bool:
        if end > grant.length:
            return False
        grant.used = end
        grant.users += 1
        grant.last_used = now
        return True

    def in_streak(self, kind: Kind, now: float) -> bool:
        """Has a large put of this kind just ended? Then another is likely to follow this one."""
        streak = self._streak
        return streak is not None and streak[0] == kind and now < streak[1] + STREAK_SECONDS

    def prefetch_bytes(self, kind: Kind, length: int, most: int) -> int:
        """Bytes to prefetch with the commit of a put of this length. Doubles each time; 0 if the current grant still
        fits such a put, or a request is under way. The caller must call `asked` when its request has ended."""
        with self._lock:
            there = self._shared.get(kind)
            if kind in self._asking or (there is not None and there.length - there.used >= length):
                return 0
            self._asking.add(kind)
            self._prefetched_bytes = max(length, min(2 * self._prefetched_bytes, STREAK_BYTES, most))
            return self._prefetched_bytes

    def prefetch_refused(self) -> None:
        """Note that a prefetch found too little room: the next one asks for less."""
        self._prefetched_bytes = 0

    def continue_streak(self, kind: Kind, now: float) -> None:
        """Begin or continue a streak: a large put was stored."""
        if not self.in_streak(kind, now):
            self._prefetched_bytes = 0
        self._streak = kind, now

    def end_streak(self, kind: Kind, now: float) -> None:
        """End the streak: the next large put asks by its key before it writes."""
        with self._lock:
            self._streak = None
            self._prefetched_bytes = 0
            if (grant := self._shared.get(kind)) is not None:
                self._retire(grant, now)

    def make_way(self, length: int, window: int, now: float) -> None:
        """Retire idle grants if with them the master would refuse a request for `length` bytes."""
        with self._lock:
            unused = sum((grant.length - grant.used) * len(grant.ranges) for grant in self.by_id.values())
            if unused + length > window:
                for grant in list(self._shared.values()):
                    if not grant.users:
                        self._retire(grant, now)

    def unreserve(self, grant: WriteGrant, offset: int, size: int) -> None:
        """Free reserved room in which nothing was stored, if it is the last that was reserved."""
        with self._lock:
            if grant.used == offset + extent_of(size):
                grant.used = offset

    def retire(self, grant: WriteGrant, now: float) -> None:
        """Let no new user take it, and give it back when the last one has left."""
        with self._lock:
            self._retire(grant, now)

    def retire_on(self, segments: set[int], now: float) -> None:
        """Retire all grants in these segments, whose node is dead or away: also shared and prefetched ones."""
        with self._lock:
            for grant in list(self.by_id.values()):
                if any(piece.segment in segments for piece in grant.ranges):
                    self._retire(grant, now)

    def release(self, grant: WriteGrant, now: float) -> None:
        """Count one user less. A grant that belongs to one call is retired then."""
        with self._lock:
            grant.users -= 1
            if grant.kind is None or grant.torn:
                self._retire(grant, now)
            elif grant.retired:
                self._give_back(grant, now)

    def share(self, grant: WriteGrant, users: int) -> None:
        """Give a grant that belongs to one call this many users, each of which releases it."""
        with self._lock:
            grant.users = users

    def filled(self, grant: WriteGrant, length: int) -> None:
        """Note that `length` bytes of it were committed: they no longer count towards the write window."""
        with self._lock:
            grant.used += length

    def bytes_in_use(self) -> int:
        """Bytes that active writers hold and have not committed."""
        with self._lock:
            return sum((each.length - each.used) * len(each.ranges) for each in self.by_id.values() if each.users)

    def done_with(self, grant_id: GrantId, now: float) -> None:
        """Release the grant of a put that has ended, whether it succeeded or failed."""
        grant = self.by_id.get(grant_id)
        if grant is not None and grant.kind is None:
            self.release(grant, now)

    def _retire(self, grant: WriteGrant, now: float) -> None:
        grant.retired = True
        if grant.kind is not None and self._shared.get(grant.kind) is grant:
            del self._shared[grant.kind]
        self._give_back(grant, now)

    def _give_back(self, grant: WriteGrant, now: float) -> None:
        if grant.users <= 0 and self.by_id.pop(grant.id, None) is not None:
            if not (self.finished or self.torn):
                self.finished_at = now
            (self.torn if grant.torn else self.finished).append(grant.id)

    def take_finished(self) -> list[GrantId]:
        if not self.finished:
            return []
        with self._lock:
            finished, self.finished = self.finished, []
            return self._own(finished)

    def take_torn(self) -> list[GrantId]:
        with self._lock:
            torn, self.torn = self.torn, []
            return self._own(torn)

    def _own(self, grants: list[GrantId]) -> list[GrantId]:
        """Those of our number. A master refuses a whole request that names another's, and does not know them anyway."""
        return [grant for grant in grants if grant.client == self.client]

    def put_back(self, now: float, finished: Sequence[GrantId], torn: Sequence[GrantId] = ()) -> None:
        """Give these back with another request: the one that carried them may not have arrived. Twice is harmless."""
        if finished or torn:
            with self._lock:
                self.finished_at = now
                self.finished.extend(finished)
                self.torn.extend(torn)

    def retire_idle(self, now: float) -> None:
        with self._lock:
            for grant in list(self._shared.values()):
                if grant.users == 0 and (now - grant.last_used >= grant.idle_seconds or now >= grant.until):
                    self._retire(grant, now)

    def to_extend(self, now: float) -> list[WriteGrant]:
        with self._lock:
            return [grant for grant in self.by_id.values() if grant.extend_at <= now < grant.until]

    def next_due(self, now: float) -> float | None:
        """When the next work for a grant is due. The user of a grant past its end finds out without this."""
        with self._lock:
            dues = [grant.extend_at for grant in self.by_id.values() if now < grant.until]
            dues += [grant.last_used + grant.idle_seconds for grant in self.by_id.values() if grant.users == 0]
            if self.finished or self.torn:
                dues.append(self.finished_at + CARRIED_WITHIN_SECONDS)
            return min(dues, default=None)

    def busy_segments(self) -> set[int]:
        with self._lock:
            return {piece.segment for grant in self.by_id.values() for piece in grant.ranges}

    def retire_all(self, now: float) -> None:
        with self._lock:
            for grant in list(self.by_id.values()):
                self._retire(grant, now)

    def clear(self) -> None:
        """Forget everything: the master has another history, in which none of it is known."""
        with self._lock:
            for grant in self.by_id.values():
                grant.void = True
            self._shared.clear()
            self.by_id.clear()
            self.finished.clear()
            self.torn.clear()

"""reserve, write, commit: memory for objects that any threads fill part by part, stored once every byte is there.

The life of a reservation:

1. Reserved: a grant for the whole batch, in one request. The keeper extends it for as long as it is needed.
2. Filled: each part is written to every replica, in one attempt (I11). A part that fails costs the reservation.
3. Committed: every byte was written once; its checksum is taken and the object made visible.
4. Ended: committed, abandoned, lost, or dropped by its owner. When all reservations of a grant have ended and no thread
   writes to one of them, the grant is given back.
"""

from __future__ import annotations

import logging
import threading
import weakref
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import xxhash

from holdfast.client.arguments import Gathered, PutOptions, Value
from holdfast.client.operations.transfer import WriteFailed, fill
from holdfast.client.state.client import Core
from holdfast.client.state.grants import WriteGrant
from holdfast.errors import BadValue, GrantTimedOut, HoldfastError, Refused
from holdfast.ids import extent_of
from holdfast.operations.effects import BULK_FROM, Operation, Work

log = logging.getLogger("holdfast.client")


@dataclass(slots=True, eq=False)
class Share:
    """One reservation's part of a grant. It outlives the reservation while a thread still writes to it."""

    key: str
    grant: WriteGrant
    writers: int = 0
    ended: bool = False


class WrittenPart:
    """The bytes that were written, as a few disjoint ranges: most objects are written front to back."""

    __slots__ = ("_ranges", "total")

    def __init__(self) -> None:
        self._ranges: list[tuple[int, int]] = []
        self.total = 0

    def add(self, start: int, stop: int) -> bool:
        """Add this range. False: some of it was written before."""
        ranges = self._ranges
        at = bisect_left(ranges, (start, stop))
        if (at and ranges[at - 1][1] > start) or (at < len(ranges) and ranges[at][0] < stop):
            return False
        first = last = at
        self.total += stop - start
        if at and ranges[at - 1][1] == start:
            first, start = at - 1, ranges[at - 1][0]
        if at < len(ranges) and ranges[at][0] == stop:
            last, stop = at + 1, ranges[at][1]
        ranges[first:last] = [(start, stop)]
        return True


class Reserved:
    """The state of one reservation, shared by the threads that fill it."""

    __slots__ = (
        "__weakref__",
        "_digest",
        "_hashing",
        "_lock",
        "_over",
        "_written",
        "checksum",
        "hashed_bytes",
        "key",
        "offset",
        "options",
        "share",
        "size",
    )

    def __init__(self, share: Share, offset: int, size: int, options: PutOptions) -> None:
        self.key = share.key
        self.share = share
        self.offset = offset
        """Where it begins in the grant."""
        self.size = size
        self.options = options
        self.checksum = 0
        """The checksum of the whole object, if it was written as one part."""
        self.hashed_bytes = 0
        """How many bytes from the front are in the running checksum, for memory that is not mapped here."""
        self._digest = xxhash.xxh3_64()
        self._hashing = False
        self._written = WrittenPart()
        self._over = ""
        """Why it has ended; empty while it can be used."""
        self._lock = threading.Lock()

    def begin_write(self, start: int, stop: int) -> None:
        if type(start) is not int:
            raise TypeError(f"start is an int, not {type(start).__name__}; nothing was written")
        if not 0 <= start < stop <= self.size:
            raise BadValue(
                f"[{start:,}, {stop:,}) is outside of {self.key!r} ({self.size:,} bytes); nothing was written"
            )
        with self._lock:
            self._check_open()
            if not self._written.add(start, stop):
                raise BadValue(
                    f"some of [{start:,}, {stop:,}) of {self.key!r} was written before; a byte is written once"
                )
            self.share.writers += 1

    def end_write(self, core: Core) -> None:
        with self._lock:
            self.share.writers -= 1
        _give_up_ended(core, self.share)

    def add_to_checksum(self, start: int, part: Value) -> None:
        """Add this part if it is the next from the front; a later one is read back at the commit."""
        with self._lock:
            if self._hashing or start != self.hashed_bytes:
                return
            self._hashing = True
        for piece in part.parts if isinstance(part, Gathered) else [part]:
            self._digest.update(piece)
        with self._lock:
            self._hashing = False
            self.hashed_bytes += len(part)

    def running_checksum(self) -> xxhash.xxh3_64:
        return self._digest.copy()

    def begin_commit(self) -> None:
        with self._lock:
            self._check_open()
            if self._written.total != self.size or self.share.writers:
                written = f"{self._written.total:,} of {self.size:,} bytes"
                raise BadValue(f"{self.key!r} is not filled: {written} were written; nothing was stored")
            self._over = "is being committed by another call"

    def commit_failed(self) -> None:
        """Allow another commit."""
        with self._lock:
            self._over = ""

    def end(self, core: Core, why: str) -> None:
        with self._lock:
            self._over = why
            self.share.ended = True
        _give_up_ended(core, self.share)

    def abandon(self, core: Core) -> None:
        """Give the memory back, unless it has ended or another call is committing it."""
        with self._lock:
            if self._over:
                return
            self._over = "was abandoned"
            self.share.ended = True
        _give_up_ended(core, self.share)

    def _check_open(self) -> None:
        if self._over:
            raise Refused(f"the reservation of {self.key!r} {self._over}; nothing was changed")


def _give_up_ended(core: Core, share: Share) -> None:
    """Give back this share of its grant: no thread writes to it any more."""
    if share.ended and not share.writers and core.shares.pop(share, None) is not None:
        core.grants.release(share.grant, core.clock())


def any_forgotten(core: Core) -> bool:
    return any(reserved() is None and not share.ended for share, reserved in list(core.shares.items()))


def give_up_forgotten(core: Core) -> None:
    """Give back the memory of reservations that were dropped without a commit or an abandon."""
    for share, reserved in list(core.shares.items()):
        if reserved() is None and not share.ended:
            share.ended = True
            log.warning("the reservation of %r was dropped without commit or abandon; it is abandoned", share.key)
            _give_up_ended(core, share)


def abandon_all(core: Core) -> None:
    """Abandon every reservation: the client closes."""
    for share in list(core.shares):
        share.ended = True
        _give_up_ended(core, share)


def hold(core: Core, grant: WriteGrant, items: Sequence[tuple[str, int, int]], options: PutOptions) -> list[Reserved]:
    """Reservations for these (key, size, offset) in a grant of their own."""
    made: list[Reserved] = []
    for key, size, offset in items:
        reserved = Reserved(Share(key, grant), offset, size, options)
        core.shares[reserved.share] = weakref.ref(reserved)
        made.append(reserved)
    core.grants.share(grant, len(made))
    return made


def write(core: Core, reserved: Reserved, start: int, part: Value, deadline: float) -> Operation[None]:
    """Write a part to every replica."""
    core.check_open()
    reserved.begin_write(start, start + len(part))
    grant, size = reserved.share.grant, len(part)
    whole = size == reserved.size
    why = "was lost, because a write was broken off"
    try:
        at = [reserved.offset + start]
        checksums = yield from fill(core, grant, [part], [size], at, deadline, checksum=core.verify and whole)
        if whole:
            reserved.checksum = checksums[0]
        elif core.verify and not any(piece.writer for piece in grant.ranges):
            yield Work(lambda: reserved.add_to_checksum(start, part), bulk=size >= BULK_FROM)
        why = ""
    except WriteFailed as failed:
        why = f"was lost, because a part could not be written ({failed.cause})"
        raise _lost(reserved, failed.cause) from failed.cause
    except HoldfastError as error:
        why = f"was lost, because a part could not be written ({error})"
        raise _lost(reserved, error) from error
    finally:
        if why:
            reserved.end(core, why)
        reserved.end_write(core)


def _lost(reserved: Reserved, error: HoldfastError) -> HoldfastError:
    return GrantTimedOut(f"the reservation of {reserved.key!r} is lost; nothing was stored. Reserve again ({error})")


def committed(core: Core, reserved: Reserved, stored: bool) -> None:
    if stored:
        core.grants.filled(reserved.share.grant, extent_of(reserved.size))
    reserved.end(core, "was committed already" if stored else "ended, because another put of the key came first")

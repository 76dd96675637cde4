"""get, get_into: a read is right if it ended inside its lease, or if the object is still there afterwards.

Reads try a mapped segment first, then other replicas. When all replicas have failed, the object is located again, until
the deadline.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple, Protocol

from holdfast.client.bytes.nodes import WantedBytes
from holdfast.client.operations.places import locate_one, look_for_failing, refresh
from holdfast.client.state.client import FIRST_PAUSE, LONGEST_PAUSE, Core, ask
from holdfast.client.state.leases import NO_LEASE, LeaseRow, ReadLease
from holdfast.client.state.own_removals import guarded_read
from holdfast.client.targets import Room
from holdfast.errors import (
    BadRequest,
    ChecksumMismatch,
    DeadlineExceeded,
    HoldfastError,
    NodeLost,
    TicketRefused,
    TryAgain,
    Uncertain,
    UnknownSegment,
)
from holdfast.ids import LARGE_FROM
from holdfast.messages.requests import Presence, RenewLeases
from holdfast.messages.rows import SeenRow
from holdfast.messages.shapes import SegmentPlace
from holdfast.operations.effects import BULK_FROM, Operation, Sleep, Work


class Target(Protocol):
    """The destination of a read."""

    @property
    def whole(self) -> bool:
        """Is the whole object read, not parts of it?"""

    def __call__(self, size_bytes: int) -> Room:
        """The room for an object of this size. Called again if the object is replaced meanwhile."""


class WantedObject(NamedTuple):
    """The room that one object is read into, and how it is verified."""

    room: Room
    whole: bool
    verify: bool
    into_caller: bool


_new_bytes = ctypes.pythonapi.PyBytes_FromStringAndSize
_new_bytes.restype = ctypes.py_object
_new_bytes.argtypes = (ctypes.c_void_p, ctypes.c_ssize_t)
_BYTES_HEAD = bytes.__basicsize__ - 1


class FreshBytes:
    """A target that becomes bytes. Large bytes are filled in place before anyone else sees them, which saves a copy."""

    __slots__ = ("_small", "_value")
    whole = True

    def __init__(self) -> None:
        self._small: bytearray | None = None
        self._value = b""

    def __call__(self, size_bytes: int) -> Room:
        if size_bytes < LARGE_FROM:
            self._small = bytearray(size_bytes)
            return [(0, memoryview(self._small))]
        self._small = None
        self._value = _new_bytes(None, size_bytes)
        room = (ctypes.c_ubyte * size_bytes).from_address(id(self._value) + _BYTES_HEAD)
        # A thread that still fills the room keeps the bytes alive.
        room.owner = self._value  # type: ignore[attr-defined]
        return [(0, memoryview(room).cast("B"))]

    @property
    def value(self) -> bytes:
        return self._value if self._small is None else bytes(self._small)


def fetch(
    core: Core,
    key: str,
    target: Target,
    deadline: float,
    into_caller: bool = False,
    verify: bool | None = None,
    patient: bool = True,
    located: LeaseRow | None = None,
) -> Operation[ReadLease | None]:
    """Read one object into `target`. None: it is not stored. The bytes are right on return (I2). `verify`, unless None,
    overrides the client's setting. Not `patient`: the first failure is raised. `located`: its place, if just asked."""
    verify = core.verify if verify is None else verify
    pause = FIRST_PAUSE
    mismatched = False
    while True:
        core.check_open()
        lease = core.leases.live(key, core.clock())
        if lease is None:
            located = located or (yield from locate_one(core, key, deadline))
            if located is None:
                return None
            lease = ReadLease._make(located)
        located = None
        room = target(lease.size_bytes)
        failure: HoldfastError | None = None
        yield from check_reachable(core, key, lease, deadline)
        try:
            wanted = WantedObject(room, target.whole, verify, into_caller)
            lease = yield from read_replicas(core, key, lease, wanted, deadline)
            if core.clock() < lease.until and core.limits.log_id == lease.history:
                return lease
            if (yield from still_there(core, [lease], deadline))[0]:
                return lease
        except ChecksumMismatch as error:
            if mismatched:
                raise
            mismatched, failure = True, error
        except NodeLost as error:
            failure = error
        core.leases.drop(key)
        if failure is not None:
            if not patient or core.clock() + pause >= deadline:
                raise failure
            yield Sleep(pause)
            if core.clock() >= deadline:  # The sleep was longer than asked for.
                raise failure
            pause = min(2 * pause, LONGEST_PAUSE)


def check_reachable(core: Core, key: str, lease: LeaseRow, deadline: float) -> Operation[None]:
    """Raise NodeLost at once if every replica is on a node that has just failed to answer: the request that found out
    has waited for it already. A node is asked again once it has answered a probe."""
    if not core.bytes.failing:
        return
    yield from look_for_failing(core, deadline)
    if not core.reachable(lease):
        core.leases.drop(key)
        core.mind_failing()
        raise NodeLost(f"no node that holds {key!r} answers at the moment; nothing was read. Try again later")


def read_replicas(
    core: Core, key: str, lease: ReadLease, wanted: WantedObject, deadline: float
) -> Operation[ReadLease]:
    """Fill the room from one of the replicas. Returns the lease with the place of that replica.

    Replicas that have just failed come last. While there are others, a silent node is left at once, and asked again
    with patience only after all others have failed: it may be slow, and the only one left."""
    tried: list[str] = []
    mismatch = False
    candidates = [((lease.segment, lease.start)), *lease.others]
    places = core.segments.places
    if core.bytes.failing:
        unreachable = core.unreachable_segments()
        candidates = [each for each in candidates if each[0] not in unreachable]
    candidates.sort(key=lambda each: each[0] not in places or core.bytes.is_bad(places[each[0]]))
    attempts = [(segment, offset, len(candidates) > 1) for segment, offset in candidates]
    # Grows during the loop: silent nodes are appended.
    for segment, offset, hurried in attempts:
        place = core.segments.places.get(segment)
        if place is None:
            tried.append(f"segment {segment} is mounted no more")
            continue
        checked = lease.checksum != 0 and _is_checked(core, place, lease.until, wanted)
        there = WantedBytes(place, offset, lease.ticket_for(segment))
        run = partial(_fill_room, core, there, lease.size_bytes, wanted, checked, deadline, hurried)
        bulk = segment not in core.bytes.maps or lease.size_bytes >= BULK_FROM
        try:
            checksum = yield Work(run, bulk=bulk, into_caller=wanted.into_caller)
        except (TryAgain, Uncertain, UnknownSegment) as error:
            core.mind_failing()
            if hurried and isinstance(error, DeadlineExceeded):
                attempts.append((segment, offset, False))
            else:
                tried.append(str(error))
            continue
        if not checked or checksum == lease.checksum:
            return lease._replace(segment=segment, start=offset, stop=offset + lease.size_bytes)
        if place.kind and (yield from _is_lost(core, there, deadline)):
            tried.append(f"the file on {place.name} is spoiled")
            continue
        mismatch = True
        tried.append(f"the bytes on {place.name} do not match their checksum")
    why = "; ".join(tried)
    if mismatch:
        raise ChecksumMismatch(f"the bytes of {key!r} are not the bytes that were put ({why})")
    if core.clock() < deadline:
        # The nodes may have moved.
        yield from refresh(core, deadline)
    raise NodeLost(f"no node that holds {key!r} gives its bytes ({why}); it may come back, try again")


def _is_checked(core: Core, place: SegmentPlace, until: float, wanted: WantedObject) -> bool:
    """Are the bytes from there compared with the checksum, which covers the whole object? For parts only where the
    bytes may have changed since the put: under a restored catalogue, and on a disk."""
    if core.segments.doubts(place.handle, until):
        return True
    return wanted.verify and (wanted.whole or bool(place.kind))


def _fill_room(
    core: Core,
    there: WantedBytes,
    size_bytes: int,
    wanted: WantedObject,
    checked: bool,
    deadline: float,
    hurried: bool,
) -> int:
    """Fill the room. Returns the checksum of the object, or 0 if it is not compared."""
    if wanted.whole or not checked:
        return core.bytes.read(there, wanted.room, checked, deadline, hurried)
    whole = FreshBytes()(size_bytes)
    checksum = core.bytes.read(there, whole, checked, deadline, hurried)
    [(_, source)] = whole
    for start, view in wanted.room:
        view[:] = source[start : start + view.nbytes]
    return checksum


def _is_lost(core: Core, there: WantedBytes, deadline: float) -> Operation[bool]:
    """Ask the node of a disk that gave wrong bytes. True: it found the same itself, and tells the master (I18)."""
    try:
        yield Work(lambda: core.bytes.check_file(there, deadline))
    except TicketRefused:
        return False  # It was not checked: the mismatch stands.
    except UnknownSegment:
        return True
    except HoldfastError:
        return False  # The node is silent, or too old to be asked: the mismatch stands.
    return False


def still_there(core: Core, leases: Sequence[ReadLease], deadline: float) -> Operation[list[bool]]:
    """Are these objects where they were? If so, every byte read there until now was right: ids are never reused.

    That holds within one history; a master with another one may have given the same ids to other objects."""
    rows = SeenRow.pack_rows((lease.id, lease.segment, lease.start) for lease in leases)
    presence = yield from ask(core, RenewLeases(rows), Presence, deadline)
    if len(presence.found) != len(leases):
        raise BadRequest(f"the master answered for {len(presence.found)} leases, not for {len(leases)}")
    history = core.limits.log_id
    return [found != 0 and lease.history == history for lease, found in zip(leases, presence.found, strict=True)]


def get(core: Core, key: str, deadline: float, place: LeaseRow | None = None) -> Operation[bytes | None]:
    """The object's bytes. None: it is not stored. `place`: where it was a moment ago, without a lease."""
    return guarded_read(core.own_removals, (key,), _get(core, key, deadline, place), core.clock, deadline)


def _get(core: Core, key: str, deadline: float, located: LeaseRow | None) -> Operation[bytes | None]:
    if located is None and core.leases.live(key, core.clock()) is None:
        located = yield from locate_one(core, key, deadline)
        if located is None:
            return None
        data = core.read_leased(key) if located[0] != NO_LEASE else None
        if data is not None:
            return data
    fresh = FreshBytes()
    lease = yield from fetch(core, key, fresh, deadline, located=located)
    return None if lease is None else fresh.value


def get_into(core: Core, key: str, target: Target, deadline: float) -> Operation[ReadLease | None]:
    """Read into the caller's memory, which `target` gives. None: it is not stored."""
    read = fetch(core, key, target, deadline, into_caller=True)
    return guarded_read(core.own_removals, (key,), read, core.clock, deadline)

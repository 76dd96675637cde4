"""get, get_into: a read is right if it ended inside its lease, or if the object is still there afterwards.

Reads try a mapped segment first, then other replicas. When all replicas have failed, the object is located again, until
the deadline.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import partial
from itertools import compress, repeat
from operator import add
from typing import NamedTuple, Protocol

from holdfast.client.operations.places import look_for_failing, ready_to_read, refresh
from holdfast.client.state.client import FIRST_PAUSE, LONGEST_PAUSE, Core, ask, ask_timed
from holdfast.client.state.leases import LeaseRow, ReadLease, lease_until
from holdfast.client.state.own_removals import guarded_read
from holdfast.client.targets import Room
from holdfast.effects import BULK_FROM, Operation, Sleep, Work
from holdfast.errors import (
    BadRequest,
    ChecksumMismatch,
    DeadlineExceeded,
    HoldfastError,
    NodeLost,
    TryAgain,
    Uncertain,
    UnknownSegment,
)
from holdfast.ids import LARGE_FROM, SegmentHandle
from holdfast.messages.requests import Locate, Located, Presence, RenewLeases
from holdfast.messages.rows import LocatedRow, SeenRow
from holdfast.messages.shapes import SegmentPlace


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


def locate_one(core: Core, key: str, deadline: float) -> Operation[ReadLease | None]:
    """A lease on one object. Cases that need more than one reply are left to `locate`."""
    history = core.limits.log_id
    located, sent_at = yield from ask_timed(core, Locate([key]), Located, deadline)
    core.segments.seen = located.topology
    if len(located.rows) != LocatedRow.size_bytes:
        raise BadRequest(f"the master sent {len(located.rows)} bytes about one key, not {LocatedRow.size_bytes}")
    id_, segment, offset, size, checksum = LocatedRow.unpack_one(located.rows)
    if not id_:
        core.leases.drop(key)
        return None
    if located.others or segment not in core.bytes.settled:
        row = (yield from take_over(core, [key], located, sent_at, history, deadline)).get(key)
        return None if row is None else ReadLease._make(row)
    until = lease_until(sent_at, located.lease_ttl_ms)
    lease = ReadLease(until, segment, offset, offset + size, checksum, id_, ())
    core.keep_lease(key, lease, history)
    return lease


def read_located(core: Core, key: str, located: Located, sent_at: float, history: int) -> bytes | None:
    """Fast path of `get` in half the time: the bytes of a small object on this machine, right after its location came.
    b"" if the key is absent (objects are never empty). None if the slow path is needed; it need not ask the master
    again if the segment is known already."""
    if len(located.rows) != LocatedRow.size_bytes or located.others:
        return None
    core.segments.seen = located.topology
    id_, segment, offset, size, checksum = LocatedRow.unpack_one(located.rows)
    if not id_:
        core.leases.drop(key)
        return b""
    if segment not in core.bytes.settled:
        return None
    until = lease_until(sent_at, located.lease_ttl_ms)
    core.keep_lease(key, (until, segment, offset, offset + size, checksum, id_, ()), history)
    return core.read_leased(key)


def locate(core: Core, keys: Sequence[str], deadline: float) -> Operation[dict[str, LeaseRow]]:
    """Leases on those of the keys that are stored; they are kept for later reads."""
    history = core.limits.log_id
    located, sent_at = yield from ask_timed(core, Locate(list(keys)), Located, deadline)
    return (yield from take_over(core, keys, located, sent_at, history, deadline))


def take_over(
    core: Core, keys: Sequence[str], located: Located, sent_at: float, history: int, deadline: float
) -> Operation[dict[str, LeaseRow]]:
    """The leases in this reply to a request that was sent at that time and under that history."""
    core.segments.seen = located.topology
    if len(located.rows) != LocatedRow.size_bytes * len(keys):
        raise BadRequest(f"the master located {LocatedRow.count(located.rows)} keys where {len(keys)} were asked")
    ids, segments, offsets, sizes, checksums = LocatedRow.columns(located.rows)
    handles = set(compress(segments, ids))
    handles.update(segment for _, segment, _ in located.others)
    yield from ready_to_read(core, handles, deadline)
    maps = core.bytes.maps
    until = lease_until(sent_at, located.lease_ttl_ms)
    stops = map(add, offsets, sizes)
    # One pass in C over the columns: it makes one tuple per key and nothing else.
    rows = zip(repeat(until), segments, offsets, stops, checksums, ids, repeat(()))
    found: dict[str, LeaseRow] = dict(zip(keys, rows, strict=False))
    for index, places in _places(located, segments, offsets).items():
        # A replica on this machine comes first.
        (segment, start), *further = sorted(places, key=lambda place: place[0] not in maps)
        stop = start + sizes[index]
        found[keys[index]] = (until, segment, start, stop, checksums[index], ids[index], tuple(further))
    if 0 in ids:
        found = dict(compress(zip(keys, map(found.__getitem__, keys), strict=True), ids))
    core.keep_leases(found, history)
    return found


def _places(
    located: Located, segments: Sequence[int], offsets: Sequence[int]
) -> dict[int, list[tuple[SegmentHandle, int]]]:
    """(segment, offset) of every replica of the objects that have several, by the index of their key."""
    places: dict[int, list[tuple[SegmentHandle, int]]] = {}
    for index, segment, offset in located.others:
        if not 0 <= index < len(segments):
            raise BadRequest(f"the master named replicas of key {index} where {len(segments)} were asked")
        places.setdefault(index, [(segments[index], offsets[index])]).append((segment, offset))
    return places


def fetch(
    core: Core,
    key: str,
    target: Target,
    deadline: float,
    into_caller: bool = False,
    verify: bool | None = None,
    patient: bool = True,
) -> Operation[ReadLease | None]:
    """Read one object into `target`. None: it is not stored. The bytes are right on return (I2).

    `verify`, unless None, overrides the client's setting. Not `patient`: the first failure is raised."""
    verify = core.verify if verify is None else verify
    pause = FIRST_PAUSE
    mismatched = False
    while True:
        core.check_open()
        # Read before the lease is looked up: in another history the same numbers name other places.
        history = core.limits.log_id
        lease = core.leases.live(key, core.clock())
        if lease is None:
            lease = yield from locate_one(core, key, deadline)
            if lease is None:
                return None
        room = target(lease.size_bytes)
        failure: HoldfastError | None = None
        yield from check_reachable(core, key, lease, deadline)
        try:
            wanted = WantedObject(room, target.whole, verify, into_caller)
            lease = yield from read_replicas(core, key, lease, wanted, deadline)
            if core.clock() < lease.until and core.limits.log_id == history:
                return lease
            if (yield from still_there(core, [lease], history, deadline))[0]:
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
        local = segment in core.bytes.maps
        checked = lease.checksum != 0 and _is_checked(core, place, lease.until, wanted)
        run = partial(_fill_room, core, place, offset, lease.size_bytes, wanted, checked, deadline, hurried)
        bulk = not local or lease.size_bytes >= BULK_FROM
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
        if place.kind and (yield from _is_lost(core, place, offset, deadline)):
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
    place: SegmentPlace,
    offset: int,
    size_bytes: int,
    wanted: WantedObject,
    checked: bool,
    deadline: float,
    hurried: bool,
) -> int:
    """Fill the room. Returns the checksum of the object, or 0 if it is not compared."""
    if wanted.whole or not checked:
        return core.bytes.read(place, offset, wanted.room, checked, deadline, hurried)
    whole = FreshBytes()(size_bytes)
    checksum = core.bytes.read(place, offset, whole, checked, deadline, hurried)
    [(_, source)] = whole
    for start, view in wanted.room:
        view[:] = source[start : start + view.nbytes]
    return checksum


def _is_lost(core: Core, place: SegmentPlace, offset: int, deadline: float) -> Operation[bool]:
    """Ask the node of a disk that gave wrong bytes. True: it found the same itself, and tells the master (I18)."""
    try:
        yield Work(lambda: core.bytes.check_file(place, offset, deadline))
    except UnknownSegment:
        return True
    except HoldfastError:
        return False  # The node is silent, or too old to be asked: the mismatch stands.
    return False


def still_there(core: Core, leases: Sequence[ReadLease], history: int, deadline: float) -> Operation[list[bool]]:
    """Are these objects where they were? If so, every byte read there until now was right: ids are never reused.

    That holds within one history; a master with another one may have given the same ids to other objects."""
    rows = SeenRow.pack_rows((lease.id, lease.segment, lease.start) for lease in leases)
    presence = yield from ask(core, RenewLeases(rows), Presence, deadline)
    if len(presence.found) != len(leases):
        raise BadRequest(f"the master answered for {len(presence.found)} leases, not for {len(leases)}")
    if core.limits.log_id != history:
        return [False] * len(leases)
    return [*map(bool, presence.found)]


def get(core: Core, key: str, deadline: float) -> Operation[bytes | None]:
    return guarded_read(core.own_removals, (key,), _get(core, key, deadline), core.clock, deadline)


def get_into(core: Core, key: str, target: Target, deadline: float) -> Operation[ReadLease | None]:
    """Read into the caller's memory, which `target` gives. None: it is not stored."""
    read = fetch(core, key, target, deadline, into_caller=True)
    return guarded_read(core.own_removals, (key,), read, core.clock, deadline)


def _get(core: Core, key: str, deadline: float) -> Operation[bytes | None]:
    if core.leases.live(key, core.clock()) is None:
        if (yield from locate_one(core, key, deadline)) is None:
            return None
        data = core.read_leased(key)
        if data is not None:
            return data
    fresh = FreshBytes()
    lease = yield from fetch(core, key, fresh, deadline)
    return None if lease is None else fresh.value

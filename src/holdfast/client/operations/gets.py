"""get, get_into: a read is right if it ended inside its lease, or if the object is still there afterwards.

Reads go to a mapped segment first, then to other replicas. A replica that fails costs that attempt only; when all
have failed the object is located again, until the deadline.
"""

from __future__ import annotations

import ctypes
import struct
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
from holdfast.messages.shapes import SegmentPlace


class Target(Protocol):
    """Where an object is to be read to."""

    @property
    def whole(self) -> bool:
        """The whole object is read, not parts of it."""

    def __call__(self, size_bytes: int) -> Room:
        """The room for an object of this size. It may be called again if the object is replaced meanwhile."""


class WantedObject(NamedTuple):
    """What is read of one object, and how."""

    room: Room
    whole: bool
    verify: bool
    into_caller: bool


_LOCATED = struct.Struct("<5Q")
_SEEN = struct.Struct("<3Q")

_new_bytes = ctypes.pythonapi.PyBytes_FromStringAndSize
_new_bytes.restype = ctypes.py_object
_new_bytes.argtypes = (ctypes.c_void_p, ctypes.c_ssize_t)
_BYTES_HEAD = bytes.__basicsize__ - 1


class FreshBytes:
    """A target that becomes bytes. A large one is filled in place, before anyone else sees it: one copy less."""

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
        # Whoever still fills the room keeps the bytes.
        room.owner = self._value  # type: ignore[attr-defined]
        return [(0, memoryview(room).cast("B"))]

    @property
    def value(self) -> bytes:
        return self._value if self._small is None else bytes(self._small)


def locate_one(core: Core, key: str, deadline: float) -> Operation[ReadLease | None]:
    """A lease on one object. What needs more than one answer is left to `locate`."""
    history = core.limits.log_id
    located, sent_at = yield from ask_timed(core, Locate([key]), Located, deadline)
    core.segments.seen = located.topology
    if len(located.rows) != _LOCATED.size:
        raise BadRequest(f"the master sent {len(located.rows)} bytes about one key, not {_LOCATED.size}")
    id_, segment, offset, size, checksum = _LOCATED.unpack(located.rows)
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
    """The bytes of a small object on this machine, right after its location came; empty if it is not stored, which no
    object is. None: it takes more than that, though not asking again where the segment is known already. This does
    nothing that `get` does not do as well, in half the time."""
    if len(located.rows) != _LOCATED.size or located.others:
        return None
    core.segments.seen = located.topology
    id_, segment, offset, size, checksum = _LOCATED.unpack(located.rows)
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
    """The leases that this answer gives, which was asked for at that time and under that history."""
    core.segments.seen = located.topology
    if len(located.rows) != _LOCATED.size * len(keys):
        raise BadRequest(f"the master located {len(located.rows) // _LOCATED.size} keys where {len(keys)} were asked")
    words = struct.unpack(f"<{len(located.rows) // 8}Q", located.rows)
    ids, segments = words[0::5], words[1::5]
    handles = set(compress(segments, ids))
    handles.update(segment for _, segment, _ in located.others)
    yield from ready_to_read(core, handles, deadline)
    maps = core.bytes.maps
    until = lease_until(sent_at, located.lease_ttl_ms)
    stops = map(add, words[2::5], words[3::5])
    # One pass in C over the columns: a tuple a key is all that is made.
    rows = zip(repeat(until), segments, words[2::5], stops, words[4::5], ids, repeat(()))
    found: dict[str, LeaseRow] = dict(zip(keys, rows, strict=False))
    for index, places in _places(located, segments, words[2::5]).items():
        # A replica on this machine comes first.
        (segment, start), *further = sorted(places, key=lambda place: place[0] not in maps)
        size, checksum, id_ = words[5 * index + 3], words[5 * index + 4], ids[index]
        found[keys[index]] = (until, segment, start, start + size, checksum, id_, tuple(further))
    if 0 in ids:
        found = dict(compress(zip(keys, map(found.__getitem__, keys), strict=True), ids))
    core.keep_leases(found, history)
    return found


def _places(
    located: Located, segments: Sequence[int], offsets: Sequence[int]
) -> dict[int, list[tuple[SegmentHandle, int]]]:
    """Of the objects with several replicas, by the index of their key: (segment, offset) each."""
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
    """Read one object to where `target` says. None: it is not stored. The bytes are right on return (I2).

    `verify` other than None goes before what the client was told. Not `patient`: what fails at first is raised."""
    verify = core.verify if verify is None else verify
    pause = FIRST_PAUSE
    mismatched = False
    while True:
        core.check_open()
        # Before the lease is looked up: another history would give its numbers to other places.
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
            if core.clock() >= deadline:  # It was a longer sleep than was asked for.
                raise failure
            pause = min(2 * pause, LONGEST_PAUSE)


def check_reachable(core: Core, key: str, lease: LeaseRow, deadline: float) -> Operation[None]:
    """Raise NodeLost at once if every replica is on a node that has just failed to answer: whoever found that out has
    waited for it already. A node is asked again when a probe has found that it answers."""
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
    """Fill the room from one of the replicas; the lease with the place where that one lies.

    Those that have just failed come last. While there are others, a node that is silent is left at once, and asked
    again with patience only when all the others have failed: it may be slow, and the only one that is left."""
    tried: list[str] = []
    mismatch = False
    candidates = [((lease.segment, lease.start)), *lease.others]
    places = core.segments.places
    if core.bytes.failing:
        unreachable = core.unreachable_segments()
        candidates = [each for each in candidates if each[0] not in unreachable]
    candidates.sort(key=lambda each: each[0] not in places or core.bytes.is_bad(places[each[0]]))
    attempts = [(segment, offset, len(candidates) > 1) for segment, offset in candidates]
    # Grows while it is gone through: by the silent ones.
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
        # Perhaps the nodes have moved.
        yield from refresh(core, deadline)
    raise NodeLost(f"no node that holds {key!r} gives its bytes ({why}); it may come back, try again")


def _is_checked(core: Core, place: SegmentPlace, until: float, wanted: WantedObject) -> bool:
    """Are the bytes from there compared with the checksum, which is that of the whole object? Of parts only where the
    bytes may have changed since they were put: under a restored catalogue, and on a disk."""
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
    """The checksum of the object, or 0 where it is not compared."""
    if wanted.whole or not checked:
        return core.bytes.read(place, offset, wanted.room, checked, deadline, hurried)
    whole = FreshBytes()(size_bytes)
    checksum = core.bytes.read(place, offset, whole, checked, deadline, hurried)
    [(_, source)] = whole
    for start, view in wanted.room:
        view[:] = source[start : start + view.nbytes]
    return checksum


def _is_lost(core: Core, place: SegmentPlace, offset: int, deadline: float) -> Operation[bool]:
    """Wrong bytes came from a disk. True: its node has found so itself, and tells the master (I18)."""
    try:
        yield Work(lambda: core.bytes.check_file(place, offset, deadline))
    except UnknownSegment:
        return True
    except HoldfastError:
        return False  # The node is silent, or too old to be asked: the mismatch stands.
    return False


def still_there(core: Core, leases: Sequence[ReadLease], history: int, deadline: float) -> Operation[list[bool]]:
    """Are these objects where they were? If so, every byte read there until now was right: ids never return.

    That holds within one history; a master with another one may have given the same ids to other objects."""
    rows = b"".join([_SEEN.pack(lease.id, lease.segment, lease.start) for lease in leases])
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

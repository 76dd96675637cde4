"""get, get_into, get_many: a read is right if it ended inside its lease, or if the object is still there afterwards.

Reads go to a mapped segment first, then to other replicas. A replica that fails costs that attempt only; when all
have failed the object is located again, until the deadline.
"""

from __future__ import annotations

import ctypes
import mmap
import struct
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

import xxhash

from holdfast.client.core import FIRST_PAUSE, KEYS_A_REQUEST, LONGEST_PAUSE, Core, ask, ask_timed
from holdfast.client.leases import Lease, lease_until
from holdfast.client.places import ready_to_read, refresh
from holdfast.effects import BULK_FROM, Operation, Sleep, Work
from holdfast.errors import BadRequest, ChecksumMismatch, HoldfastError, NodeLost, TryAgain, Uncertain, UnknownSegment
from holdfast.ids import LARGE_FROM
from holdfast.messages.requests import Locate, Located, Presence, RenewLeases

Target: TypeAlias = Callable[[int], memoryview]
"""Where an object of this size is to be read to. It may be called again if the object is replaced meanwhile."""

_LOCATED = struct.Struct("<5Q")
_SEEN = struct.Struct("<3Q")
_digest = xxhash.xxh3_64_intdigest

_new_bytes = ctypes.pythonapi.PyBytes_FromStringAndSize
_new_bytes.restype = ctypes.py_object
_new_bytes.argtypes = (ctypes.c_void_p, ctypes.c_ssize_t)
_BYTES_HEAD = bytes.__basicsize__ - 1


class FreshBytes:
    """A target that becomes bytes. A large one is filled in place, before anyone else sees it: one copy less."""

    __slots__ = ("_small", "_value")

    def __init__(self) -> None:
        self._small: bytearray | None = None
        self._value = b""

    def __call__(self, size_bytes: int) -> memoryview:
        if size_bytes < LARGE_FROM:
            self._small = bytearray(size_bytes)
            return memoryview(self._small)
        self._small = None
        self._value = _new_bytes(None, size_bytes)
        room = (ctypes.c_ubyte * size_bytes).from_address(id(self._value) + _BYTES_HEAD)
        # Whoever still fills the room keeps the bytes.
        room.owner = self._value  # type: ignore[attr-defined]
        return memoryview(room).cast("B")

    @property
    def value(self) -> bytes:
        return self._value if self._small is None else bytes(self._small)


def locate_one(core: Core, key: str, deadline: float) -> Operation[Lease | None]:
    """A lease on one object. What needs more than one answer is left to `locate`."""
    located, sent_at = yield from ask_timed(core, Locate([key]), Located, deadline)
    core.segments.seen = located.topology
    if len(located.rows) != _LOCATED.size:
        raise BadRequest(f"the master sent {len(located.rows)} bytes about one key, not {_LOCATED.size}")
    id_, segment, offset, size, checksum = _LOCATED.unpack(located.rows)
    if not id_:
        core.leases.drop(key)
        return None
    if located.others or segment not in core.bytes.settled:
        return (yield from _take_over(core, [key], located, sent_at, deadline)).get(key)
    until = lease_until(sent_at, located.lease_ttl_ms)
    lease = Lease(until, core.bytes.maps.get(segment), offset, offset + size, checksum, id_, segment, ())
    core.leases.keep_one(key, lease)
    return lease


def locate(core: Core, keys: Sequence[str], deadline: float) -> Operation[dict[str, Lease]]:
    """Leases on those of the keys that are stored; they are kept for later reads."""
    located, sent_at = yield from ask_timed(core, Locate(list(keys)), Located, deadline)
    core.segments.seen = located.topology
    if len(located.rows) != _LOCATED.size * len(keys):
        raise BadRequest(f"the master located {len(located.rows) // _LOCATED.size} keys where {len(keys)} were asked")
    return (yield from _take_over(core, keys, located, sent_at, deadline))


def _take_over(
    core: Core, keys: Sequence[str], located: Located, sent_at: float, deadline: float
) -> Operation[dict[str, Lease]]:
    rows = list(_LOCATED.iter_unpack(located.rows))
    handles = {row[1] for row in rows if row[0]}
    handles.update(segment for _, segment, _ in located.others)
    yield from ready_to_read(core, handles, deadline)
    others: dict[int, list[tuple[int, int]]] = {}
    for index, segment, offset in located.others:
        others.setdefault(index, []).append((segment, offset))
    until = lease_until(sent_at, located.lease_ttl_ms)
    found = _leases(core.bytes.maps, keys, rows, others, until)
    core.leases.keep(found)
    return found


def _leases(
    maps: dict[int, mmap.mmap],
    keys: Sequence[str],
    rows: Sequence[tuple[int, ...]],
    others: dict[int, list[tuple[int, int]]],
    until: float,
) -> dict[str, Lease]:
    found: dict[str, Lease] = {}
    new, mapped = tuple.__new__, maps.get
    for index, (key, (id_, segment, offset, size, checksum)) in enumerate(zip(keys, rows, strict=True)):
        if not id_:
            continue
        further: tuple[tuple[int, int], ...] = ()
        if index in others:
            # A replica on this machine comes first.
            places = sorted([(segment, offset), *others[index]], key=lambda place: place[0] not in maps)
            segment, offset = places[0]
            further = tuple(places[1:])
        found[key] = new(Lease, (until, mapped(segment), offset, offset + size, checksum, id_, segment, further))
    return found


def fetch(core: Core, key: str, target: Target, deadline: float, into_caller: bool = False) -> Operation[Lease | None]:
    """Read one object to where `target` says. None: it is not stored. The bytes are right on return (I2)."""
    pause = FIRST_PAUSE
    mismatched = False
    while True:
        core.check_open()
        lease = core.leases.live(key, core.clock())
        if lease is None:
            lease = yield from locate_one(core, key, deadline)
            if lease is None:
                return None
        history = core.limits.log_id
        room = target(lease.size_bytes)
        failure: HoldfastError | None = None
        try:
            yield from read_replicas(core, key, lease, room, deadline, into_caller)
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
            if core.clock() + pause >= deadline:
                raise failure
            yield Sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)


def read_replicas(
    core: Core, key: str, lease: Lease, room: memoryview, deadline: float, into_caller: bool
) -> Operation[None]:
    """Try each replica once, the ones that have just failed last."""
    tried: list[str] = []
    mismatch = False
    candidates = [((lease.segment, lease.start)), *lease.others]
    places = core.segments.places
    candidates.sort(key=lambda each: each[0] not in places or core.bytes.is_bad(places[each[0]]))
    wants_checksum = core.verify and lease.checksum != 0
    for segment, offset in candidates:
        place = core.segments.places.get(segment)
        if place is None:
            tried.append(f"segment {segment} is mounted no more")
            continue
        local = segment in core.bytes.maps
        run = _reader(core, segment, offset, room, wants_checksum, deadline)
        try:
            checksum = yield Work(run, bulk=not local or room.nbytes >= BULK_FROM, into_caller=into_caller)
        except (TryAgain, Uncertain, UnknownSegment) as error:
            tried.append(str(error))
            continue
        if not wants_checksum or checksum == lease.checksum:
            return
        mismatch = True
        tried.append(f"the bytes on {place.name} do not match their checksum")
    why = "; ".join(tried)
    if mismatch:
        raise ChecksumMismatch(f"the bytes of {key!r} are not the bytes that were put ({why})")
    # Perhaps the nodes have moved.
    yield from refresh(core, deadline)
    raise NodeLost(f"no node that holds {key!r} gives its bytes ({why}); it may come back, try again")


def _reader(
    core: Core, segment: int, offset: int, room: memoryview, checksum: bool, deadline: float
) -> Callable[[], int]:
    place = core.segments.places[segment]
    return lambda: core.bytes.read(place, offset, room, checksum, deadline)


def still_there(core: Core, leases: Sequence[Lease], history: int, deadline: float) -> Operation[list[bool]]:
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
    if core.leases.live(key, core.clock()) is None:
        if (yield from locate_one(core, key, deadline)) is None:
            return None
        data = core.read_leased(key)
        if data is not None:
            return data
    fresh = FreshBytes()
    lease = yield from fetch(core, key, fresh, deadline)
    return None if lease is None else fresh.value


def get_many(core: Core, keys: list[str], deadline: float) -> Operation[dict[str, bytes]]:
    result: dict[str, bytes] = {}
    for start in range(0, len(keys), KEYS_A_REQUEST):
        result.update((yield from _get_some(core, keys[start : start + KEYS_A_REQUEST], deadline)))
    return result


def _get_some(core: Core, keys: list[str], deadline: float) -> Operation[dict[str, bytes]]:
    now = core.clock()
    kept = core.leases.by_key
    leases: dict[str, Lease] = {}
    unknown: dict[str, None] = {}
    for key in keys:
        lease = kept.get(key)
        if lease is not None and now < lease[0]:
            leases[key] = lease
        else:
            unknown[key] = None
    if unknown:
        leases.update((yield from locate(core, list(unknown), deadline)))
    history = core.limits.log_id
    local = [item for item in leases.items() if item[1][1] is not None]
    size = sum([lease[3] - lease[2] for _, lease in local])
    result: dict[str, bytes]
    again: list[str]
    result, again = yield Work(lambda: _copy_mapped(local, core.verify), bulk=size >= BULK_FROM)
    if len(local) < len(leases):
        remote = [item for item in leases.items() if item[1][1] is None]
        again += yield from _fetch_remote(core, remote, result, deadline)
    now = core.clock()
    another = core.limits.log_id != history
    ended = [key for key in result if another or leases[key][0] <= now]
    if ended:
        there = yield from still_there(core, [leases[key] for key in ended], history, deadline)
        again += [key for key, is_there in zip(ended, there, strict=True) if not is_there]
    for key in again:
        result.pop(key, None)
        core.leases.drop(key)
        data = yield from get(core, key, deadline)
        if data is not None:
            result[key] = data
    if again or unknown:
        return {key: result[key] for key in keys if key in result}
    return result


def _copy_mapped(items: Iterable[tuple[str, Lease]], verify: bool) -> tuple[dict[str, bytes], list[str]]:
    """The bytes of objects on this machine, and the keys that need a closer look."""
    result: dict[str, bytes] = {}
    again: list[str] = []
    for key, lease in items:
        memory = lease[1]
        assert memory is not None
        try:
            data = memory[lease[2] : lease[3]]
        except ValueError:
            # Unmapped meanwhile, because the node is gone.
            again.append(key)
            continue
        if verify and lease[4] and (_digest(data) or 1) != lease[4]:
            again.append(key)
        else:
            result[key] = data
    return result, again


def _fetch_remote(
    core: Core, items: Sequence[tuple[str, Lease]], result: dict[str, bytes], deadline: float
) -> Operation[list[str]]:
    """One pipelined read a node; keys that it could not give are named in the answer."""
    by_node: dict[str, list[tuple[str, Lease]]] = {}
    again: list[str] = []
    for key, lease in items:
        place = core.segments.places.get(lease.segment)
        if place is None or core.bytes.is_bad(place):
            again.append(key)
        else:
            by_node.setdefault(place.data_address, []).append((key, lease))
    for some in by_node.values():
        try:
            again += yield Work(lambda some=some: _read_node(core, some, result, deadline))  # type: ignore[misc]
        except (TryAgain, Uncertain, UnknownSegment):
            # Each is tried on its own, at its other replicas as well.
            again += [key for key, _ in some]
    return again


def _read_node(core: Core, items: Sequence[tuple[str, Lease]], result: dict[str, bytes], deadline: float) -> list[str]:
    places = core.segments.places
    wanted = []
    values = []
    for _, lease in items:
        fresh = FreshBytes()
        wanted.append((places[lease.segment], lease.start, fresh(lease.size_bytes)))
        values.append(fresh)
    core.bytes.read_many(wanted[0][0], wanted, deadline)
    again = []
    for (key, lease), fresh in zip(items, values, strict=True):
        data = fresh.value
        if core.verify and lease.checksum and (_digest(data) or 1) != lease.checksum:
            again.append(key)
        else:
            result[key] = data
    return again

"""get_many_into: a batch of reads into the caller's own buffers; a key that fails does not affect the others.

Blocks are copied by slice assignments, which hold the GIL (ADR 35). Releasing it for each would gain nothing: a batch
of 8 MiB takes a tenth of the 5 ms that another thread may keep the GIL once it has it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import repeat

import xxhash

from holdfast.client.operations.batch_gets import Fetched, read_all
from holdfast.client.operations.gets import fetch
from holdfast.client.state.client import Core
from holdfast.client.state.leases import LeaseColumns, LeaseRow
from holdfast.client.state.own_removals import guarded_read
from holdfast.client.targets import CallersRoom, CallersTarget, Room, bytes_in, room_in, takes_whole
from holdfast.errors import HoldfastError, Unreachable
from holdfast.operations.effects import Operation
from holdfast.transport.shared_memory import copy_out_parts, digest_of_parts

BLOCK_BYTES = 1 << 20
"""Objects from this size on are copied one by one, with the GIL released."""

_digest = xxhash.xxh3_64_intdigest


def get_many_into(
    core: Core, keys: list[str], targets: list[CallersTarget], verify: bool | None, deadline: float
) -> Operation[list[int | HoldfastError]]:
    """For each key the number of bytes that were read, 0 if it is not stored, or its error."""
    read = _get_many_into(core, keys, targets, core.verify if verify is None else verify, deadline)
    return guarded_read(core.own_removals, keys, read, core.clock, deadline)


def _get_many_into(
    core: Core, keys: list[str], targets: list[CallersTarget], verify: bool, deadline: float
) -> Operation[list[int | HoldfastError]]:
    distinct = dict(zip(keys, targets, strict=True))
    if len(distinct) == len(keys):
        buffers = Buffers(distinct, verify)
        yield from read_all(core, keys, buffers, deadline)
        return buffers.outcomes(keys)
    result: list[int | HoldfastError] = [0] * len(keys)
    places: Sequence[int] = range(len(keys))
    while places:
        # A key that occurs again is read again, in a later round: its lease is held by then.
        first: dict[str, int] = {}
        doubled = [place for place in places if first.setdefault(keys[place], place) != place]
        buffers = Buffers({key: targets[place] for key, place in first.items()}, verify)
        yield from read_all(core, list(first), buffers, deadline)
        for place, outcome in zip(first.values(), buffers.outcomes(first), strict=True):
            result[place] = outcome
        places = doubled
    return result


class Buffers:
    """The caller's buffers for a batch of different keys."""

    __slots__ = ("_targets", "_verify", "done", "failed")
    into_caller = True

    def __init__(self, targets: dict[str, CallersTarget], verify: bool) -> None:
        self._targets = targets
        self._verify = verify
        self.done: dict[str, int] = {}
        self.failed: dict[str, HoldfastError] = {}

    def outcomes(self, keys: Iterable[str]) -> list[int | HoldfastError]:
        done: dict[str, int | HoldfastError] = {**self.failed, **self.done}
        return [*map(done.get, keys, repeat(0))]

    def copy_columns(self, core: Core, leases: LeaseColumns) -> list[str]:
        return self.copy_mapped(core, leases.rows)

    def copy_mapped(self, core: Core, leases: dict[str, LeaseRow]) -> list[str]:
        views = core.bytes.mapped_views()
        targets, done, doubts = self._targets, self.done, core.segments.doubts
        again: list[str] = []
        for key, row in leases.items():
            until, segment, start, stop, checksum, _, _, _, _ = row
            target = targets[key]
            size = stop - start
            if type(target) is not memoryview or not size <= target.nbytes or size >= BLOCK_BYTES:
                self._copy_large(core, key, row, again)
                continue
            room = target if target.nbytes == size else target[:size]
            try:
                room[:] = views[segment][start:stop]
            except (KeyError, ValueError):
                # Unmapped meanwhile, because a node has died.
                again.append(key)
                continue
            if checksum and (self._verify or doubts(segment, until)) and (_digest(room) or 1) != checksum:
                again.append(key)
            else:
                done[key] = size
        return again

    def _copy_large(self, core: Core, key: str, row: LeaseRow, again: list[str]) -> None:
        """Copy one object that is large or goes to several buffers."""
        until, segment, start, stop, checksum, _, _, _, _ = row
        room = self._room(key, stop - start)
        if room is None:
            return
        whole = takes_whole(self._targets[key])
        unverified = core.segments.doubts(segment, until)
        mapping = core.bytes.mapping(segment)
        if mapping is None or (unverified and not whole):
            again.append(key)
            return
        checked = checksum != 0 and whole and (self._verify or unverified)
        try:
            found = copy_out_parts(mapping, start, room, checked)
        except Unreachable:
            # Unmapped meanwhile.
            again.append(key)
            return
        if checked and found != checksum:
            again.append(key)
        else:
            self.done[key] = bytes_in(room)

    def _room(self, key: str, size_bytes: int) -> Room | None:
        """The caller's memory for this object. None: it is too short, and the error is noted."""
        try:
            return room_in(self._targets[key], key, size_bytes)
        except HoldfastError as error:
            self.failed[key] = error
            return None

    def read_node(self, core: Core, some: Sequence[Fetched], deadline: float) -> list[str]:
        again: list[str] = []
        rooms: list[tuple[Fetched, Room]] = []
        for each in some:
            room = self._room(each.key, each.lease.size_bytes)
            if room is None:
                continue
            if not takes_whole(self._targets[each.key]) and self._is_doubtful(core, each):
                again.append(each.key)
            else:
                rooms.append((each, room))
        wanted = [
            (each.there._replace(offset=each.offset + start), view) for each, room in rooms for start, view in room
        ]
        if wanted:
            core.bytes.read_many(some[0].place, wanted, deadline, some[0].hurried)
        for each, room in rooms:
            checksum = each.lease.checksum if takes_whole(self._targets[each.key]) else 0
            verify = self._verify or core.segments.doubts(each.place.handle, each.lease.until)
            if checksum and verify and digest_of_parts(room) != checksum:
                again.append(each.key)
            else:
                self.done[each.key] = bytes_in(room)
        return again

    def _is_doubtful(self, core: Core, each: Fetched) -> bool:
        """Must its parts be taken from the whole object, so that its checksum can be compared?"""
        doubted = core.segments.doubts(each.place.handle, each.lease.until)
        return doubted or (self._verify and bool(each.place.kind))

    def read_one(self, core: Core, key: str, deadline: float, patient: bool) -> Operation[None]:
        self.done.pop(key, None)
        room = CallersRoom(key, self._targets[key])
        lease = yield from fetch(core, key, room, deadline, True, self._verify, patient)
        if lease is not None:
            self.done[key] = room.taken(lease.size_bytes)

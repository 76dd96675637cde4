"""A batch of reads, in as few interpreter steps as possible.

The leases of a batch come as columns and stay so if nothing is particular about any (`take_over_columns`); otherwise
they become plain tuples. tests/client/test_fast_paths.py holds both equal. A sink takes the bytes: `Copies` makes new
ones for get_many, `Buffers` (buffer_gets) fills the caller's for get_many_into. Keys that the batch cannot read (a
checksum that differs, a dead node, an expired lease) are read one by one, as by `get`: once, and those that fail again
are retried after all others have been read, until the deadline. A key that fails does not affect the others.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import NamedTuple, Protocol

import xxhash

from holdfast.client.bytes.mapped_copies import copies_of
from holdfast.client.bytes.nodes import WantedBytes
from holdfast.client.operations.gets import FreshBytes, fetch, still_there
from holdfast.client.operations.places import Asked, take_over, take_over_columns
from holdfast.client.state.client import Core, ask_timed
from holdfast.client.state.leases import LeaseColumns, LeaseRow, ReadLease
from holdfast.client.state.own_removals import guarded_read
from holdfast.errors import (
    ChecksumMismatch,
    ClientClosed,
    HoldfastError,
    NodeLost,
    ReplyLost,
    TryAgain,
    Uncertain,
    UnknownSegment,
    Unreachable,
)
from holdfast.messages.requests import Locate, Located
from holdfast.messages.shapes import SegmentPlace
from holdfast.operations.effects import BULK_FROM, Ahead, Begun, Operation, Reply, Work

ROUNDS = 3
"""How many replicas a batch tries before its keys are read one by one."""

MOST_PORTION = 512
"""Keys per portion. Replies to two portions fit into the buffers of a connection that nobody reads at the moment.
Smaller batches are not divided: two halves of 512 keys took 1.14 to 1.36 times as long as one request, which wakes both
sides once and costs the master half of the array operations."""

_OF_NODES = (NodeLost, ChecksumMismatch)
_digest = xxhash.xxh3_64_intdigest
_until = itemgetter(0)
_segment = itemgetter(1)
_start = itemgetter(2)
_stop = itemgetter(3)
_checksum = itemgetter(4)


@dataclass(slots=True)
class Portion:
    """Some keys of a batch, and the leases known for them."""

    keys: list[str]
    asked: Asked
    leases: dict[str, LeaseRow]
    unknown: list[str]
    begun: Begun | None = None
    """The request to the master for the unknown ones, if it is under way."""


class Sink(Protocol):
    """The destination of a batch's bytes."""

    into_caller: bool

    failed: dict[str, HoldfastError]
    """Keys whose bytes could not be read, and why."""

    @property
    def done(self) -> Collection[str]:
        """Keys whose bytes have been taken."""

    def copy_mapped(self, core: Core, leases: dict[str, LeaseRow]) -> list[str]:
        """Take the objects that lie in mapped memory. Returns the keys that must be read one by one."""

    def copy_columns(self, core: Core, leases: LeaseColumns) -> list[str]:
        """As `copy_mapped`, for leases that are columns."""

    def read_node(self, core: Core, some: Sequence[Fetched], deadline: float) -> list[str]:
        """Take objects of one node over TCP. Returns the keys that must be read one by one."""

    def read_one(self, core: Core, key: str, deadline: float, patient: bool) -> Operation[None]:
        """Read this one, as `fetch` does. Bytes that were taken of it before are void."""


def get_many(
    core: Core, keys: list[str], errors: dict[str, HoldfastError] | None, deadline: float
) -> Operation[dict[str, bytes]]:
    """The objects by key; keys that are not stored are left out. So are those that no node gives, whose errors are put
    into `errors`."""
    return guarded_read(core.own_removals, keys, _get_many(core, keys, errors, deadline), core.clock, deadline)


def _get_many(
    core: Core, keys: list[str], errors: dict[str, HoldfastError] | None, deadline: float
) -> Operation[dict[str, bytes]]:
    copies = Copies()
    in_order = yield from read_all(core, keys, copies, deadline)
    if copies.failed:
        if not any(isinstance(error, _OF_NODES) for error in copies.failed.values()):
            # No master could be asked. Otherwise one slow node has used up the time of the other keys.
            raise next(iter(copies.failed.values()))
        if errors is not None:
            errors.update(copies.failed)
    result = copies.done
    return result if in_order else {key: result[key] for key in keys if key in result}


def read_all(core: Core, keys: list[str], sink: Sink, deadline: float) -> Operation[bool]:
    """Read these in portions: while one is copied, the master looks up the next. No key may occur twice, unless the
    sink is a dict by key. True: the sink took them in the order of the keys."""
    if len(keys) <= MOST_PORTION:
        in_order = not keys or (yield from _read_portion(core, (yield from _ask_for(core, keys)), sink, deadline))
    else:
        in_order = yield from _read_portions(core, keys, sink, deadline)
    if sink.failed:
        again = [key for key, error in sink.failed.items() if isinstance(error, TryAgain)]
        yield from _look_closer(core, again, sink, deadline, patient=True)
    return in_order


def _read_portions(core: Core, keys: list[str], sink: Sink, deadline: float) -> Operation[bool]:
    in_order = True
    size = min(MOST_PORTION, -(-len(keys) // 2))
    coming: Portion | None = None
    try:
        for start in range(0, len(keys) + size, size):
            portion, coming = coming, None
            if start < len(keys):
                coming = yield from _ask_for(core, keys[start : start + size], ahead=True)
            if portion is not None:
                in_order = (yield from _read_portion(core, portion, sink, deadline)) and in_order
    finally:
        if coming is not None and coming.begun is not None:
            coming.begun.drop()
    return in_order


def _read_portion(core: Core, portion: Portion, sink: Sink, deadline: float) -> Operation[bool]:
    """Read one portion. True: the sink took it in the order of the keys."""
    found, asked = yield from _leases_on(core, portion, deadline)
    remote = False
    again: list[str]
    if type(found) is LeaseColumns:
        columns, ends = found, found.until
        again = yield Work(lambda: sink.copy_columns(core, columns), sum(columns.sizes) >= BULK_FROM, sink.into_caller)
    else:
        leases = found
        maps = core.bytes.maps
        remote = not maps.keys() >= {*map(_segment, leases.values())}
        local = {key: row for key, row in leases.items() if row[1] in maps} if remote else leases
        size = sum(map(_stop, local.values())) - sum(map(_start, local.values()))
        again = yield Work(lambda: sink.copy_mapped(core, local), size >= BULK_FROM, sink.into_caller)
        if remote:
            others = [(key, ReadLease._make(row)) for key, row in leases.items() if key not in local]
            again += yield from _fetch_remote(core, others, leases, sink, deadline)
        ends = min(map(_until, leases.values()), default=math.inf)
    now = core.clock()
    another = core.limits.log_id != portion.asked.history
    if another or ends <= now:
        rows = found.rows if type(found) is LeaseColumns else found
        done = sink.done
        ended = [key for key, row in rows.items() if (another or row[0] <= now) and key in done]
        seen = [ReadLease._make(rows[key]) for key in ended]
        there = (yield from still_there(core, seen, deadline)) if seen else []
        again += [key for key, is_there in zip(ended, there, strict=True) if not is_there]
    if again:
        core.leases.drop_many(again)
        yield from _look_closer(core, again, sink, deadline, patient=False)
    return not (again or remote or asked)


def _look_closer(core: Core, keys: list[str], sink: Sink, deadline: float, patient: bool) -> Operation[None]:
    """Read these one by one. Unless `patient`, none waits for a dead node."""
    for key in keys:
        try:
            yield from sink.read_one(core, key, deadline, patient)
        except ClientClosed:
            raise
        except HoldfastError as error:
            # The first error says more than that time is up now.
            sink.failed.setdefault(key, error)
        else:
            sink.failed.pop(key, None)


def _ask_for(core: Core, keys: list[str], ahead: bool = False) -> Operation[Portion]:
    """The known leases on these keys and, with `ahead`, the request for the others already sent."""
    history = core.limits.log_id
    leases: dict[str, LeaseRow] = {}
    unknown = keys
    if any(map(core.leases.by_key.get, keys)):
        now = core.clock()
        kept = core.leases.rows(keys)
        leases = {key: row for key, row in zip(keys, kept, strict=True) if row is not None and now < row[0]}
        unknown = [*dict.fromkeys(key for key in keys if key not in leases)]
    portion = Portion(keys, Asked(core.clock(), history, core.bytes.wants_tickets), leases, unknown)
    if ahead and unknown:
        # If it cannot be sent now, it is sent when the portion's turn comes.
        with contextlib.suppress(Unreachable):
            portion.begun = yield Ahead(Locate(portion.unknown, portion.asked.tickets))
    return portion


def _leases_on(
    core: Core, portion: Portion, deadline: float
) -> Operation[tuple[LeaseColumns | dict[str, LeaseRow], bool]]:
    """Leases on those that are stored, and whether they are in another order than the keys."""
    leases, unknown = portion.leases, portion.unknown
    if not unknown:
        return leases, False
    located: Located | None = None
    asked = portion.asked
    if portion.begun is not None:
        begun, portion.begun = portion.begun, None
        with contextlib.suppress(Unreachable, ReplyLost):
            reply = yield Reply(begun)
            if type(reply) is Located and core.limits.log_id == asked.history:
                located = reply
    if located is None:
        history, tickets = core.limits.log_id, core.bytes.wants_tickets
        located, sent_at = yield from ask_timed(core, Locate(unknown, tickets), Located, deadline)
        asked = Asked(sent_at, history, tickets)
    if leases:
        return {**leases, **(yield from take_over(core, unknown, located, asked, deadline))}, True
    return (yield from take_over_columns(core, unknown, located, asked, deadline)), False


class Copies:
    """New bytes for each key. The copies, the checksums and the result are each made in one pass in C."""

    __slots__ = ("done", "failed")
    into_caller = False

    def __init__(self) -> None:
        self.done: dict[str, bytes] = {}
        self.failed: dict[str, HoldfastError] = {}

    def copy_mapped(self, core: Core, leases: dict[str, LeaseRow]) -> list[str]:
        rows = leases.values()
        maps = core.bytes.maps
        try:
            copies = [maps[segment][start:stop] for _, segment, start, stop, _, _, _, _, _ in rows]
        except (KeyError, ValueError):
            # Unmapped meanwhile, because a node has died.
            return list(leases)
        return self._take(core, leases, copies, map(_segment, rows), [*map(_checksum, rows)])

    def copy_columns(self, core: Core, leases: LeaseColumns) -> list[str]:
        try:
            copies = copies_of(core.bytes.maps, leases.segments, leases.starts, leases.sizes)
        except (KeyError, ValueError):
            # Unmapped meanwhile, because a node has died.
            return list(leases.keys)
        return self._take(core, leases.keys, copies, leases.segments, [*leases.checksums])

    def _take(
        self, core: Core, keys: Collection[str], copies: list[bytes], segments: Iterable[int], checksums: list[int]
    ) -> list[str]:
        """Verify the copies, and take those that are right. Returns the keys of the others."""
        unverified = core.segments.unverified
        doubtful = bool(unverified) and not unverified.isdisjoint(segments)
        verify = core.verify or doubtful or core.clock() < core.segments.trusted_after
        if not verify or [*map(_digest, copies)] == checksums:
            self.done.update(zip(keys, copies, strict=True))
            return []
        again: list[str] = []
        for key, data, checksum in zip(keys, copies, checksums, strict=True):
            if checksum and (_digest(data) or 1) != checksum:
                again.append(key)
            else:
                self.done[key] = data
        return again

    def read_node(self, core: Core, some: Sequence[Fetched], deadline: float) -> list[str]:
        wanted = []
        values = []
        for each in some:
            fresh = FreshBytes()
            [(_, room)] = fresh(each.lease.size_bytes)
            wanted.append((each.there, room))
            values.append(fresh)
        core.bytes.read_many(some[0].place, wanted, deadline, some[0].hurried)
        again = []
        for each, fresh in zip(some, values, strict=True):
            data = fresh.value
            checked = each.lease.checksum != 0 and core.verifies(each.place.handle, each.lease.until)
            if checked and (_digest(data) or 1) != each.lease.checksum:
                again.append(each.key)
            else:
                self.done[each.key] = data
        return again

    def read_one(self, core: Core, key: str, deadline: float, patient: bool) -> Operation[None]:
        self.done.pop(key, None)
        fresh = FreshBytes()
        if (yield from fetch(core, key, fresh, deadline, patient=patient)) is not None:
            self.done[key] = fresh.value


class Fetched(NamedTuple):
    """An object of a batch, and the replica that it is read from now."""

    key: str
    lease: ReadLease
    place: SegmentPlace
    offset: int
    hurried: bool
    """There is another replica to turn to."""

    @property
    def there(self) -> WantedBytes:
        return WantedBytes(self.place, self.offset, self.lease.ticket_for(self.place.handle))


def _fetch_remote(
    core: Core,
    items: Sequence[tuple[str, ReadLease]],
    leases: dict[str, LeaseRow],
    sink: Sink,
    deadline: float,
) -> Operation[list[str]]:
    """One pipelined read per node, then in the same way from other replicas for objects that a node could not give.
    Returns the keys that must be read one by one. Notes in `leases` where each object was read."""
    again: list[str] = []
    for _ in range(ROUNDS):
        by_node: dict[tuple[str, bool], list[Fetched]] = {}
        for key, lease in items:
            each = _best_replica(core, key, lease)
            if each is None:
                again.append(key)
            else:
                if (each.place.handle, each.offset) != (lease.segment, lease.start):
                    leases[key] = lease._replace(
                        segment=each.place.handle, start=each.offset, stop=each.offset + lease.size_bytes
                    )
                by_node.setdefault((each.place.data_address, each.hurried), []).append(each)
        items = []
        for some in by_node.values():
            try:
                again += yield Work(partial(sink.read_node, core, some, deadline), into_caller=sink.into_caller)
            except UnknownSegment:
                again += [each.key for each in some]
            except (TryAgain, Uncertain):
                core.mind_failing()
                # The node counts as bad now, so the next round asks others.
                items += [(each.key, each.lease) for each in some]
        if not items:
            break
    return again + [key for key, _ in items]


def _best_replica(core: Core, key: str, lease: ReadLease) -> Fetched | None:
    """The first whose node did not fail a moment ago; None if there is none."""
    found: tuple[SegmentPlace, int] | None = None
    for segment, offset in ((lease.segment, lease.start), *lease.others):
        place = core.segments.places.get(segment)
        if place is None or core.bytes.is_bad(place):
            continue
        if found is not None:
            return Fetched(key, lease, *found, hurried=True)
        found = (place, offset)
    return None if found is None else Fetched(key, lease, *found, hurried=False)

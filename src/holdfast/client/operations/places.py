"""Where things are: segments, which are mapped if they are on this machine, and objects, by leases on their places.

A located row is decoded here and nowhere else: one alone by `lease_in`, a batch as columns by `take_over`, or, if
nothing is particular about any of its objects, by `take_over_columns` in fewer steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import compress, repeat
from operator import add
from typing import NamedTuple

from holdfast.client.state.client import Core, ask, ask_timed
from holdfast.client.state.leases import NO_LEASE, LeaseColumns, LeaseRow, lease_until
from holdfast.errors import BadRequest
from holdfast.ids import SegmentHandle
from holdfast.messages.requests import ListSegments, Locate, Located, SegmentList
from holdfast.messages.rows import LocatedRow, TicketRow
from holdfast.messages.shapes import Ticket
from holdfast.operations.effects import Operation, Work

LOOK_AGAIN_SECONDS = 0.25
"""How often to ask for places while nodes are failing: a restarted node has other segments, or another address."""


def refresh(core: Core, deadline: float) -> Operation[None]:
    told = yield from ask(core, ListSegments(), SegmentList, deadline)
    before = core.segments.names_by_address()
    gone = core.segments.update(told, core.clock())
    core.bytes.reconsider()
    if core.bytes.failing:
        now = core.segments.names_by_address()
        core.bytes.failing.keep_only({address for address, names in now.items() if names == before.get(address)})
    if gone:
        # This drops leases on other segments too: it is rare, and one request gets them back.
        core.leases.clear()
        busy = core.grants.busy_segments()
        yield Work(lambda: core.bytes.forget(gone, told.segments, busy))


def look_for_failing(core: Core, deadline: float) -> Operation[None]:
    """While nodes are failing, ask the master whether they were restarted or have moved: every LOOK_AGAIN_SECONDS, and
    whenever its replies show that something has changed. A disk keeps its handle when its node gets a new address."""
    if not core.bytes.failing:
        return
    if core.segments.stale or core.clock() >= core.segments.told_at + LOOK_AGAIN_SECONDS:
        yield from refresh(core, deadline)


def ready_to_read(core: Core, handles: Iterable[int], deadline: float) -> Operation[None]:
    """Learn each of these segments that exists, and map it if it is local."""
    wanted = set(handles) - core.bytes.decided
    if not wanted:
        return
    if not wanted <= core.segments.places.keys() or core.attach_tickets_are_old():
        yield from refresh(core, deadline)
    places = [core.segments.places[handle] for handle in wanted if handle in core.segments.places]
    if places:
        yield Work(lambda: core.bytes.attach_reading(places, deadline))


def ready_to_write(core: Core, deadline: float) -> Operation[None]:
    """Map all local segments for writing, so that the master can grant memory in them."""
    if core.segments.stale:
        yield from refresh(core, deadline)
    places = core.bytes.unattached(core.segments.places.values())
    if places and core.attach_tickets_are_old():
        yield from refresh(core, deadline)
        places = core.bytes.unattached(core.segments.places.values())
    if places:
        yield Work(lambda: core.bytes.attach_writing(places, deadline))


class Asked(NamedTuple):
    """When a request for places was sent, and under which history. Its leases count from there."""

    at: float
    history: int
    tickets: bool
    """Tickets were asked for, too."""


def locate_one(core: Core, key: str, deadline: float) -> Operation[LeaseRow | None]:
    """A lease on one object, kept for later reads; or its place alone, with NO_LEASE. None: it is not stored."""
    history = core.limits.log_id
    tickets = core.bytes.wants_tickets
    located, sent_at = yield from ask_timed(core, Locate([key], tickets), Located, deadline)
    core.segments.seen = located.topology
    lease = lease_in(located, sent_at, history)
    if lease is None:
        core.leases.drop(key)
        return None
    if located.others or lease[1] not in core.bytes.decided:
        return (yield from take_over(core, [key], located, Asked(sent_at, history, tickets), deadline)).get(key)
    if lease[0] != NO_LEASE:
        core.keep_lease(key, lease)
    return lease


def lease_in(located: Located, sent_at: float, history: int) -> LeaseRow | None:
    """The lease in a reply about one key, in its first place. None: it is not stored."""
    if len(located.rows) != LocatedRow.size_bytes:
        raise BadRequest(f"the master sent {len(located.rows)} bytes about one key, not {LocatedRow.size_bytes}")
    id_, segment, offset, size, checksum = LocatedRow.unpack_one(located.rows)
    if not id_:
        return None
    until, tickets = lease_until(sent_at, located.lease_ttl_ms), tuple(located.tickets)
    return (until, segment, offset, offset + size, checksum, id_, (), history, tickets)


def locate(core: Core, keys: Sequence[str], deadline: float) -> Operation[dict[str, LeaseRow]]:
    """Leases on those of the keys that are stored; they are kept for later reads."""
    history = core.limits.log_id
    tickets = core.bytes.wants_tickets
    located, sent_at = yield from ask_timed(core, Locate(list(keys), tickets), Located, deadline)
    return (yield from take_over(core, keys, located, Asked(sent_at, history, tickets), deadline))


def take_over_columns(
    core: Core, keys: Sequence[str], located: Located, asked: Asked, deadline: float
) -> Operation[LeaseColumns | dict[str, LeaseRow]]:
    """As `take_over`, which does it if not all objects are leased, in mapped memory and without further replicas."""
    plain = located.lease_ttl_ms and not located.others and not located.tickets
    if not plain or len(located.rows) != LocatedRow.size_bytes * len(keys):
        return (yield from take_over(core, keys, located, asked, deadline))
    columns: list[Sequence[int]] = [*LocatedRow.columns(located.rows)]
    asked_for, there = keys, columns[0]
    if 0 in there:
        keys, columns = [*compress(keys, there)], [[*compress(column, there)] for column in columns]
    if not core.bytes.maps.keys() >= {*columns[1]}:
        return (yield from take_over(core, asked_for, located, asked, deadline))
    core.segments.seen = located.topology
    found = LeaseColumns(keys, lease_until(asked.at, located.lease_ttl_ms), columns, asked.history)
    core.keep_columns(found)
    return found


def take_over(
    core: Core, keys: Sequence[str], located: Located, asked: Asked, deadline: float
) -> Operation[dict[str, LeaseRow]]:
    """The leases in this reply, which are kept for later reads, and places without one. Segments that they name are
    mapped first."""
    core.segments.seen = located.topology
    if len(located.rows) != LocatedRow.size_bytes * len(keys):
        raise BadRequest(f"the master located {LocatedRow.count(located.rows)} keys where {len(keys)} were asked")
    ids, segments, offsets, sizes, checksums = LocatedRow.columns(located.rows)
    handles = set(compress(segments, ids))
    handles.update(segment for _, segment, _ in located.others)
    yield from ready_to_read(core, handles, deadline)
    if not asked.tickets and core.bytes.wants_tickets and not core.bytes.maps.keys() >= handles:
        # Only now is it known that some of these are read over TCP, for the first time in this client's life.
        return (yield from locate(core, keys, deadline))
    untils = _untils(located, len(keys), asked)
    stops = map(add, offsets, sizes)
    # One pass in C over the columns: it makes one tuple per key and nothing else.
    tickets = _tickets(located)
    shown = map(tickets.get, zip(segments, offsets, sizes, strict=True), repeat(())) if tickets else repeat(())
    rows = zip(untils, segments, offsets, stops, checksums, ids, repeat(()), repeat(asked.history), shown)
    found: dict[str, LeaseRow] = dict(zip(keys, rows, strict=False))
    maps = core.bytes.maps
    for index, places in _places(located, segments, offsets).items():
        # A replica on this machine comes first.
        (segment, start), *further = sorted(places, key=lambda place: place[0] not in maps)
        stop = start + sizes[index]
        of_each = tuple(ticket for at, where in places for ticket in tickets.get((at, where, sizes[index]), ()))
        until = found[keys[index]][0]
        row = (until, segment, start, stop, checksums[index], ids[index], tuple(further), asked.history, of_each)
        found[keys[index]] = row
    if 0 in ids:
        found = dict(compress(zip(keys, map(found.__getitem__, keys), strict=True), ids))
    if located.lease_ttl_ms:
        core.keep_leases(found, asked.history)
    else:
        core.keep_leases({key: row for key, row in found.items() if row[0] != NO_LEASE}, asked.history)
    return found


def _tickets(located: Located) -> dict[tuple[int, int, int], tuple[Ticket]]:
    """The ticket of each place: (segment, offset, size)."""
    found: dict[tuple[int, int, int], tuple[Ticket]] = {}
    for ticket in located.tickets:
        offsets, sizes = TicketRow.columns(ticket.ranges)
        found.update(zip(zip(repeat(ticket.segment), offsets, sizes), repeat((ticket,))))
    return found


def _untils(located: Located, count: int, asked: Asked) -> Iterable[float]:
    """The end of each lease in this reply."""
    if located.lease_ttl_ms or not located.leased:
        return repeat(lease_until(asked.at, located.lease_ttl_ms))
    if len(located.leased) != count:
        raise BadRequest(f"the master told of {len(located.leased)} leases where {count} keys were asked")
    until = lease_until(asked.at, located.leased_ms)
    return [until if is_leased else NO_LEASE for is_leased in located.leased]


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

"""Evacuation: replicas that must leave a node that is drained, or the part beyond the limit of a shrinking segment.

A replica is dropped once the object has enough others; under a live lease its range stays in quarantine until the lease
ends, so that no reader notices (I2). The objects are listed once, worked off, then listed again until nothing is left:
an object that was being written when the drain began is found the second time.
"""

from __future__ import annotations

from holdfast.core.catalogue.catalogue import MEMORY, ReplicaAt
from holdfast.core.primary.primary import Primary
from holdfast.core.state.apply import Place
from holdfast.core.state.state import DRAINING, Segment, State
from holdfast.ids import ObjectId, extent_of
from holdfast.instant import Instant
from holdfast.messages.records import ReplicaDropped
from holdfast.messages.rows import PlaceRow
from holdfast.messages.shapes import Record

LIST_EVERY_MS = 1_000


def leaving_segments(state: State) -> list[Segment]:
    if not state.modes and not any(segment.limit_bytes for segment in state.segments.values()):
        return []
    return [segment for segment in state.segments.values() if _drained(state, segment) or segment.limit_bytes]


def _drained(state: State, segment: Segment) -> bool:
    return state.modes.get(segment.name.node) == DRAINING


def is_leaving(state: State, place: ReplicaAt, size: int) -> bool:
    segment = state.segments[place.segment]
    beyond = segment.limit_bytes and place.offset + extent_of(size) > segment.limit_bytes
    return bool(beyond) or _drained(state, segment)


def slots_leaving(state: State, segment: Segment) -> list[int]:
    """Slots of the objects that must leave this segment."""
    catalogue = state.catalogue
    found = catalogue.on_segment(segment.handle)
    if _drained(state, segment):
        return found
    return [
        slot
        for slot in found
        if any(
            place.segment == segment.handle and is_leaving(state, place, catalogue.size_at[slot])
            for place in catalogue.replicas(slot)
        )
    ]


def listed(primary: Primary, segment: Segment, now: Instant) -> list[ObjectId]:
    """The objects still to be moved off this segment, the next one last. The caller pops each one it handles."""
    book = primary.copies
    when, ids = book.leaving.get(segment.handle, (0, []))
    if not ids and now >= when:
        id_at = primary.state.catalogue.id_at
        ids = [id_at[slot] for slot in reversed(slots_leaving(primary.state, segment))]
        book.leaving[segment.handle] = (now + LIST_EVERY_MS, ids)
    return ids


def enough_elsewhere(primary: Primary, slot: int, place: ReplicaAt, open_nodes: int) -> bool:
    """Without this replica, does the object have as many as it wants, or as the open nodes allow?"""
    return _enough(primary, slot, primary.state.catalogue.replicas(slot), place, open_nodes)


def _enough(primary: Primary, slot: int, places: tuple[ReplicaAt, ...], place: ReplicaAt, open_nodes: int) -> bool:
    state = primary.state
    size = state.catalogue.size_at[slot]
    staying = [one for one in places if one.segment not in state.away and not is_leaving(state, one, size)]
    if place.kind != MEMORY:
        return bool(staying)
    in_memory = sum(one.kind == MEMORY for one in staying)
    return in_memory >= min(state.catalogue.wanted_of(slot), max(1, open_nodes))


def superfluous(primary: Primary, slot: int, added: ReplicaAt, open_nodes: int) -> list[ReplicaAt]:
    """Replicas that must leave, and may be dropped once the replica `added` exists."""
    state = primary.state
    size = state.catalogue.size_at[slot]
    before = state.catalogue.replicas(slot)
    after = (*before, added)
    leaving = [one for one in before if is_leaving(state, one, size)]
    return [one for one in leaving if _enough(primary, slot, after, one, open_nodes)]


def dropped(primary: Primary, replicas: list[tuple[ObjectId, ReplicaAt]], now: Instant) -> list[Record]:
    """Drop these replicas; readers of leased ones may go on until their leases end."""
    catalogue = primary.state.catalogue
    free: list[Place] = []
    leased_places: list[Place] = []
    for oid, place in replicas:
        leased = catalogue.lease_at[catalogue.by_id.slot_of(oid)] > now
        (leased_places if leased else free).append((oid, place.segment, place.offset))
    return [ReplicaDropped(PlaceRow.pack_rows(free), PlaceRow.pack_rows(leased_places))] if replicas else []


def tail_is_empty(state: State, segment: Segment) -> bool:
    """Is nothing left beyond the segment's limit: no object, no grant, no quarantine?"""
    limit, handle = segment.limit_bytes, segment.handle
    if slots_leaving(state, segment):
        return False
    waiting = [
        offset + length
        for quarantined in state.quarantine.values()
        if quarantined.segment == handle
        for offset, length in quarantined.pieces
    ]
    granted = [x.offset + g.length for g in state.grants.values() for x in g.ranges if x.segment == handle]
    return all(end <= limit for end in (*waiting, *granted))


def left_on(state: State, node: str) -> tuple[int, int]:
    """(objects, bytes) that have yet to leave this node, including ranges that wait for readers or writers to end."""
    objects = size = 0
    for segment in leaving_segments(state):
        if segment.name.node != node:
            continue
        slots = slots_leaving(state, segment)
        objects += len(slots)
        size += sum(extent_of(state.catalogue.size_at[slot]) for slot in slots)
        first = 0 if _drained(state, segment) else segment.limit_bytes
        for quarantined in state.quarantine.values():
            pieces = [length for offset, length in quarantined.pieces if offset + length > first]
            if quarantined.segment == segment.handle and pieces:
                objects += bool(quarantined.moved)
                size += sum(pieces)
        for grant in state.grants.values():
            for place in grant.ranges:
                if place.segment == segment.handle and place.offset + grant.length > first:
                    size += grant.left_bytes
    return objects, size

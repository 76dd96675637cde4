"""Room for a grant that finds no free piece of memory: windows are chosen, emptied and given to it.

If few enough objects must be evicted, the evictions and the grant are records of one decision, so that a put neither
waits for two writes of the log nor loses the emptied memory to others. Eviction by watermark (`upkeep`) is different:
it takes the oldest objects, wherever they lie.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import msgspec
import numpy as np

from holdfast.core.catalogue.catalogue import LIVE, MASKED, Slots
from holdfast.core.objects.eviction import LetGo, let_go, let_soft_pins_end, must_stay
from holdfast.core.objects.placement import Room, Wanted, in_order, rounded
from holdfast.core.objects.surplus import NOBODY, Surplus
from holdfast.core.objects.windows import Layout, Window, is_coming, layout_of
from holdfast.core.primary.claims import Claim
from holdfast.core.primary.object_counts import EvictionReason
from holdfast.core.primary.primary import NoWindow, Primary
from holdfast.core.rules import EVICT_STEP
from holdfast.core.state.applied import Freed
from holdfast.core.state.apply import ranges_of
from holdfast.core.state.state import Segment
from holdfast.ids import GrantId, SegmentHandle
from holdfast.instant import Instant
from holdfast.messages.shapes import Record

DEARER = 2
"""Take the longest window whose cost per byte is at most this many times that of the cheapest."""
EVICTED_SHARE = 8
"""For a shared grant, which may never be filled, at most 1/8 of the eviction margin is evicted at once."""
AHEAD_MARGINS = 1.5
"""While usage is above the watermark minus this many margins, a choice of windows also evicts for the next puts."""
OBJECTS_PER_MS = 16_384
"""A choice that found nothing is not repeated for one millisecond per this many objects: about a tenth of the time
that the choice takes."""
_NONE: Slots = np.zeros(0, np.intp)


class RoomSought(msgspec.Struct, frozen=True, gc=False):
    """One step towards the room of a grant."""

    room: Room | None = None
    records: Sequence[Record] = ()
    """The evictions of this step."""
    freed: bool = False
    """Objects were evicted without a record."""
    given_up: Freed = ()
    """The memory of its windows, which can no longer be emptied."""


_NO_ROOM = RoomSought()


def make_room(
    primary: Primary,
    grant: GrantId,
    wanted: Wanted,
    lengths: Sequence[int],
    now: Instant,
    last_resort: bool = True,
) -> RoomSought:
    """Empty one window on each of `replicas` nodes, of the first of these lengths that is not much dearer per byte than
    the others. Without a room in the result, either more steps are needed or there is no window; in the latter case
    nothing was evicted. As a last resort soft-pinned objects are evicted too, if the rules allow it."""
    claim = primary.claims.get(grant)
    if claim is not None:
        return _empty(primary, grant, claim, _NONE, now)
    if primary.unlent and lengths[-1] <= primary.coming_length:
        return _NO_ROOM  # A piece of that length is about to become free.
    here = frozenset(segment.handle for segment in primary.state.segments.values() if primary.available(segment, now))
    if _was_in_vain(primary, lengths[-1], wanted.replicas, here, grant.client, now):
        return _NO_ROOM
    let_soft_pins_end(primary.state, now)
    if _is_coming(primary, wanted, lengths[-1], now):
        primary.coming_length = max(primary.coming_length, lengths[-1])
        return _NO_ROOM
    soft_too = last_resort and primary.rules.evict_soft_pinned
    windows, further = _choose(primary, wanted, lengths, soft_too, grant.client, now)
    if not windows and last_resort:
        again_at = now + primary.state.catalogue.count // OBJECTS_PER_MS
        found = (primary.unlent_bytes, primary.tenant_of(grant.client))
        primary.in_vain = NoWindow(again_at, now, primary.state.index, lengths[-1], wanted.replicas, here, *found)
    if not windows:
        return _NO_ROOM
    return _empty(primary, grant, _claim(primary, grant, windows), further, now)


def lengths_to_try(primary: Primary, wanted: Wanted) -> list[int]:
    """Window lengths, longest first. The last is the shortest that will do: otherwise a put could wait although a
    window for it exists."""
    longest = wanted.length
    if not wanted.will_fill and wanted.least < longest:
        part = int(primary.rules.eviction_margin * primary.capacity_bytes) // EVICTED_SHARE
        longest = max(wanted.floor, min(longest, rounded(part)))
    lengths = [longest]
    while (shorter := rounded(lengths[-1] // 2)) >= wanted.floor:
        lengths.append(shorter)
    if lengths[-1] > wanted.floor:
        lengths.append(wanted.floor)
    return lengths


def _was_in_vain(
    primary: Primary, length: int, replicas: int, here: frozenset[SegmentHandle], client: int, now: Instant
) -> bool:
    """Has an earlier choice shown that the available segments have no such window?"""
    last = primary.in_vain
    if length < last.length or replicas < last.replicas or not here <= last.segments:
        return False
    if last.tenant != primary.tenant_of(client):
        return False
    if now < last.again_at:
        return True
    then, unlent = (last.looked_at, last.log_index), last.unlent_bytes
    return then == (now, primary.state.index) and unlent == primary.unlent_bytes


def _is_coming(primary: Primary, wanted: Wanted, length: int, now: Instant) -> bool:
    """Will enough nodes have a free piece of this length as soon as the records so far are durable?"""
    if not primary.unlent:
        return False
    segments = in_order(primary, wanted.prefer, now)
    return len({one.name.node for one in segments if is_coming(primary, one, length)}) >= wanted.replicas


def _choose(
    primary: Primary, wanted: Wanted, lengths: Sequence[int], soft_allowed: bool, client: int, now: Instant
) -> tuple[list[Window], Slots]:
    """The windows, and further objects to evict with them. Soft-pinned objects only if nothing else is found; so are
    objects below a guarantee, which only puts of the same tenant may evict."""
    for surplus, soft_too in product(_surpluses(primary, client), (False, True)[: 1 + soft_allowed]):
        spare = 0 if soft_too or wanted.replicas > 1 else _spare_bytes(primary)
        segments = in_order(primary, wanted.prefer, now)
        layouts: dict[SegmentHandle, Layout] = {}
        found = [
            chosen
            for length in lengths
            if (chosen := _windows(primary, segments, layouts, (length, spare), wanted, soft_too, surplus, now))[0]
        ]
        if found:
            price = [sum(window.cost for window in windows) / windows[0].length for windows, _ in found]
            cheapest = min(price)
            return next(one for one, its in zip(found, price, strict=True) if its <= DEARER * cheapest)
    return [], _NONE


def _windows(
    primary: Primary,
    segments: list[Segment],
    layouts: dict[SegmentHandle, Layout],
    sizes: tuple[int, int],
    wanted: Wanted,
    soft_too: bool,
    surplus: Surplus | None,
    now: Instant,
) -> tuple[list[Window], Slots]:
    """One window on each of the nodes wanted, or none at all; and the objects in further windows, up to the spare
    bytes. `sizes`: the length of a window, and the spare bytes."""
    windows: list[Window] = []
    budget = surplus.copy() if surplus is not None else None
    going, nodes = _NONE, set[str]()
    for segment in segments:
        if segment.name.node in nodes:
            continue
        if segment.handle not in layouts or len(going):
            layouts[segment.handle] = layout_of(primary, segment, now, soft_too, going, surplus)
        found = layouts[segment.handle].windows(*sizes, budget)
        if found:
            windows.append(found[0])
            nodes.add(segment.name.node)
            going = np.concatenate([going, found[0].slots])
            if len(windows) == wanted.replicas:
                return windows, np.concatenate([_NONE, *(one.slots for one in found[1:])])
    return [], _NONE


def _surpluses(primary: Primary, client: int) -> list[Surplus | None]:
    """Of the tenants, if there are any: first as they are, then with all that the client's own tenant has."""
    holdings = primary.state.catalogue.holdings
    if holdings is None:
        return [None]
    own = primary.tenant_of(client)
    guards_own = primary.state.tenants.of(own).guaranteed_bytes > 0
    return [Surplus(primary.state, holdings, tenant) for tenant in (NOBODY, own)[: 1 + guards_own]]


def _spare_bytes(primary: Primary) -> int:
    """Bytes that may be evicted beyond the need of this put, because a choice among very many objects takes time.
    0 if there are disks: the next victims may be saved on one by the time they are needed."""
    if primary.state.disks():
        return 0
    rules, capacity = primary.rules, primary.capacity_bytes
    kept = int((rules.high_watermark - AHEAD_MARGINS * rules.eviction_margin) * capacity)
    return max(0, capacity - primary.free_bytes - primary.unlent_bytes - kept)


def _claim(primary: Primary, grant: GrantId, windows: list[Window]) -> Claim:
    slots = np.unique(np.concatenate([window.slots for window in windows]))
    places = [(window.segment, window.offset) for window in windows]
    claim = Claim(places, windows[0].length, slots, primary.state.catalogue.ids[slots])
    for window in windows:
        allocator = primary.allocators[window.segment]
        for block, offset, length in window.holes:
            allocator.alloc_at(block, offset, length)
            claim.pieces.append((window.segment, offset, length))
    primary.claims[grant] = claim
    return claim


def _empty(primary: Primary, grant: GrantId, claim: Claim, further: Slots, now: Instant) -> RoomSought:
    """Empty the claim by one bounded step. The `further` objects are evicted in the last step."""
    state = primary.state
    there = state.catalogue.flags[claim.slots] & (LIVE | MASKED) == LIVE
    left = claim.slots[there & (state.catalogue.ids[claim.slots] == claim.ids)]
    step = left[:EVICT_STEP]
    inside, _ = claim.split(ranges_of(state, step)) if len(step) else ([], [])
    if not _still_good(primary, grant, claim, left, now) or (len(left) == len(step) and claim.missing_bytes(inside)):
        return RoomSought(given_up=primary.give_up(grant))
    records, freed = let_go(primary, step, now, EvictionReason.PUT) if len(step) else LetGo([])
    if len(step) < len(left):
        return RoomSought(None, records, freed)
    if len(further):
        also = let_go(primary, np.setdiff1d(further, step), now, EvictionReason.PUT)
        records, freed = records + also.records, freed or also.freed
        if primary.rules.logs_evictions:
            primary.coming_length = max(primary.coming_length, claim.length)
    return RoomSought(Room(claim.length, claim.places), records, freed)


def _still_good(primary: Primary, grant: GrantId, claim: Claim, left: Slots, now: Instant) -> bool:
    """May all remaining objects be evicted, and the windows be written to?"""
    catalogue, segments = primary.state.catalogue, primary.state.segments
    for handle, offset in claim.places:
        segment = segments.get(handle)
        if segment is None or not primary.available(segment, now) or offset + claim.length > segment.usable_bytes:
            return False
    if not any(surplus is None or surplus.allows(left) for surplus in _surpluses(primary, grant.client)):
        return False  # A tenant has less than when the windows were chosen.
    return not must_stay(catalogue, left, now, primary.rules.evict_soft_pinned).any()

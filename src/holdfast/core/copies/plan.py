"""Copies, planned and completed: recover lost replicas, move objects off draining nodes, bring objects back from disk.

Everything here follows from the state, so a new primary goes on where the old one was. A copy is a grant like any
writer's, durable before the node is told, and objects that are being copied are not evicted meanwhile. The bytes under
way to one node at once are bounded; the rest waits for the next plan.

A node reports what it has copied (`add_replicas`). A copy is valid if the object is still where it was copied from: ids
are never reused and ranges are freed by the log, so every byte read there was that object's (I2). The checksum must be
the one stored at commit. Replicas that had to leave their place are dropped in the same step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from itertools import islice

import numpy as np

from holdfast.core.catalogue.catalogue import DISK, MASKED, MEMORY, ON_DISK, ReplicaAt
from holdfast.core.copies.evacuation import (
    dropped,
    enough_elsewhere,
    is_leaving,
    leaving_segments,
    listed,
    superfluous,
    tail_is_empty,
)
from holdfast.core.objects.checks import checked_ids, checked_rows
from holdfast.core.objects.eviction import evicted
from holdfast.core.objects.placement import available_nodes, in_order
from holdfast.core.objects.puts import evicted_there
from holdfast.core.objects.quotas import leaves_room
from holdfast.core.primary.copy_book import Copy
from holdfast.core.primary.decision import NOTHING_PLANNED, Command, Decision, Planned, joined
from holdfast.core.primary.primary import Primary
from holdfast.core.rules import COPY_AGAIN_MS, COPY_BYTES, COPY_OBJECTS, VISIT_SLOTS
from holdfast.core.state.grants import Grant, IntervalSet
from holdfast.core.state.state import Segment
from holdfast.errors import GrantRefused
from holdfast.ids import COPIES, LARGE_ALIGN, LARGE_FROM, SMALL_ALIGN, GrantId, ObjectId, extent_of, object_id
from holdfast.instant import Instant
from holdfast.messages import commands as c
from holdfast.messages import of_nodes as n
from holdfast.messages import requests as q
from holdfast.messages.records import GrantEnded, RangesGranted, ReplicaAdded
from holdfast.messages.rows import AddedRow, CopiedRow, CopyRow, TicketRow
from holdfast.messages.shapes import Range, Record

PLAN_EVERY_MS = 200
HOPELESS_MS = 5_000
"""Pause before lost replicas are examined again if none of them could be recovered, unless a node comes or goes."""
Wanted = list[tuple[int, ReplicaAt]]
"""Slots, and the replica to copy each from."""


def plan(primary: Primary, now: Instant) -> Planned:
    book = primary.copies
    if now < book.plan_at:
        return NOTHING_PLANNED
    book.plan_at = now + PLAN_EVERY_MS
    return joined(_recover(primary, now), *_move_away(primary, now), _bring_back(primary, now))


def rate(primary: Primary) -> int:
    """Bytes per second that one node may copy; 0 for no limit."""
    return primary.rules.copy_bytes_per_second


def begin(
    primary: Primary, name: str, wanted: Wanted, target: Segment, now: Instant, ahead: bool = False
) -> tuple[Planned, int]:
    """Have the target's node copy these objects there; return the copy, and the number of objects with room."""
    catalogue = primary.state.catalogue
    # Large ones first, so that each is aligned.
    wanted = sorted(wanted, key=lambda each: catalogue.size_at[each[0]] < LARGE_FROM)
    while wanted:
        lengths = [extent_of(catalogue.size_at[slot]) for slot, _ in wanted]
        align = LARGE_ALIGN if catalogue.size_at[wanted[0][0]] >= LARGE_FROM else SMALL_ALIGN
        offset = primary.allocators[target.handle].alloc(sum(lengths), align)
        if offset is not None:
            return _begun(primary, name, wanted, lengths, target, offset, ahead, now), len(wanted)
        wanted = wanted[: len(wanted) // 2]
    return NOTHING_PLANNED, 0


def _begun(
    primary: Primary,
    name: str,
    wanted: Wanted,
    lengths: list[int],
    target: Segment,
    offset: int,
    ahead: bool,
    now: Instant,
) -> Planned:
    state, book = primary.state, primary.copies
    catalogue = state.catalogue
    grant = GrantId(COPIES, object_id(state.epoch, book.next_serial))
    book.next_serial += 1
    sources: dict[int, int] = {}
    wanted_of: dict[int, bytearray] = {}
    rows = b""
    at = 0
    for (slot, place), length in zip(wanted, lengths, strict=True):
        index = sources.setdefault(place.segment, len(sources))
        size, checksum = catalogue.size_at[slot], catalogue.checksum_at[slot]
        rows += CopyRow.pack(catalogue.id_at[slot], at, size, checksum, index, place.offset)
        wanted_of.setdefault(place.segment, bytearray()).extend(TicketRow.pack(place.offset, size))
        at += length
    body = c.CopyObjects(
        grant=grant,
        segment=target.name,
        offset=offset,
        length=at,
        rows=rows,
        sources=[_source(primary, one, target, bytes(wanted_of[one]), now) for one in sources],
        bytes_per_second=rate(primary),
        to_disk=target.kind == DISK,
        issued=primary.tickets.issued() + 1 if state.tenants.were_there else 0,  # As in `puts._clearance`.
    )
    ids = [catalogue.id_at[slot] for slot, _ in wanted]
    book.began(state, Copy(grant, target.name.node, target.handle, ids, at, target.kind == DISK, ahead))
    ranges = [Range(target.handle, offset)]
    record = RangesGranted(grant, at, ranges, *evicted_there(primary, ranges, at))
    return Planned([record], [Command(target.name.node, name, c.encode_body(body))])


def _source(primary: Primary, handle: int, target: Segment, ranges: bytes, now: Instant) -> c.Source:
    """A node needs tickets to read what is another's."""
    segment = primary.state.segments[handle]
    tickets = primary.tickets
    own = segment.name.node == target.name.node
    given = [] if own else tickets.to_read_ranges(COPIES, handle, ranges, tickets.generation(now))
    return c.Source(handle, segment.name, segment.data_address, given)


class Batches:
    """Copies gathered by target; a batch is started when it is large enough."""

    def __init__(self, primary: Primary, name: str, targets: list[Segment], now: Instant) -> None:
        self.full = False
        """Some target had no room for an object."""
        self._primary, self._name, self._now = primary, name, now
        self._left = {target.handle: _window_left(primary, target) for target in targets}
        self._targets = targets
        self._begun: list[Planned] = []
        self._gathered: dict[int, Wanted] = {}
        self._sizes: dict[int, int] = {}

    @property
    def targets(self) -> list[Segment]:
        """Targets to which more may be sent now."""
        return [target for target in self._targets if self._left[target.handle] > 0]

    def add(self, slot: int, source: ReplicaAt, target: Segment) -> None:
        handle = target.handle
        size = extent_of(self._primary.state.catalogue.size_at[slot])
        if self._sizes.get(handle, 0) + size > COPY_BYTES:
            self._begin(target)
        self._gathered.setdefault(handle, []).append((slot, source))
        self._sizes[handle] = self._sizes.get(handle, 0) + size
        self._left[handle] -= size
        if len(self._gathered[handle]) >= COPY_OBJECTS:
            self._begin(target)

    def finish(self) -> Planned:
        for target in self._targets:
            self._begin(target)
        return joined(*self._begun)

    def _begin(self, target: Segment) -> None:
        wanted = self._gathered.pop(target.handle, [])
        self._sizes.pop(target.handle, None)
        while wanted:
            copy, count = begin(self._primary, self._name, wanted, target, self._now)
            if not count:
                self.full = True
                self._left[target.handle] = 0
                return
            self._begun.append(copy)
            started = self._primary.copies.copying
            ids = self._primary.state.catalogue.id_at
            wanted = [each for each in wanted if ids[each[0]] not in started]


def _window_left(primary: Primary, target: Segment) -> int:
    return primary.rules.copy_window_bytes - primary.copies.bytes_towards(target.name.node, target.kind == DISK)


def source_of(primary: Primary, slot: int, now: Instant) -> ReplicaAt | None:
    segments = primary.state.segments
    places = primary.state.catalogue.replicas(slot)
    return next((place for place in places if primary.reachable(segments[place.segment], now)), None)


def nodes_of(primary: Primary, places: Iterable[ReplicaAt], kind: int) -> set[str]:
    segments = primary.state.segments
    return {segments[place.segment].name.node for place in places if place.kind == kind}


def _recover(primary: Primary, now: Instant) -> Planned:
    """Copy objects that have fewer memory replicas than their put asked for."""
    catalogue, book = primary.state.catalogue, primary.copies
    known = (now, primary.state.topology)
    if not catalogue.lacking or (known[0] < book.hopeless[0] and known[1] == book.hopeless[1]):
        return NOTHING_PLANNED
    batches = Batches(primary, c.RECOVER, in_order(primary, [], now), now)
    passed: list[int] = []
    for slot in islice(catalogue.lacking, VISIT_SLOTS):
        if not (targets := batches.targets):
            break
        hidden = catalogue.flags_at[slot] & MASKED
        source = source_of(primary, slot, now) if not hidden and book.may_try(catalogue.id_at[slot], now) else None
        taken = nodes_of(primary, catalogue.replicas(slot), MEMORY)
        target = next((target for target in targets if target.name.node not in taken), None)
        if source is not None and target is not None:
            batches.add(slot, source, target)
        else:
            passed.append(slot)
    for slot in passed:  # Moved to the end, so that the next look begins with others.
        catalogue.lacking[slot] = catalogue.lacking.pop(slot)
    copies = batches.finish()
    if not copies.records and not book.under_way:
        book.hopeless = (now + HOPELESS_MS, primary.state.topology)
    return copies


def _move_away(primary: Primary, now: Instant) -> list[Planned]:
    """Move objects off draining nodes, and off the part beyond the limit of shrinking segments."""
    return [_move_off(primary, segment, now) for segment in leaving_segments(primary.state)]


def _move_off(primary: Primary, segment: Segment, now: Instant) -> Planned:
    catalogue, book = primary.state.catalogue, primary.copies
    memory = in_order(primary, [], now)
    targets = [
        *memory,
        *(disk for disk in primary.state.disks() if disk != segment and takes_files(primary, disk, now)),
    ]
    batches = Batches(primary, c.MIGRATE, targets, now)
    open_nodes = len({one.name.node for one in memory})
    nowhere = visited = 0
    drops: list[tuple[ObjectId, ReplicaAt]] = []
    hidden: list[int] = []
    ids = listed(primary, segment, now)
    while ids and visited < VISIT_SLOTS:
        visited += 1
        slot = catalogue.by_id.slot_of(ids[-1])
        places = catalogue.replicas(slot) if slot >= 0 else ()
        place = next((one for one in places if one.segment == segment.handle), None)
        if place is None or not book.may_try(ids[-1], now):
            ids.pop()
            continue
        if catalogue.flags_at[slot] & MASKED:
            # An unlogged eviction: it is logged now, and need not be moved.
            hidden.append(slot)
            ids.pop()
            continue
        if enough_elsewhere(primary, slot, place, open_nodes):
            drops.append((ids.pop(), place))
            continue
        target = _target_of(primary, slot, place, batches.targets)
        if target is None and _target_of(primary, slot, place, targets) is not None:
            break  # It can be moved as soon as less is under way.
        source = source_of(primary, slot, now)
        ids.pop()
        if target is not None and source is not None:
            batches.add(slot, source, target)
        else:
            nowhere += 1
    done = segment.limit_bytes and not (ids or book.under_way)
    release = _release_of_tail(primary, segment) if done else NOTHING_PLANNED
    copies = batches.finish()
    _say_why(primary, segment.name.node, nowhere, batches.full)
    logged = [evicted(primary.state, np.array(hidden, np.intp))] if hidden else []
    return joined(release, copies, Planned([*logged, *dropped(primary, drops, now)]))


def _release_of_tail(primary: Primary, segment: Segment) -> Planned:
    """Once nothing is left beyond the limit, tell the node to give those pages back to the machine. Sent once."""
    told = (segment.handle, segment.limit_bytes)
    if told in primary.copies.released or not tail_is_empty(primary.state, segment):
        return NOTHING_PLANNED
    primary.copies.released[told] = None
    body = c.UpdateVolume(limits=[(segment.name.number, segment.limit_bytes)])
    return Planned(commands=[Command(segment.name.node, "volume_update", c.encode_body(body), confirm=True)])


def _say_why(primary: Primary, node: str, nowhere: int, full: bool) -> None:
    """Note what keeps the node from being emptied, until the next look finds nothing."""
    stuck = primary.copies.stuck
    if nowhere:
        stuck[node] = f"{nowhere:,} objects have nowhere to go: no other node takes them. Open or add one, or cancel"
    elif full:
        stuck[node] = "the other nodes have no room for what is left. Free memory, add a node, or cancel"
    elif primary.copies.under_way:
        stuck.pop(node, None)


def _target_of(primary: Primary, slot: int, place: ReplicaAt, targets: list[Segment]) -> Segment | None:
    others = [one for one in primary.state.catalogue.replicas(slot) if one != place]
    if place.kind == MEMORY:
        taken = nodes_of(primary, others, MEMORY)
        return next((one for one in targets if one.kind == MEMORY and one.name.node not in taken), None)
    # A file goes to another disk, or to memory if there is none.
    return next(iter(sorted(targets, key=lambda one: one.kind != DISK)), None)


def _bring_back(primary: Primary, now: Instant) -> Planned:
    """Bring back objects on disk that were read twice. One that finds no room, in memory or under its tenant's limit,
    must be read twice again."""
    book, catalogue = primary.copies, primary.state.catalogue
    if not book.wanted_back:
        return NOTHING_PLANNED
    found = [catalogue.by_id.slot_of(oid) for oid in book.wanted_back]
    book.wanted_back.clear()
    slots = [slot for slot in found if slot >= 0 and catalogue.flags_at[slot] & ON_DISK]
    batches = Batches(primary, c.BRING_BACK, in_order(primary, [], now), now)
    coming: Counter[int] = Counter()
    for slot in slots:
        source = source_of(primary, slot, now) if book.may_try(catalogue.id_at[slot], now) else None
        if source is None:
            continue
        own = primary.state.segments[source.segment].name.node
        target = next(iter(sorted(batches.targets, key=_is_not(own))), None)
        if target is not None and leaves_room(primary, slot, coming):
            batches.add(slot, source, target)
    return batches.finish()


def _is_not(node: str) -> Callable[[Segment], bool]:
    return lambda segment: segment.name.node != node


def takes_files(primary: Primary, disk: Segment, now: Instant) -> bool:
    if disk.closed or disk.name.node in primary.state.modes or disk.handle in primary.state.unsettled:
        return False
    return primary.reachable(disk, now)


def add_replicas(primary: Primary, request: n.AddReplicas, client: int, now: Instant) -> Decision:
    """Reply with the number of replicas added; the grant ends in any case."""
    copied = checked_rows(CopiedRow, request.rows, COPY_OBJECTS)
    failed = checked_ids(request.failed, COPY_OBJECTS)
    if request.grant.client != COPIES:
        raise GrantRefused("that grant is a client's, not one for copying; nothing was changed")
    grant = primary.state.grants.get(request.grant)
    if grant is None:  # It timed out, or this is a retry.
        return Decision(q.Done(0))
    target = primary.state.segments[grant.ranges[0].segment]
    if target.name.node != request.node:
        raise GrantRefused(f"that grant is not for the node {request.node!r}; nothing was changed")
    good: list[tuple[ObjectId, int]] = []
    drops: list[tuple[ObjectId, ReplicaAt]] = []
    open_nodes = available_nodes(primary, now)
    taken = IntervalSet()
    seen: set[ObjectId] = set()
    for oid, offset, source_segment, source_offset, checksum in copied:
        source = (source_segment, source_offset)
        slot = primary.state.catalogue.by_id.slot_of(oid)
        visible = slot >= 0 and not primary.state.catalogue.flags_at[slot] & MASKED
        right = visible and _is_right(primary, slot, grant, offset, source, checksum, target, taken)
        if not right or oid in seen:
            failed.append(oid)
            continue
        seen.add(oid)
        good.append((oid, offset))
        added = ReplicaAt(target.handle, grant.ranges[0].offset + offset, target.kind)
        drops += [(oid, place) for place in superfluous(primary, slot, added, open_nodes)]
    primary.copies.failed(failed, now + COPY_AGAIN_MS)
    records: list[Record] = []
    if good:
        records.append(ReplicaAdded(request.grant, AddedRow.pack_rows(good)))
    records.append(GrantEnded(request.grant, [target.handle]))
    return Decision(q.Done(len(good)), [*records, *dropped(primary, drops, now)])


def _is_right(
    primary: Primary,
    slot: int,
    grant: Grant,
    offset: int,
    source: tuple[int, int],
    checksum: int,
    target: Segment,
    taken: IntervalSet,
) -> bool:
    state = primary.state
    catalogue = state.catalogue
    size = catalogue.size_at[slot]
    places = catalogue.replicas(slot)
    end = offset + extent_of(size)
    aligned = not offset % (LARGE_ALIGN if size >= LARGE_FROM else SMALL_ALIGN)
    if not aligned or end > grant.length or taken.overlaps(offset, end):
        return False
    if source not in [(place.segment, place.offset) for place in places]:
        return False
    if catalogue.checksum_at[slot] not in (0, checksum):
        return False
    staying = [place for place in places if not is_leaving(state, place, size)]
    if target.name.node in nodes_of(primary, staying, target.kind):
        return False
    taken.add(offset, end)
    return True

"""Completion of copies: check a node's report that it has copied objects, and add the replicas.

A copy is valid if the object is still where it was copied from: ids are never reused and ranges are freed by the log,
so every byte read there was that object's (I2). The checksum must be the one stored at commit. Replicas that had to
leave their place are dropped in the same step.
"""

from __future__ import annotations

from holdfast.core.catalogue.catalogue import MASKED, ReplicaAt
from holdfast.core.copies.evacuation import dropped, is_leaving, superfluous
from holdfast.core.copies.plan import nodes_of
from holdfast.core.objects.checks import checked_ids, checked_rows
from holdfast.core.objects.placement import available_nodes
from holdfast.core.primary.decision import Decision
from holdfast.core.primary.primary import Primary
from holdfast.core.rules import COPY_AGAIN_MS
from holdfast.core.state.grants import Grant, IntervalSet
from holdfast.core.state.state import Segment
from holdfast.errors import GrantRefused
from holdfast.ids import COPIES, LARGE_ALIGN, LARGE_FROM, SMALL_ALIGN, ObjectId, extent_of
from holdfast.instant import Instant
from holdfast.messages import of_nodes as n
from holdfast.messages import requests as q
from holdfast.messages.records import GrantEnded, ReplicaAdded
from holdfast.messages.rows import AddedRow, CopiedRow
from holdfast.messages.shapes import Record


def add_replicas(primary: Primary, request: n.AddReplicas, client: int, now: Instant) -> Decision:
    """Reply with the number of replicas added; the grant ends in any case."""
    copied = checked_rows(CopiedRow, request.rows)
    failed = checked_ids(request.failed)
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

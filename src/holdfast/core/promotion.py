"""From a state to a primary that serves it: all or nothing (I15).

Nothing of a standby's life is in here but the state that the log gave it. Free space is rebuilt from the columns;
every lease becomes at least the guard, because the old primary may have promised that much in its last second
(I2, I8); no silent session or node counts as expired yet. Only what is certainly dead is cleaned up, nothing by lease.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from holdfast.core.primary.doubt import Doubt
from holdfast.core.primary.lessees import SEVERAL_LESSEES
from holdfast.core.primary.primary import Member, Primary
from holdfast.core.rules import Rules
from holdfast.core.space.allocator import Allocator
from holdfast.core.state.apply import ranges_of
from holdfast.core.state.packed_numbers import pack_sorted_ids
from holdfast.core.state.state import State
from holdfast.ids import MAX_BATCH, ProcessName, SegmentHandle
from holdfast.instant import Instant, lengthened
from holdfast.messages.records import ObjectsEvicted
from holdfast.messages.shapes import Record


def guard_ms(state: State, leader_ttl_ms: int, proven: bool) -> int:
    """The longest that a promise of an earlier primary may still live: a lease given in its last moment, plus, if its
    end is not proven, the time for which it may still have believed itself to lead."""
    return max(state.lease_ttl_ms, state.longest_lease_ms) + (0 if proven else leader_ttl_ms)


def promote(
    state: State,
    rules: Rules,
    leader_ttl_ms: int,
    proven: bool,
    now: Instant,
    suspects: Sequence[ProcessName] | None = None,
) -> Primary:
    """Raises ValueError, with nothing served, if the ranges of the state overlap (I9). With `suspects`, earlier
    primaries may still be answering: these, or if it is empty, some whose process nobody knows."""
    if suspects is not None:
        # An earlier primary may still show the objects that this master masked. If they were evicted, a put under such
        # a key would be acknowledged, and the old object read there after it (I7). Their memory stays taken for the
        # guard either way.
        state.mask.clear(state.catalogue)
    primary = Primary(state, rules)
    primary.adopt(state.changed)
    for handle, (offsets, lengths) in _occupied(state).items():
        segment = state.segments[handle]
        allocator = primary.allocators[handle] = Allocator.rebuild(segment.size_bytes, offsets, lengths)
        if segment.limit_bytes:
            allocator.cut_off(segment.limit_bytes)
    until = now + guard_ms(state, leader_ttl_ms, proven)
    guard_leases(state, until)
    primary.old_leases_end_at = until
    primary.trusted_at = until if state.continues else 0
    if suspects is not None:
        primary.doubt = Doubt(now + lengthened(leader_ttl_ms), list(suspects), guard_until=until)
    for grant in state.grants:
        primary.note_grant(grant, now)
    state.catalogue.find_lacking()
    _expect_back(primary, now if proven else now + lengthened(leader_ttl_ms))
    for disk in state.disks():
        if disk.name.node in primary.members and not disk.away:
            primary.members[disk.name.node].handles.append(disk.handle)
        primary.copies.audits[disk.handle] = None
    primary.note_quarantine(state.quarantine, until)
    return primary


def _expect_back(primary: Primary, base: Instant) -> None:
    """Sessions count as renewed at `base`, the last moment in which an earlier primary may have done so (I4)."""
    state, times = primary.state, primary.sessions.times
    lease_ms = max(state.session_lease_ms, times.lease_ms)
    jeopardy_ms = max(state.session_jeopardy_ms, times.jeopardy_ms)
    by_name = {}
    for session, name in state.sessions.items():
        restored = primary.sessions.restore(session, name, lease_ms, jeopardy_ms, base)
        restored.owner = state.session_owners.get(session, "")
        by_name[name] = restored.id
    given_up_at = base + lengthened(lease_ms + jeopardy_ms)
    for segment in state.memory_segments():
        node, boot = segment.name.node, segment.name.boot
        member = primary.members.setdefault(node, Member(node, boot, by_name.get(node, 0), given_up_at))
        member.handles.append(segment.handle)


def guard_leases(state: State, until: Instant) -> None:
    """Extend every lease to at least `until`; longer ones are kept. Only an earlier primary knew whose they are."""
    state.catalogue.lessees[: state.catalogue.top] = SEVERAL_LESSEES
    leases = state.catalogue.lease_until[: state.catalogue.top]
    np.maximum(leases, until, out=leases)


def evicted_alone(state: State) -> list[Record]:
    """The record of a standby's unlogged evictions. Their memory waits for the guard in quarantine: the old primary
    did not know of them, and may have leased these objects. None after a takeover by a guess: see `promote`."""
    slots = state.mask.slots()
    ids = state.catalogue.ids[slots]
    return [
        ObjectsEvicted(pack_sorted_ids(ids[at : at + MAX_BATCH]), leased=True) for at in range(0, len(ids), MAX_BATCH)
    ]


def _occupied(state: State) -> dict[SegmentHandle, tuple[np.ndarray, np.ndarray]]:
    """Per segment: the ranges of objects, grants and quarantine."""
    starts: dict[SegmentHandle, list[np.ndarray]] = {handle: [] for handle in state.segments}
    sizes: dict[SegmentHandle, list[np.ndarray]] = {handle: [] for handle in state.segments}

    def occupy(handle: SegmentHandle, offsets: object, lengths: object) -> None:
        starts[handle].append(np.asarray(offsets, np.int64))
        sizes[handle].append(np.asarray(lengths, np.int64))

    live = state.catalogue.live()
    for handle, offsets, lengths in ranges_of(state, live) if len(live) else []:
        occupy(handle, offsets, lengths)
    for grant in state.grants.values():
        gaps = grant.taken.gaps(grant.length)
        for place in grant.ranges if gaps else ():
            occupy(place.segment, [place.offset + start for start, _ in gaps], [end - start for start, end in gaps])
    for one in state.quarantine.values():
        occupy(one.segment, [offset for offset, _ in one.pieces], [length for _, length in one.pieces])
    empty = np.zeros(0, np.int64)
    return {
        handle: (np.concatenate([empty, *starts[handle]]), np.concatenate([empty, *sizes[handle]]))
        for handle in state.segments
    }

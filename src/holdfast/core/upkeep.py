"""Upkeep, decided at every tick: grants and quarantines that end, sessions that expire, nodes that are given up.

It is a list of duties, each about one thing, and decided and applied separately: a defect in one costs only that one,
which is retried at the next tick, and never the records of the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import msgspec
import numpy as np

from holdfast.core.copies.disks import commands_to_disks, disks_away_too_long, evict_from_disks, offload
from holdfast.core.copies.drains import drained, to_look_at
from holdfast.core.copies.offload_ahead import save_ahead
from holdfast.core.copies.plan import plan
from holdfast.core.live_settings import leases_shortened
from holdfast.core.nodes.membership import ask_to_clean, expire, given_up, unmount
from holdfast.core.nodes.restored_memory import settle
from holdfast.core.objects.eviction import let_go, over_brim, over_watermark, victims_saved_first, within
from holdfast.core.objects.quotas import evict_beyond_limits
from holdfast.core.primary.decision import Planned, joined
from holdfast.core.primary.object_counts import EvictionReason
from holdfast.core.primary.primary import Primary
from holdfast.core.state.packed_numbers import pack_sorted_ids, unpack_sorted_ids
from holdfast.core.state.state import State
from holdfast.core.state.unlogged import lying_in
from holdfast.ids import GrantId, ObjectId
from holdfast.instant import Instant
from holdfast.messages.records import GrantEnded, ObjectsEvicted, RangesFreed, RangesGranted
from holdfast.messages.shapes import Record


class Duty(NamedTuple):
    """One thing that is due: decide it, apply its records, then go on to the next."""

    kind: str
    """One of a short list of words, for counting."""
    subject: str
    decide: Callable[[], Planned]


def duties(primary: Primary, now: Instant) -> list[Duty]:
    """All that is due by now."""
    ended = [grant for grant, deadline in primary.grant_deadline.items() if deadline <= now]
    released = [entry for entry, when in primary.release_at.items() if when <= now]
    due = [_logged("grant", str(grant), partial(_end_grant, primary, grant)) for grant in ended]
    if released:
        due.append(_logged("quarantine", f"{len(released)} ranges", partial(_release, primary, released)))
    over = primary.sessions.overdue(now)
    due += [_logged("session", session.name, partial(expire, primary, session)) for session in over]
    due += [_logged("node", name, partial(unmount, primary, name)) for name in given_up(primary, now)]
    due += [_logged("drain", node, partial(drained, primary, node)) for node in to_look_at(primary, now)]
    due.append(_logged("disks", "disks that are away", partial(disks_away_too_long, primary, now)))
    due.append(_logged("leases", "the longest lease", partial(leases_shortened, primary, now)))
    if primary.state.unsettled:
        due.append(_logged("memory", "memory of an older history", partial(settle, primary, now)))
    untold = [member for member in primary.members.values() if member.clean_untold and primary.is_live(member, now)]
    return due + [Duty("cleaning", member.name, partial(ask_to_clean, primary, member)) for member in untold]


def _logged(kind: str, subject: str, decide: Callable[[], list[Record]]) -> Duty:
    """A duty of which only records follow."""
    return Duty(kind, subject, lambda: Planned(decide()))


def _end_grant(primary: Primary, grant: GrantId) -> list[Record]:
    """Time out the grant, never its quarantine: the writer may only be paused (I11)."""
    # The grant may have gone with a node that was given up before this.
    return [GrantEnded(grant, settled=[])] if grant in primary.state.grants else []


def _release(primary: Primary, entries: list[int]) -> list[Record]:
    still = [entry for entry in entries if primary.release_at.pop(entry, None) is not None]
    return [RangesFreed(still)] if still else []


def plan_copies(primary: Primary, now: Instant) -> Planned:
    """Plan copies. A step of its own, because it must see the changes that upkeep made."""
    files = commands_to_disks(primary, now)
    copies = joined(plan(primary, now), save_ahead(primary, now))
    return Planned(named_once(primary.state, copies.records), [*files, *copies.commands])


def evict(primary: Primary, now: Instant) -> tuple[bool, Planned]:
    """Evict one bounded step towards the watermark. True: it evicted something, and there may be more to evict."""
    beyond = evict_beyond_limits(primary, now)
    if beyond:
        return True, Planned(beyond)
    excess = over_watermark(primary)
    if excess <= 0:
        records = evict_from_disks(primary, now)
        return bool(records), Planned(records)
    copied, evictable, waiting = offload(primary, victims_saved_first(primary, excess, now), now)
    urgent = over_brim(primary)
    if urgent > 0 and len(waiting):
        evictable = np.concatenate([evictable, within(primary.state, waiting, urgent)])
    if not len(evictable):
        # Only if this step evicts nothing from memory: one object must not lose both of its places.
        return False, joined(copied, Planned(evict_from_disks(primary, now)))
    records, freed = let_go(primary, evictable, now, EvictionReason.WATERMARK)
    return True, joined(copied, Planned(records, freed=freed))


def named_once(state: State, records: Sequence[Record]) -> Sequence[Record]:
    """If several of these records name the same unlogged eviction, keep only the first mention.

    A plan makes many grants before any is applied, and a masked object with two replicas may lie in the ranges of two
    of them, or in the range of one and on a node that is being drained. By the second record it is gone already, and a
    record that names an object that is not in the catalogue cannot be applied (I5)."""
    if not state.mask:
        return records
    gone: set[ObjectId] = set()
    found: list[Record] = []
    for record in records:
        if isinstance(record, RangesGranted):
            left = _not_yet(record.evicted, gone)
            record = msgspec.structs.replace(record, evicted=pack_sorted_ids(left))
            gone.update(left, _swept(state, record))
        elif isinstance(record, ObjectsEvicted):
            left = _not_yet(record.ids, gone)
            if not left:
                continue
            record = msgspec.structs.replace(record, ids=pack_sorted_ids(left))
            gone.update(left)
        found.append(record)
    return found


def _not_yet(packed: bytes, gone: set[ObjectId]) -> list[ObjectId]:
    return [oid for oid in unpack_sorted_ids(packed).tolist() if oid not in gone]


def _swept(state: State, record: RangesGranted) -> list[ObjectId]:
    if not record.sweeps:
        return []
    catalogue = state.catalogue
    slots = [slot for one in record.ranges for slot in lying_in(catalogue, one.segment, one.offset, record.length)]
    return [catalogue.id_at[slot] for slot in slots]

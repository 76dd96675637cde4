"""Eviction by a standby on its own: it applies the primary's rule to its own view, and changes only its mask.

It knows only what the log and the renewals tell it, so it may choose other objects than the primary did; `grace_ms`
spares those whose lease or last known use ended only just now. None of these evictions changes the catalogue (I5), and
none reaches the log before a promotion.
"""

from __future__ import annotations

import numpy as np

from holdfast.core.catalogue.catalogue import LIVE, MASKED, MEMORY, ON_DISK, extents_of
from holdfast.core.objects.eviction import excess_bytes, kept_on_disk, victims
from holdfast.core.rules import Rules
from holdfast.core.state.state import State
from holdfast.instant import Instant


def used_bytes(state: State) -> int:
    """Bytes taken by unmasked objects, grants and quarantine."""
    catalogue = state.catalogue
    top = catalogue.top
    visible = (catalogue.flags[:top] & (LIVE | MASKED | ON_DISK)) == LIVE
    total = int(extents_of(catalogue.sizes[:top][visible]).sum())
    if catalogue.others:
        several = np.array([slot for slot in catalogue.others if visible[slot]], np.intp)
        others = [catalogue.others[int(slot)] for slot in several]
        copies = np.array([sum(place.kind == MEMORY for place in places) for places in others], np.int64)
        total += int((extents_of(catalogue.sizes[several]) * copies).sum())
    memory = {segment.handle for segment in state.memory_segments()}
    total += sum(grant.left_bytes for grant in state.grants.values() for x in grant.ranges if x.segment in memory)
    return total + sum(one.size_bytes for one in state.quarantine.values() if one.segment in memory)


def evict_alone(state: State, rules: Rules, now: Instant) -> int:
    """Evict one bounded step towards the watermark; return the number of objects evicted."""
    if rules.standby_eviction != "independent":
        return 0
    capacity = sum(segment.usable_bytes for segment in state.memory_segments())
    excess = excess_bytes(rules, capacity, used_bytes(state))
    if excess <= 0:
        return 0
    grace_ms = rules.standby_eviction_grace_ms
    slots = victims(state, excess, now, rules.evict_soft_pinned, grace_ms=grace_ms)
    # Of objects that are also on a disk, the primary drops only the memory replicas. A mask hides whole objects, and a
    # promotion would evict them from the disk too: so these stay.
    slots = kept_on_disk(state, slots)[1]
    if len(slots):
        state.departed.add(state.mask.add(state.catalogue, slots), "EVICTED", now)
    return len(slots)

"""What time brings about, asked for at every tick: grants and quarantines that end, nodes long silent."""

from __future__ import annotations

import numpy as np

from holdfast.core.copies import plan
from holdfast.core.disks import disks_away_too_long, evict_from_disks, offload, tell_disks
from holdfast.core.eviction import let_go, over_brim, over_watermark, spared, within
from holdfast.core.live_settings import leases_shortened
from holdfast.core.membership import ask_to_clean, silent_too_long
from holdfast.core.named_once import named_once
from holdfast.core.primary import Primary
from holdfast.core.saving_ahead import save_ahead
from holdfast.instant import Instant
from holdfast.messages.records import GrantEnded, RangesFreed
from holdfast.messages.shapes import Record


def upkeep(primary: Primary, now: Instant) -> list[Record]:
    records: list[Record] = []
    ended = [grant for grant, deadline in primary.grant_deadline.items() if deadline <= now]
    # Its time ends the grant, never the quarantine: the writer may only be stopped (I11).
    records += [GrantEnded(grant, settled=[]) for grant in ended]
    released = [entry for entry, when in primary.release_at.items() if when <= now]
    if released:
        records.append(RangesFreed(released))
        for entry in released:
            del primary.release_at[entry]
    records += silent_too_long(primary, now)
    records += disks_away_too_long(primary, now)
    records += leases_shortened(primary, now)
    ask_to_clean(primary, now)
    return records


def plan_copies(primary: Primary, now: Instant) -> list[Record]:
    """What nodes are to copy. By itself: it must see what upkeep has changed."""
    tell_disks(primary, now)
    return named_once(primary.state, [*plan(primary, now), *save_ahead(primary, now)])


def evict(primary: Primary, now: Instant) -> tuple[int, list[Record]]:
    """One bounded step towards the watermark: how many objects leave, and the records of it, if they are logged."""
    excess = over_watermark(primary)
    if excess <= 0:
        records = evict_from_disks(primary, now)
        return len(records), records
    copied, staying, waiting = offload(primary, spared(primary, excess, now), now)
    urgent = over_brim(primary)
    if urgent > 0 and len(waiting):
        staying = np.concatenate([staying, within(primary.state, waiting, urgent)])
    if not len(staying):
        # Only when nothing leaves memory in this step: the same object must not lose both of its places.
        return 0, [*copied, *evict_from_disks(primary, now)]
    return len(staying), [*copied, *let_go(primary, staying, now)]

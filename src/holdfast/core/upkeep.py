"""What time brings about, asked for at every tick: grants and quarantines that end, nodes long silent."""

from __future__ import annotations

from holdfast.core.live_settings import leases_shortened
from holdfast.core.membership import ask_to_clean, silent_too_long
from holdfast.core.primary import Primary
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
    records += leases_shortened(primary, now)
    ask_to_clean(primary, now)
    return records

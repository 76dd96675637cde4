"""Doubt whether an earlier primary still answers, and how a primary that took over by a guess resolves it.

1. Begun by a promotion by a guess: until `leader_ttl` has passed, an earlier primary may give leases and answer reads,
   so nothing is taken from under it (I2, I12), and every lease counts as if it had been given at the end of that time.
2. Nodes learn the suspects when they register. A node on a suspect's machine reports when its process is gone.
3. Over when all suspects are gone, or by the clock. A process that is gone gives no lease, and whatever it had sent
   was decided before: as with a lock that is found free.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from holdfast.ids import ProcessName
from holdfast.instant import Instant


@dataclass(slots=True)
class Doubt:
    until: Instant = 0
    suspects: list[ProcessName] = field(default_factory=list)
    """Earlier primaries that are not known to be gone. If empty while there is doubt, not all of them have a name, and
    only the clock ends the doubt."""
    guard_until: Instant = 0
    """When the leases that were guarded at the promotion end."""
    when_over: Callable[[str], None] = lambda witness: None
    """Called with the name of the process that saw the last suspect gone."""

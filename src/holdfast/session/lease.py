"""How a session stands, as a function of time: no timer can be missed, and nobody has to tell (I4).

The lease counts from when the follower sent what was answered, plus the time for which the master held it: not later
than the master's own count, which starts when it answers. All of it is shortened by the allowed drift.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from holdfast.instant import Instant, shortened


class Standing(enum.Enum):
    SAFE = "safe"
    JEOPARDY = "jeopardy"
    """The lease is over and no master answers; the session may come back."""
    EXPIRED = "expired"


@dataclass(frozen=True, slots=True)
class Lease:
    sent_at: Instant
    held_ms: int
    lease_ms: int
    jeopardy_ms: int

    @property
    def safe_until(self) -> Instant:
        return self.sent_at + shortened(self.held_ms + self.lease_ms)

    @property
    def expires_at(self) -> Instant:
        return self.sent_at + shortened(self.held_ms + self.lease_ms + self.jeopardy_ms)

    def standing(self, now: Instant) -> Standing:
        if now < self.safe_until:
            return Standing.SAFE
        return Standing.JEOPARDY if now < self.expires_at else Standing.EXPIRED

    def changes_at(self, now: Instant) -> Instant:
        """When it stands differently, if nothing renews it."""
        return self.safe_until if now < self.safe_until else self.expires_at

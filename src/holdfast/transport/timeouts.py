"""How much of a caller's time a peer is told that it has.

A peer that waits for room, until the time it was told, still answers: that answer needs time to come back. So it is
told a little less than the caller has, or the caller would give up just before it learns why.
"""

from __future__ import annotations

from holdfast.wire.frames import MAX_TIMEOUT_MS

_LONGEST_SECONDS = 4e6
_ANSWER_SECONDS = 0.25


def told_timeout_ms(left: float) -> int:
    """The timeout to put into a request of which this many seconds are left; at least 1."""
    if left < 10 * _ANSWER_SECONDS:
        return int(left * 900) + 1
    return int((left - _ANSWER_SECONDS) * 1000) if left < _LONGEST_SECONDS else MAX_TIMEOUT_MS


SILENCE_SECONDS = 1.0
"""A stopped process keeps its connections open, so one that says nothing for this long is asked for a sign of life,
and given up if none comes for as long again. A master gives one at once, even while it makes a put wait."""

UNCROWDED_SECONDS = 0.02
"""For so long nobody looks for the next bytes after a look in which somebody else took the core."""

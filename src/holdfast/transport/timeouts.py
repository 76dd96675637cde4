"""The timeout to put on the wire: the caller's, minus time for the reply to come back.

A peer that waits for room until that timeout still replies. With the caller's full time, the caller would give up just
before it learns why.
"""

from __future__ import annotations

from holdfast.wire.frames import MAX_TIMEOUT_MS

_LONGEST_SECONDS = 4e6
_ANSWER_SECONDS = 0.25


def told_timeout_ms(left: float) -> int:
    """The timeout for a request with this many seconds left; at least 1."""
    if left < 10 * _ANSWER_SECONDS:
        return int(left * 900) + 1
    return int((left - _ANSWER_SECONDS) * 1000) if left < _LONGEST_SECONDS else MAX_TIMEOUT_MS


SILENCE_SECONDS = 1.0
"""A stopped process keeps its connections open, so a peer that is silent for this long is asked for a sign of life, and
given up if none comes for as long again. A master gives one at once, even while it makes a put wait."""

UNCROWDED_SECONDS = 0.02
"""How long there is no busy polling after a poll during which another process took the core."""

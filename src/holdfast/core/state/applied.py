"""What one record changed, as `apply` tells its caller: whoever needs to know reads it here, and compares no counters.

A standby needs none of it. A primary lends freed ranges again once the record is durable (I9), watches over new entries
of the quarantine (I11), and lets replies about these keys, or about which segments there are, wait for the record (I1).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from holdfast.ids import SegmentHandle

FreedRanges = tuple[SegmentHandle, npt.NDArray[np.int64], npt.NDArray[np.int64]]
"""Offsets and lengths in one segment that are no longer occupied."""
Freed = Sequence[FreedRanges]


class Applied(msgspec.Struct, frozen=True, gc=False):
    freed: Freed = ()
    """Ranges that nothing occupies any longer."""
    keys: Sequence[str] = ()
    """Keys whose objects were stored or went, or which may be read at a new place."""
    quarantined: Sequence[int] = ()
    """New entries of the quarantine. A record that unmounts a segment may also have ended some of them."""
    topology_changed: bool = False
    """Which segments there are has changed, or how they may be read."""


UNREMARKABLE = Applied()
"""For the many records that change only the state."""


def bytes_of(freed: Freed) -> int:
    return sum(int(lengths.sum()) for _, _, lengths in freed)

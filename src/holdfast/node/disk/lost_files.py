"""Files of the node's disk that it found gone or spoiled, until the master has answered that it dropped them.

1. Found: by a read, a copy, the audit or the scrub. 2. Unsaid: reported again until a report that named it is answered.
3. Answered: the log has dropped the replica, and the master tells the node to forget the file. A file that is read
between 3 and that is found again, which is harmless. While a place is unsaid no new file is written there, so that a
late report never speaks of a newer file than was looked at.
"""

from __future__ import annotations

import struct
import threading
from collections import Counter
from collections.abc import Callable

import structlog

from holdfast.ids import MAX_BATCH, ObjectId
from holdfast.messages.of_nodes import Damage, ReportLostFiles

MOST_UNSAID = 65_536
"""More are found again by the next read, audit or scrub (I17)."""

log = structlog.get_logger("holdfast.node")


class LostFiles:
    """Filled by whoever reads the disk, said by the thread that reports; `rouse` wakes it."""

    def __init__(self, rouse: Callable[[], None]) -> None:
        self.found: Counter[Damage] = Counter()
        self._rouse = rouse
        self._lock = threading.Lock()
        self._unsaid: dict[tuple[ObjectId, int], Damage] = {}
        self._places: set[int] = set()
        self._node, self._disk = "", 0

    @property
    def is_full(self) -> bool:
        return len(self._unsaid) >= MOST_UNSAID

    @property
    def has_news(self) -> bool:
        return bool(self._unsaid)

    def add(self, node: str, disk: int, oid: ObjectId, offset: int, damage: Damage, why: str) -> None:
        with self._lock:
            if self._disk != disk:  # The disk was emptied: it is another one.
                self._unsaid.clear()
                self._places.clear()
                self._node, self._disk = node, disk
            if (oid, offset) in self._unsaid or len(self._unsaid) >= MOST_UNSAID:
                return
            self._unsaid[oid, offset] = damage
            self._places.add(offset)
            self.found[damage] += 1
        log.warning("a file of the disk is lost", object=oid, offset=offset, seen=damage.name.lower(), reason=why)
        self._rouse()

    def is_unsaid(self, offset: int) -> bool:
        with self._lock:
            return offset in self._places

    def report(self) -> ReportLostFiles | None:
        """A bounded part of what is to be said; None if there is nothing."""
        with self._lock:
            some = list(self._unsaid.items())[:MAX_BATCH]
            if not some:
                return None
            rows = b"".join(struct.pack("<3Q", oid, offset, damage) for (oid, offset), damage in some)
            return ReportLostFiles(self._node, self._disk, rows)

    def answered(self, report: ReportLostFiles) -> None:
        with self._lock:
            if report.disk != self._disk:
                return
            for oid, offset, _ in struct.iter_unpack("<3Q", report.rows):
                if self._unsaid.pop((oid, offset), None) is not None:
                    self._places.discard(offset)

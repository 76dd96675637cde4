"""Files of the node's disk that it found missing or damaged, until the master has replied that it dropped them.

1. Found: by a read, a copy, the audit or the scrub. 2. Unsaid: reported until a report that named it is answered.
3. Answered: the log has dropped the replica, and the master tells the node to forget the file. A file that is read
after 3 and before that is found again, which is harmless. While a place is unsaid no new file is written there, so that
a late report never names a newer file than the one that was checked.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable

import structlog

from holdfast.ids import MAX_BATCH, ObjectId
from holdfast.messages.of_nodes import Damage, ReportLostFiles
from holdfast.messages.rows import LostFileRow

MOST_UNSAID = 65_536
"""The most to remember; the next read, audit or scrub finds the others again (I17)."""

log = structlog.get_logger("holdfast.node")


class LostFiles:
    """Filled by the threads that read the disk, reported by the reporting thread, which `wake` wakes."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self.found: Counter[Damage] = Counter()
        self._wake = wake
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
            if self._disk != disk:  # The disk was emptied, and so is a new one.
                self._unsaid.clear()
                self._places.clear()
                self._node, self._disk = node, disk
            if (oid, offset) in self._unsaid or len(self._unsaid) >= MOST_UNSAID:
                return
            self._unsaid[oid, offset] = damage
            self._places.add(offset)
            self.found[damage] += 1
        log.warning("a file of the disk is lost", object=oid, offset=offset, seen=damage.name.lower(), reason=why)
        self._wake()

    def is_unsaid(self, offset: int) -> bool:
        with self._lock:
            return offset in self._places

    def report(self) -> ReportLostFiles | None:
        """A report of a bounded part of these files; None if there are none."""
        with self._lock:
            some = list(self._unsaid.items())[:MAX_BATCH]
            if not some:
                return None
            rows = LostFileRow.pack_rows((oid, offset, damage) for (oid, offset), damage in some)
            return ReportLostFiles(self._node, self._disk, rows)

    def answered(self, report: ReportLostFiles) -> None:
        with self._lock:
            if report.disk != self._disk:
                return
            for oid, offset, _ in LostFileRow.iter_unpack(report.rows):
                if self._unsaid.pop((oid, offset), None) is not None:
                    self._places.discard(offset)

"""A node's disk while it runs: its store, the files that the master does not know yet, and whether it is in trouble.

A file that was just written belongs to no object until the master has logged it; an audit leaves such files alone. A
file that is found missing or damaged is reported, and its replica is lost (I18). An error of the disk itself disables
the tier, at least for writing: memory goes on, and the reason is reported (status, log) once the master can be reached.
A restart of the node tries the disk again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, TypeAlias

import structlog

from holdfast.errors import ReplicaLost, TryAgain, UnknownSegment
from holdfast.ids import ObjectId, SegmentName
from holdfast.messages.of_nodes import Damage
from holdfast.node.disk.lost_files import LostFiles
from holdfast.node.disk.store import DamagedFile, DiskStore, DiskTrouble

LoggedFile: TypeAlias = tuple[ObjectId, int, int, int]
"""A file as the log holds it: (object, offset, size, checksum)."""

log = structlog.get_logger("holdfast.node")


class Verification(NamedTuple):
    """A comparison of all files with a restored history, as one primary lists them."""

    disk: int
    history: int
    epoch: int


class DiskTier:
    def __init__(self, node: str, store: DiskStore, size_bytes: int, lost: LostFiles | None = None) -> None:
        self.node = node
        self.store = store
        self.size_bytes = size_bytes
        self.lost = lost if lost is not None else LostFiles(lambda: None)
        self.trouble: DiskTrouble | None = None
        self.on_trouble: Callable[[], None] = lambda: None
        """Set by the node, called when there is trouble to report to the master."""
        self._verification: Verification | None = None
        """The one that is under way, or waits to be."""
        self._pending: set[int] = set()
        self.read_bytes = self.written_bytes = self.checked_bytes = 0
        self._lock = threading.Lock()

    def is_mine(self, name: SegmentName) -> bool:
        return name.node == self.node and name.boot == self.store.disk

    def write(self, oid: ObjectId, offset: int, data: memoryview, checksum: int) -> None:
        if self.trouble is not None:
            raise self.trouble
        with self._lock:
            if self.lost.is_unsaid(offset):
                raise ReplicaLost(
                    f"the file at {offset:,} is lost, and the master does not know yet; nothing was written"
                )
            self._pending.add(offset)
        with self._noting():
            self.store.write(oid, offset, data, checksum)
        with self._lock:
            self.written_bytes += len(data)

    def read_into(self, offset: int, target: memoryview) -> None:
        with self._noting():
            self.store.read_into(offset, target)
        with self._lock:
            self.read_bytes += len(target)

    def check(self, offset: int) -> None:
        """Read the whole file around this place; if it is missing or wrong, report that and raise ReplicaLost."""
        with self._noting():
            size_bytes = self.store.check(offset)
        with self._lock:
            self.checked_bytes += size_bytes

    @contextmanager
    def _noting(self) -> Iterator[None]:
        """Report any damage found inside the block, and raise it to the caller."""
        try:
            yield
        except DamagedFile as error:
            stored = error.stored
            with self._lock:
                if stored.offset not in self._pending and self.store.at(stored.offset) == stored:
                    self._found(stored.oid, stored.offset, error.damage, str(error))
            raise
        except DiskTrouble as trouble:
            self._in_trouble(trouble)
            raise

    def _found(self, oid: ObjectId, offset: int, damage: Damage, why: str) -> None:
        """Note a lost file, under the lock: between the check and the note, nothing new is written to the place."""
        self.lost.add(self.node, self.store.disk, oid, offset, damage, why)

    def _in_trouble(self, trouble: DiskTrouble) -> None:
        known = self.trouble
        if known is None or (known.readable and not trouble.readable):
            log.error("the disk tier is disabled, memory goes on", reason=str(trouble), readable=trouble.readable)
            self.trouble = trouble
            self.on_trouble()

    def answered(self, offsets: list[int]) -> None:
        """Note that the master has replied about the files at these places."""
        with self._lock:
            self._pending.difference_update(offsets)

    def files(self) -> list[tuple[ObjectId, int]]:
        """The files that the master should know: (object, offset)."""
        stored = self.store.stored()
        with self._lock:
            return [(one.oid, one.offset) for one in stored if one.offset not in self._pending]

    def find_missing(self, logged: Iterable[LoggedFile]) -> int:
        """Report which of these files are missing or have another size. Returns their number. A file that is being
        written, or was deleted since the log was asked, may be among them: the master ignores files that the log does
        not hold."""
        with self._noting():
            self.store.check_in_place()
        return sum(self._is_missing(oid, offset, size) for oid, offset, size, _ in logged)

    def begin_verification(self, history: int, epoch: int) -> Verification | None:
        """Note that the files are to be compared with a restored history, as this epoch's primary lists them, in place
        of any other. None: they already are."""
        with self._lock:
            wanted = Verification(self.store.disk, history, epoch)
            if self._verification == wanted:
                return None
            self._verification = wanted
            return wanted

    def wants(self, verification: Verification) -> bool:
        """Is this verification neither over nor replaced by another?"""
        with self._lock:
            return self._verification == verification and self.store.disk == verification.disk

    def end_verification(self, verification: Verification) -> None:
        with self._lock:
            if self._verification == verification:
                self._verification = None

    def compare(self, logged: Iterable[LoggedFile]) -> list[LoggedFile]:
        """Read these files whole, and report those that are missing or damaged. Returns those that cannot be read at
        the moment."""
        again: list[LoggedFile] = []
        for one in logged:
            oid, offset, size, checksum = one
            if self._is_missing(oid, offset, size) or self._is_pending(offset):
                continue
            try:
                with self._noting():
                    size_bytes = self.store.check(offset, checksum)
                with self._lock:
                    self.checked_bytes += size_bytes
            except TryAgain:
                again.append(one)
            except (DamagedFile, UnknownSegment):
                pass  # It is reported, or the log has dropped it.
        return again

    def _is_pending(self, offset: int) -> bool:
        """Was a file just written there, for an object of the present history?"""
        with self._lock:
            return offset in self._pending

    def _is_missing(self, oid: ObjectId, offset: int, size: int) -> bool:
        with self._lock:
            if offset in self._pending:
                return False
            stored = self.store.at(offset)
            if stored is None or stored.oid != oid:
                self._found(oid, offset, Damage.MISSING, "the log holds a file that the disk does not")
                return True
            if stored.size_bytes != size:
                self._found(oid, offset, Damage.WRONG_SIZE, f"it has {stored.size_bytes:,} bytes; by the log {size:,}")
                return True
        try:
            with self._noting():
                self.store.check_size(offset)
        except DamagedFile:
            return True
        return False

    def close(self) -> None:
        self.store.close()

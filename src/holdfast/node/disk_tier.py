"""A node's disk while it runs: its store, what of it is not settled yet, and whether it is in trouble.

A file that was just written is nobody's until the master has logged it; an audit leaves such files alone. The first
error disables the tier, for writing at least: memory goes on, and the reason is said (status, log) once the master
can be reached. A restart of the node tries the disk again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import structlog

from holdfast.ids import ObjectId, SegmentName
from holdfast.node.disk_store import DiskStore, DiskTrouble

log = structlog.get_logger("holdfast.node")


class DiskTier:
    def __init__(self, node: str, store: DiskStore, size_bytes: int) -> None:
        self.node = node
        self.store = store
        self.size_bytes = size_bytes
        self.trouble: DiskTrouble | None = None
        self.on_trouble: Callable[[], None] = lambda: None
        """Set by the node: somebody should tell the master."""
        self._pending: set[int] = set()
        self._lock = threading.Lock()

    def is_mine(self, name: SegmentName) -> bool:
        return name.node == self.node and name.boot == self.store.disk

    def write(self, oid: ObjectId, offset: int, data: memoryview, checksum: int) -> None:
        if self.trouble is not None:
            raise self.trouble
        with self._lock:
            self._pending.add(offset)
        try:
            self.store.write(oid, offset, data, checksum)
        except DiskTrouble as trouble:
            self._in_trouble(trouble)
            raise

    def read_into(self, offset: int, target: memoryview) -> None:
        try:
            self.store.read_into(offset, target)
        except DiskTrouble as trouble:
            self._in_trouble(trouble)
            raise

    def _in_trouble(self, trouble: DiskTrouble) -> None:
        known = self.trouble
        if known is None or (known.readable and not trouble.readable):
            log.error("the disk tier is disabled, memory goes on", reason=str(trouble), readable=trouble.readable)
            self.trouble = trouble
            self.on_trouble()

    def settled(self, offsets: list[int]) -> None:
        """The master has answered about the files at these places."""
        with self._lock:
            self._pending.difference_update(offsets)

    def files(self) -> list[tuple[ObjectId, int]]:
        """Those that the master should know: (object, offset)."""
        stored = self.store.stored()
        with self._lock:
            return [(one.oid, one.offset) for one in stored if one.offset not in self._pending]

    def close(self) -> None:
        self.store.close()

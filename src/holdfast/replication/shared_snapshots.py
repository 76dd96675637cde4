"""Snapshots on the master's own disk, and a copy of each in a depot that all masters share.

Snapshots are read and served from the disk; the depot is for the day on which all disks are gone: a master that finds a
newer snapshot there than on its disk starts from that one. The log is trimmed only through snapshots that are in both
(I13), so that the depot and the log together always hold everything. Files in the depot are named by their history as
they are on disk, and those of other histories are left alone (I19).
"""

from __future__ import annotations

from pathlib import Path

import structlog

from holdfast.replication.depots import Depot
from holdfast.replication.snapshot_store import KEPT, SPOILED, SnapshotStore, file_name, lacks_history, parse_name
from holdfast.replication.snapshots import CorruptSnapshot, verify

log = structlog.get_logger("holdfast.snapshots")


class SharedSnapshotStore(SnapshotStore):
    def __init__(self, directory: Path, depot: Depot) -> None:
        super().__init__(directory)
        self._depot = depot
        self._shared: dict[int, list[int]] = {}
        """History -> batches of its snapshots known to be in the depot, the newest first."""

    def unshared(self, log_id: int) -> bool:
        kept = self.kept(log_id)
        return bool(kept) and kept[0].batch not in self._shared.get(log_id, [])

    def share(self, log_id: int) -> None:
        """Blocking. Put the newest into the depot, unless another master was faster, and delete the oldest there."""
        kept = self.kept(log_id)
        there = self._look().get(log_id, [])
        if kept and kept[0].batch not in there:
            self._depot.put(kept[0].path.name, self.content(kept[0]))
            there = sorted([kept[0].batch, *there], reverse=True)
            log.info("snapshot shared", batch=kept[0].batch, bytes=kept[0].size_bytes)
        for old in there[KEPT:]:
            self._depot.remove(file_name(log_id, old))
        self._shared[log_id] = there[:KEPT]

    def known(self) -> dict[int, int]:
        known = super().known()
        for log_id, batches in self._look().items():
            known[log_id] = max(batches[0], known.get(log_id, 0))
        return known

    def bring(self, log_id: int) -> None:
        self._shared = self._look()
        for history in [log_id] if log_id else list(self._shared):
            self._bring_newest(history)

    def _look(self) -> dict[int, list[int]]:
        """The batches of the snapshots in the depot by their history, the newest first."""
        found: dict[int, list[int]] = {}
        for name in self._depot.names():
            named = parse_name(name) or (self._name_by_history_there(name) if lacks_history(name) else None)
            if named is not None:
                found.setdefault(named[0], []).append(named[1])
        return {log_id: sorted(set(batches), reverse=True) for log_id, batches in found.items()}

    def _name_by_history_there(self, name: str) -> tuple[int, int] | None:
        """Rename a file of an earlier version to its present name. Another master may be doing the same."""
        content = self._depot.get(name)
        try:
            head = verify(content)
        except CorruptSnapshot as error:
            log.error("a shared snapshot cannot be used; it is set aside", file=name, why=str(error))
            self._depot.put(SPOILED, content)
            self._depot.remove(name)
            return None
        self._depot.put(file_name(head.log_id, head.batch), content)
        self._depot.remove(name)
        return head.log_id, head.batch

    def _bring_newest(self, log_id: int) -> None:
        """Fetch the newest sound snapshot from the depot, unless this master has one as new."""
        kept = self.kept(log_id)
        own = kept[0].batch if kept else 0
        for batch in self._shared.get(log_id, []):
            if batch <= own:
                return
            try:
                self.write(batch, self._depot.get(file_name(log_id, batch)))
                log.info("snapshot brought from the shared place", batch=batch)
                return
            except CorruptSnapshot as error:
                log.error("a shared snapshot cannot be used; the next older one is taken", batch=batch, why=str(error))

    def trim_through(self, log_id: int) -> int:
        shared = self._shared.get(log_id, [])
        older = shared[1] if len(shared) > 1 else 0
        return min(super().trim_through(log_id), older)

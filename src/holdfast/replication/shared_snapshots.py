"""Snapshots on the master's own disk, and a copy of each in a depot that all masters share.

The disk is what is read and served; the depot is for the day on which all disks are gone: a master that finds a newer
snapshot there than on its disk starts from that. The log is trimmed through what is in both (I13), so that the depot
and the log together always hold everything.
"""

from __future__ import annotations

from pathlib import Path

import structlog

from holdfast.replication.depots import Depot, DepotFailed
from holdfast.replication.snapshot_store import KEPT, SnapshotFailed, SnapshotStore, batch_of
from holdfast.replication.snapshots import CorruptSnapshot
from holdfast.replication.standby import Standby

log = structlog.get_logger("holdfast.snapshots")


class SharedSnapshotStore(SnapshotStore):
    def __init__(self, directory: Path, depot: Depot) -> None:
        super().__init__(directory)
        self._depot = depot
        self._shared: list[int] = []
        """What the depot is known to hold, the newest first."""

    @property
    def unshared(self) -> bool:
        kept = self.kept()
        return bool(kept) and kept[0].batch not in self._shared

    def share(self) -> None:
        """Blocking. Put the newest into the depot, unless another master was faster, and forget the oldest there."""
        kept = self.kept()
        there = self._look()
        if kept and kept[0].batch not in there:
            self._depot.put(kept[0].path.name, kept[0].path.read_bytes())
            there = sorted([kept[0].batch, *there], reverse=True)
            log.info("snapshot shared", batch=kept[0].batch, bytes=kept[0].size_bytes)
        for old in there[KEPT:]:
            self._depot.remove(self._path(old).name)
        self._shared = there[:KEPT]

    def newest(self) -> Standby | None:
        try:
            self._bring_newer()
        except (DepotFailed, SnapshotFailed) as error:
            log.error(
                "what is in the shared place for snapshots is not known; this master's own are used", why=str(error)
            )
        return super().newest()

    def _look(self) -> list[int]:
        """The batches of the snapshots in the depot, the newest first."""
        found = [batch for name in self._depot.names() if (batch := batch_of(name)) is not None]
        return sorted(found, reverse=True)

    def _bring_newer(self) -> None:
        """The newest snapshot of the depot that is sound, if this master has none as new."""
        own = self.kept()[0].batch if self.kept() else 0
        self._shared = self._look()[:KEPT]
        for batch in self._shared:
            if batch <= own:
                return
            try:
                self.write(batch, self._depot.get(self._path(batch).name))
                log.info("snapshot brought from the shared place", batch=batch)
                return
            except CorruptSnapshot as error:
                log.error("a shared snapshot cannot be used; the next older one is taken", batch=batch, why=str(error))

    def trim_through(self) -> int:
        older = self._shared[1] if len(self._shared) > 1 else 0
        return min(super().trim_through(), older)

"""Snapshots on the master's own disk, and a copy of each in a depot that all masters share.

Snapshots are read and served from the disk; the depot is for the day on which all disks are gone: a master that finds a
newer snapshot there than on its disk starts from that one. The log is trimmed only through snapshots that are in both
(I13), so that the depot and the log together always hold everything. Files in the depot are named by their history as
they are on disk, and those of other histories are left alone (I19).

A master of version 0.2 put them under the name in its settings, even where the URL of coordination names the cluster
otherwise. That earlier place is read, and nothing is changed there: a master of that version may still use it.
"""

from __future__ import annotations

from pathlib import Path

import structlog

from holdfast.replication.depots import Depot
from holdfast.replication.snapshot_store import KEPT, SPOILED, SnapshotStore, file_name, lacks_history, parse_name
from holdfast.replication.snapshots import CorruptSnapshot, verify

log = structlog.get_logger("holdfast.snapshots")


class SharedSnapshotStore(SnapshotStore):
    def __init__(self, directory: Path, depot: Depot, earlier: Depot | None = None) -> None:
        super().__init__(directory)
        self._depot = depot
        self._earlier = earlier
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
        for place in (self._look(), self._look_earlier()):
            for log_id, batches in place.items():
                known[log_id] = max(batches[0], known.get(log_id, 0))
        return known

    def bring(self, log_id: int) -> None:
        self._shared = self._look()
        places = [(self._depot, self._shared)]
        if self._earlier is not None:
            places.append((self._earlier, self._look_earlier()))
        for depot, there in places:
            for history in [log_id] if log_id else list(there):
                self._bring_newest(history, depot, there.get(history, []))

    def _look(self) -> dict[int, list[int]]:
        """The batches of the snapshots in the depot by their history, the newest first."""
        names = self._depot.names()
        renamed = [self._name_by_history_there(name) for name in names if lacks_history(name)]
        return _by_history([*map(parse_name, names), *renamed])

    def _look_earlier(self) -> dict[int, list[int]]:
        return _by_history([parse_name(name) for name in self._earlier.names()]) if self._earlier is not None else {}

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

    def _bring_newest(self, log_id: int, depot: Depot, batches: list[int]) -> None:
        """Fetch the newest sound snapshot of these in the depot, unless this master has one as new."""
        kept = self.kept(log_id)
        own = kept[0].batch if kept else 0
        for batch in batches:
            if batch <= own:
                return
            try:
                self.write(batch, depot.get(file_name(log_id, batch)))
                log.info("snapshot brought from the shared place", batch=batch)
                return
            except CorruptSnapshot as error:
                log.error("a shared snapshot cannot be used; the next older one is taken", batch=batch, why=str(error))

    def trim_through(self, log_id: int) -> int:
        shared = self._shared.get(log_id, [])
        older = shared[1] if len(shared) > 1 else 0
        return min(super().trim_through(log_id), older)


def _by_history(named: list[tuple[int, int] | None]) -> dict[int, list[int]]:
    """History -> its batches, the newest first."""
    found: dict[int, set[int]] = {}
    for one in named:
        if one is not None:
            found.setdefault(one[0], set()).add(one[1])
    return {log_id: sorted(batches, reverse=True) for log_id, batches in found.items()}

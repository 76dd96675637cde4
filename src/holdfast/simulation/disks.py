"""Snapshots on a simulated disk: they outlive their process, and can be spoiled."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from holdfast.core.state import State
from holdfast.instant import now_ms
from holdfast.messages.of_masters import SnapshotPiece
from holdfast.replication.batches import Position
from holdfast.replication.snapshot_store import KEPT, PIECE_BYTES, Kept, SnapshotStore
from holdfast.replication.snapshots import CorruptSnapshot, dump, load, verify
from holdfast.replication.standby import Standby


@dataclass(slots=True)
class Disk:
    """Of one machine: what was written stays when the process dies."""

    files: dict[int, bytes]
    unproven: dict[int, bytes]

    @classmethod
    def empty(cls) -> Disk:
        return cls({}, {})

    def spoil(self) -> None:
        """Turn over a bit in the newest snapshot."""
        if self.files:
            newest = max(self.files)
            content = bytearray(self.files[newest])
            content[len(content) // 2] ^= 1
            self.files[newest] = bytes(content)


class DiskStore(SnapshotStore):
    """The snapshot store's rules on a disk of bytes."""

    def __init__(self, disk: Disk) -> None:
        super().__init__(None)
        self.directory = Path("/")  # There is one, as far as others ask.
        self._disk = disk
        disk.unproven.clear()

    def kept(self) -> list[Kept]:
        files = self._disk.files
        return [Kept(batch, Path(str(batch)), len(files[batch])) for batch in sorted(files, reverse=True)]

    def check_writable(self) -> None:
        """It always is."""

    def newest(self) -> Standby | None:
        for one in self.kept():
            try:
                restored = load(self._disk.files[one.batch], now_ms())
            except CorruptSnapshot:
                del self._disk.files[one.batch]
                continue
            return Standby(restored.state, restored.position)
        return None

    def write(self, batch: int, content: bytes, proven: bool = True) -> Kept:
        verify(content)
        (self._disk.files if proven else self._disk.unproven)[batch] = content
        self._forget_old()
        return Kept(batch, Path(str(batch)), len(content))

    def prove(self, batch: int) -> None:
        self._disk.files[batch] = self._disk.unproven.pop(batch)
        self._forget_old()

    def _forget_old(self) -> None:
        for batch in sorted(self._disk.files, reverse=True)[KEPT:]:
            del self._disk.files[batch]

    def piece(self, batch: int, offset: int) -> SnapshotPiece:
        chosen = batch or max(self._disk.files, default=0)
        content = self._disk.files.get(chosen)
        if content is None or offset < 0:
            return SnapshotPiece(0, 0, b"")
        return SnapshotPiece(chosen, len(content), content[offset : offset + PIECE_BYTES])


def at_once(store: SnapshotStore, state: State, position: Position) -> object:
    """In place of a forked child: the state is written as it is now."""
    store.write(position.batch, b"".join(dump(state, position, now_ms())), proven=False)
    return lambda: 0

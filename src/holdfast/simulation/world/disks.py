"""Snapshots on a simulated disk: they outlive their process, and can be damaged."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from holdfast.core.state.state import State
from holdfast.instant import now_ms
from holdfast.replication.batches import Position
from holdfast.replication.snapshot_store import UNPROVEN, SnapshotStore, parse_name
from holdfast.replication.snapshots import dump


@dataclass(slots=True)
class Disk:
    """The disk of one machine: its files stay when the process dies."""

    files: dict[str, bytes] = field(default_factory=dict)

    def snapshots(self) -> dict[str, bytes]:
        """The complete snapshots, the newest last."""
        named = [(found[1], name) for name in self.files if (found := parse_name(name)) is not None]
        return {name: self.files[name] for _, name in sorted(named)}

    def newest_batch(self, log_id: int) -> int:
        """The last batch of that history in any snapshot; 0: there is none."""
        found = [parse_name(name) for name in self.files]
        return max((named[1] for named in found if named is not None and named[0] == log_id), default=0)

    def spoil(self, all_of_them: bool) -> None:
        """Flip a bit in the newest snapshot, or in each."""
        snapshots = list(self.snapshots().items())
        for name, content in snapshots if all_of_them else snapshots[-1:]:
            spoiled = bytearray(content)
            spoiled[len(spoiled) // 2] ^= 1
            self.files[name] = bytes(spoiled)


class SnapshotDisk(SnapshotStore):
    """The snapshot store on a disk of bytes: production code, except for the files themselves."""

    def __init__(self, disk: Disk) -> None:
        super().__init__(None)
        self.directory = Path("/")  # Callers only check that there is one.
        self._disk = disk
        for name in [name for name in disk.files if name.endswith(UNPROVEN)]:
            del disk.files[name]

    def _files(self) -> list[tuple[str, int]]:
        return sorted((name, len(content)) for name, content in self._disk.files.items())

    def check_writable(self) -> None:
        """Does nothing: it is always writable."""

    def _part(self, name: str, offset: int, length: int) -> bytes:
        if name not in self._disk.files:
            raise FileNotFoundError(name)
        return self._disk.files[name][offset : offset + length]

    def _put(self, name: str, content: bytes) -> None:
        self._disk.files[name] = content

    def _rename(self, old: str, new: str) -> None:
        self._disk.files[new] = self._disk.files.pop(old)

    def _delete(self, name: str) -> None:
        del self._disk.files[name]


def at_once(store: SnapshotStore, state: State, position: Position) -> object:
    """Write the state as it is now, in place of a forked child."""
    store.write(position.batch, b"".join(dump(state, position, now_ms())), proven=False)
    return lambda: 0

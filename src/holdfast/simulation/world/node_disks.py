"""The disk of a simulated node: the production store and tier over files in a dict, which outlive the node's process.

Faults lose some of the files, or damage them by a flipped byte or a missing end, unnoticed. Reads and writes of one
file happen in one step; a slow disk delays them.
"""

from __future__ import annotations

import random
from pathlib import Path

from holdfast.node.disk.lost_files import LostFiles
from holdfast.node.disk.store import DiskStore, Files
from holdfast.node.disk.tier import DiskTier

PLACE = Path("/disk")
OBJECTS = PLACE / "objects"


class DictFiles(Files):
    """Whole files by their paths."""

    def __init__(self) -> None:
        self.content: dict[Path, bytes] = {}

    def take(self, directory: Path) -> int:
        return 0  # The previous process has ended, or this one would not be started.

    def release(self, lock: int) -> None:
        pass

    def is_in_place(self, directory: Path, lock: int) -> bool:
        return True

    def names(self, directory: Path) -> list[Path]:
        return sorted(path for path in self.content if path.parent == directory)

    def _found(self, path: Path) -> bytes:
        if path not in self.content:
            raise FileNotFoundError(2, "no such file", str(path))
        return self.content[path]

    def size(self, path: Path) -> int:
        return len(self._found(path))

    def read(self, path: Path, start: int, target: memoryview) -> int:
        piece = self._found(path)[start : start + len(target)]
        target[: len(piece)] = piece
        return len(piece)

    def write(self, path: Path, pieces: list[bytes | memoryview]) -> None:
        self.content[path] = b"".join(pieces)

    def replace(self, draft: Path, path: Path) -> None:
        self.content[path] = self.content.pop(draft)

    def delete(self, path: Path) -> None:
        self.content.pop(path, None)


class SimulatedDisk:
    """One node's disk, through all its lives."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.files = DictFiles()
        self.late_seconds = 0.0
        """The delay of each step of a copy to it."""

    def opened(self, node: str, lost: LostFiles) -> DiskTier:
        return DiskTier(node, DiskStore.open(PLACE, "boot", self.files), self.size_bytes, lost)

    def lose(self, share: float, chance: random.Random) -> int:
        """Delete some files. Returns how many."""
        chosen = self._some(share, chance)
        for path in chosen:
            del self.files.content[path]
        return len(chosen)

    def spoil(self, share: float, chance: random.Random) -> int:
        """Flip a byte in some files, or cut their end off. Returns how many."""
        chosen = self._some(share, chance)
        for path in chosen:
            content = bytearray(self.files.content[path])
            at = chance.randrange(len(content))
            if chance.random() < 0.3:
                del content[at:]
            else:
                content[at] ^= 1 << chance.randrange(8)
            self.files.content[path] = bytes(content)
        return len(chosen)

    def _some(self, share: float, chance: random.Random) -> list[Path]:
        there = sorted(path for path in self.files.content if OBJECTS in path.parents)
        return chance.sample(there, max(1, round(share * len(there)))) if there else []

"""Snapshots in a directory: written whole or not at all, verified, kept by number, the newest good one found.

A file appears under its name only when all of it is on disk. One that is torn or altered is passed over, said,
and the next older one is taken (I18).
"""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

import structlog

from holdfast.errors import TryAgain
from holdfast.instant import now_ms
from holdfast.messages.of_masters import SnapshotPiece
from holdfast.replication.snapshots import CorruptSnapshot, dump, load, verify
from holdfast.replication.standby import Standby

log = structlog.get_logger("holdfast.snapshots")
_NAME = re.compile(r"snapshot-(\d{15})\.hfs")
SPOILED = "spoiled-snapshot"
KEPT = 3
PIECE_BYTES = 4 << 20


def batch_of(name: str) -> int | None:
    """Of the file of a snapshot; None: it is no such name."""
    matched = _NAME.fullmatch(name)
    return int(matched[1]) if matched is not None else None


class SnapshotFailed(TryAgain):
    """The snapshot could not be written; those before it are untouched, and the log is not trimmed."""

    code = "snapshot_failed"


@dataclass(frozen=True, slots=True)
class Kept:
    batch: int
    path: Path
    size_bytes: int


class SnapshotStore:
    """Without a directory nothing is kept, and the log is never trimmed."""

    def __init__(self, directory: Path | None) -> None:
        self.directory = directory
        if directory is not None:
            directory.mkdir(parents=True, exist_ok=True)
            for unfinished in (*directory.glob("*.partial"), *directory.glob("*.unproven")):
                unfinished.unlink()

    def kept(self) -> list[Kept]:
        """Newest first."""
        if self.directory is None:
            return []
        found = []
        for path in self._files(self.directory):
            batch = batch_of(path.name)
            if batch is not None:
                with contextlib.suppress(FileNotFoundError):  # Somebody else removed it in this moment.
                    found.append(Kept(batch, path, path.stat().st_size))
        return sorted(found, key=lambda one: one.batch, reverse=True)

    def _files(self, directory: Path) -> list[Path]:
        """A directory that somebody deleted is made again: the next snapshot is written there."""
        try:
            return list(directory.iterdir())
        except FileNotFoundError:
            directory.mkdir(parents=True, exist_ok=True)
            log.error("the directory of the snapshots was deleted; it is made again, and is empty", path=str(directory))
            return []

    def check_writable(self) -> None:
        """SnapshotFailed where the next snapshot could not be written, long before it is due."""
        if self.directory is not None and not os.access(self.directory, os.W_OK | os.X_OK):
            if not self.directory.exists():
                self._files(self.directory)
            elif not self.directory.is_dir():
                raise SnapshotFailed(f"{self.directory} is no directory, so no snapshot can be kept; remove it")
            else:
                raise SnapshotFailed(f"no snapshot can be written to {self.directory}: it is read-only here")

    def newest(self) -> Standby | None:
        """The newest that can be read, as a standby that goes on from there."""
        for one in self.kept():
            try:
                restored = load(one.path.read_bytes(), now_ms())
            except (CorruptSnapshot, OSError) as error:
                log.error("a snapshot cannot be used; the next older one is taken", file=one.path.name, why=str(error))
                if isinstance(error, CorruptSnapshot):
                    self._set_aside(one)
                continue
            for fault in restored.faults:
                log.error("an entry of a snapshot was left out", file=one.path.name, why=fault)
            return Standby(restored.state, restored.position)
        return None

    def _set_aside(self, spoiled: Kept) -> None:
        """It counts no more, so that one like it, or an older one, is fetched from another master. The last such file
        stays, for whoever wants to know what became of it."""
        with contextlib.suppress(OSError):  # The disk may fail altogether: the next start meets it again.
            spoiled.path.replace(spoiled.path.with_name(SPOILED))

    def take(self, standby: Standby) -> tuple[int, bytes]:
        """The standby's state now, for `write`. Nothing else may run meanwhile: it must not change."""
        return standby.position.batch, b"".join(dump(standby.state, standby.position, now_ms()))

    def write(self, batch: int, content: bytes, proven: bool = True) -> Kept:
        """Blocking. SnapshotFailed (a full disk) leaves what was there. Not `proven`: its last batch is not durable
        yet, so that it counts only after `prove`."""
        if self.directory is None:
            raise SnapshotFailed("no data directory is set, so no snapshot can be kept; give --data-dir")
        verify(content)
        path = self._path(batch) if proven else self._path(batch).with_suffix(".unproven")
        partial = self._path(batch).with_suffix(".partial")
        try:
            with partial.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
            folder = os.open(self.directory, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as error:
            with contextlib.suppress(OSError):  # It may not even have been made.
                partial.unlink()
            raise SnapshotFailed(f"the snapshot could not be written to {path}: {error.strerror}") from None
        self._forget_old()
        return Kept(batch, path, len(content))

    def prove(self, batch: int) -> None:
        """Its last batch is durable: from now on it counts."""
        self._path(batch).with_suffix(".unproven").replace(self._path(batch))
        self._forget_old()

    def _path(self, batch: int) -> Path:
        assert self.directory is not None, "nothing is kept without a directory"
        return self.directory / f"snapshot-{batch:015d}.hfs"

    def _forget_old(self) -> None:
        for old in self.kept()[KEPT:]:
            old.path.unlink()

    def piece(self, batch: int, offset: int) -> SnapshotPiece:
        """Part of a kept snapshot, for a master that asks for it; batch 0 asks for the newest."""
        chosen = next((one for one in self.kept() if batch in (0, one.batch)), None)
        if chosen is None or offset < 0:
            return SnapshotPiece(0, 0, b"")
        with chosen.path.open("rb") as file:
            file.seek(offset)
            return SnapshotPiece(chosen.batch, chosen.size_bytes, file.read(PIECE_BYTES))

    @property
    def unshared(self) -> bool:
        """Is there something for `share` to do?"""
        return False

    def share(self) -> None:
        """Blocking. Put a copy where all masters find it, if there is such a place."""

    def trim_through(self) -> int:
        """The batch that the log may be trimmed through: the older of the last two; 0 while there is one or none."""
        kept = self.kept()
        return kept[1].batch if len(kept) > 1 else 0

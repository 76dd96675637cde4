"""Snapshots in a directory: written completely or not at all, verified, kept by history and number.

A file appears under its name only when all of it is on disk. Its name gives its history (`log_id`) and the last batch
of the log in it; its head gives them too, and a file whose head differs is spoiled. Snapshots are always asked for by
history: those of others are neither used, counted nor deleted (I19). One that is torn or altered is reported and
skipped, and the next older one is taken (I18).
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
from holdfast.private_files import private_directory
from holdfast.replication.batches import Position
from holdfast.replication.snapshots import (
    HEAD_PREFIX_BYTES,
    CorruptSnapshot,
    Head,
    NewerSnapshot,
    dump,
    head_bytes,
    head_of,
    load,
    position_of,
    verify,
)
from holdfast.replication.standby import Standby

log = structlog.get_logger("holdfast.snapshots")
_NAME = re.compile(r"snapshot-([0-9a-f]{16})-(\d{15})\.hfs")
_NAME_WITHOUT_HISTORY = re.compile(r"snapshot-\d{15}\.hfs")
SPOILED = "spoiled-snapshot"
FOLLOWED = "history"
"""The file that names the history that this master has followed last."""
KEPT = 3
PIECE_BYTES = 4 << 20
UNPROVEN = ".unproven"


class SnapshotFailed(TryAgain):
    """The snapshot could not be written; those before it are untouched, and the log is not trimmed."""

    code = "snapshot_failed"


@dataclass(frozen=True, slots=True)
class Kept:
    """One snapshot, of a history, through a batch."""

    log_id: int
    batch: int
    path: Path
    size_bytes: int


def file_name(log_id: int, batch: int) -> str:
    return f"snapshot-{log_id:016x}-{batch:015d}.hfs"


def parse_name(name: str) -> tuple[int, int] | None:
    """(history, batch) from a snapshot's file name; None if it is not such a name."""
    matched = _NAME.fullmatch(name)
    return (int(matched[1], 16), int(matched[2])) if matched is not None else None


def lacks_history(name: str) -> bool:
    """Whether it is a snapshot's name of an earlier version, which gave the batch only."""
    return _NAME_WITHOUT_HISTORY.fullmatch(name) is not None


class SnapshotStore:
    """Without a directory nothing is kept, and the log is never trimmed."""

    def __init__(self, directory: Path | None) -> None:
        self.directory = directory
        self.too_new = ""
        """Why the last snapshot that needs a newer master could not be used here."""
        if directory is not None:
            private_directory(directory)
            for unfinished in (*directory.glob("*.partial"), *directory.glob("*.unproven")):
                unfinished.unlink()
            self._name_by_history()

    def _name_by_history(self) -> None:
        """Rename the files of an earlier version to their present names."""
        for name, _ in self._files():
            if lacks_history(name):
                try:
                    head = self._head(name)
                except CorruptSnapshot as error:
                    self._set_aside(name, error)
                else:
                    self._rename(name, file_name(head.log_id, head.batch))

    def histories(self) -> dict[int, list[Kept]]:
        """The snapshots of every history, the newest of each first."""
        if self.directory is None:
            return {}
        found: dict[int, list[Kept]] = {}
        for name, size_bytes in self._files():
            named = parse_name(name)
            if named is not None:
                found.setdefault(named[0], []).append(Kept(*named, self.directory / name, size_bytes))
        for kept in found.values():
            kept.sort(key=lambda one: one.batch, reverse=True)
        return found

    def kept(self, log_id: int) -> list[Kept]:
        """The snapshots of that history, newest first."""
        return self.histories().get(log_id, [])

    def check_writable(self) -> None:
        """SnapshotFailed if the next snapshot could not be written: found out long before it is due."""
        if self.directory is not None and not os.access(self.directory, os.W_OK | os.X_OK):
            if not self.directory.exists():
                self._files()
            elif not self.directory.is_dir():
                raise SnapshotFailed(f"{self.directory} is no directory, so no snapshot can be kept; remove it")
            else:
                raise SnapshotFailed(f"no snapshot can be written to {self.directory}: it is read-only here")

    def known(self) -> dict[int, int]:
        """Blocking. Every history known here -> the last batch of it in a snapshot; 0 if it is in none."""
        followed = self.followed
        newest = {log_id: kept[0].batch for log_id, kept in self.histories().items()}
        return newest if followed in (0, *newest) else {**newest, followed: 0}

    def bring(self, log_id: int) -> None:
        """Blocking. Fetch the newest shared snapshot of that history, if there is one; 0: of every history."""

    def position(self, kept: Kept) -> Position | None:
        """Its position in the log. None if its head is spoiled: then it no longer counts."""
        try:
            head = self._head(kept.path.name)
        except (CorruptSnapshot, OSError) as error:
            self._set_aside(kept.path.name, error)
            return None
        return position_of(head)

    def read(self, kept: Kept) -> Standby | None:
        """Its content, as a standby that goes on from there. None if it is spoiled: then it no longer counts."""
        try:
            self._head(kept.path.name)  # It must be of the history in its name.
            restored = load(self.content(kept), now_ms())
        except (CorruptSnapshot, OSError) as error:
            self._set_aside(kept.path.name, error)
            return None
        for fault in restored.faults:
            log.error("an entry of a snapshot was left out", file=kept.path.name, why=fault)
        return Standby(restored.state, restored.position)

    def _head(self, name: str) -> Head:
        prefix = self._part(name, 0, HEAD_PREFIX_BYTES)
        head = head_of(self._part(name, 0, head_bytes(prefix)))
        named = parse_name(name)
        if named is not None and named != (head.log_id, head.batch):
            raise CorruptSnapshot("its head says another history or batch than its name")
        return head

    def _set_aside(self, name: str, error: Exception) -> None:
        """Rename a spoiled file, so that it no longer counts and a good one is fetched from another master. The last
        such file stays for diagnosis."""
        log.error("a snapshot cannot be used; another is looked for", file=name, why=str(error))
        if isinstance(error, NewerSnapshot):
            self.too_new = str(error)  # This master was downgraded: once it is upgraded again, it needs the file.
        elif isinstance(error, CorruptSnapshot):
            with contextlib.suppress(OSError):  # The disk may fail altogether: the next start finds the file again.
                self._rename(name, SPOILED)

    def set_astray(self, kept: Kept, position: Position) -> None:
        """Set aside a snapshot that the log of its history does not go through: coordination has lost a part of the
        log. It no longer counts, and stays under a name of its own to be restored from."""
        name = f"stray-{kept.log_id:016x}-{kept.batch:015d}-{position.hash[:4].hex()}.hfs"
        log.error("a snapshot holds what the log has lost; it is set aside", file=kept.path.name, kept_as=name)
        self._rename(kept.path.name, name)

    def take(self, standby: Standby) -> tuple[int, bytes]:
        """The standby's state now, for `write`. Nothing else may run meanwhile: the state must not change."""
        return standby.position.batch, b"".join(dump(standby.state, standby.position, now_ms()))

    def write(self, batch: int, content: bytes, proven: bool = True) -> Kept:
        """Blocking. SnapshotFailed (a full disk) leaves the older ones as they were. Not `proven`: its last batch is
        not durable yet, so that it counts only after `prove`."""
        if self.directory is None:
            raise SnapshotFailed("no data directory is set, so no snapshot can be kept; give --data-dir")
        head = verify(content)
        if head.batch != batch:
            raise CorruptSnapshot(f"it is of batch {head.batch}, and {batch} was asked for")
        name = file_name(head.log_id, batch)
        self._put(name if proven else name + UNPROVEN, content)
        self._forget_old(head.log_id)
        return Kept(head.log_id, batch, self.directory / name, len(content))

    def prove(self, log_id: int, batch: int) -> None:
        """Let it count from now on, because its last batch is durable."""
        name = file_name(log_id, batch)
        self._rename(name + UNPROVEN, name)
        self._forget_old(log_id)

    def _forget_old(self, log_id: int) -> None:
        for old in self.kept(log_id)[KEPT:]:
            self._delete(old.path.name)

    @property
    def followed(self) -> int:
        """The history that this master has followed last; 0 if unknown."""
        if self.directory is None:
            return 0
        try:
            return int(self._part(FOLLOWED, 0, 17), 16)
        except (OSError, ValueError):  # It is missing or unreadable: the snapshots may tell.
            return 0

    def note_followed(self, log_id: int) -> None:
        """Blocking. Note the history, for a master without a snapshot: its next start must know that there was one."""
        if self.directory is not None and self.followed != log_id:
            self._put(FOLLOWED, f"{log_id:016x}\n".encode())

    def piece(self, log_id: int, batch: int, offset: int) -> SnapshotPiece:
        """Part of a snapshot of that history, for a master that asks for it; batch 0 asks for the newest."""
        chosen = next((one for one in self.kept(log_id) if batch in (0, one.batch)), None)
        if chosen is None or offset < 0:
            return SnapshotPiece(0, 0, b"")
        content = self._part(chosen.path.name, offset, PIECE_BYTES)
        return SnapshotPiece(chosen.batch, chosen.size_bytes, content, log_id)

    def unshared(self, log_id: int) -> bool:
        """Is there something for `share` to do?"""
        return False

    def share(self, log_id: int) -> None:
        """Blocking. Put a copy of the newest of that history into the shared place, if there is one."""

    def trim_through(self, log_id: int) -> int:
        """The batch through which the log of that history may be trimmed: that of the older of its last two snapshots;
        0 while there are fewer than two."""
        kept = self.kept(log_id)
        return kept[1].batch if len(kept) > 1 else 0

    def are_sound(self, log_id: int, since: int) -> bool:
        """Blocking. Whether all snapshots of that history from that batch on are intact. It reads each file whole, and
        sets spoiled ones aside."""
        sound = [self._is_sound(one) for one in self.kept(log_id) if one.batch >= since]
        return all(sound)

    def _is_sound(self, kept: Kept) -> bool:
        try:
            self._head(kept.path.name)  # It must be of the history that its name says.
            verify(self.content(kept))
        except (CorruptSnapshot, OSError) as error:
            self._set_aside(kept.path.name, error)
            return False
        return True

    # The files.

    def _at(self, name: str) -> Path:
        assert self.directory is not None, "nothing is kept without a directory"
        return self.directory / name

    def _files(self) -> list[tuple[str, int]]:
        """Name and size of every file. A directory that was deleted is made again, for the next snapshot."""
        directory = self._at("")
        found = []
        try:
            for path in directory.iterdir():
                with contextlib.suppress(FileNotFoundError):  # It was removed just now.
                    found.append((path.name, path.stat().st_size))
        except FileNotFoundError:
            private_directory(directory)
            log.error("the directory of the snapshots was deleted; it is made again, and is empty", path=str(directory))
        return sorted(found)

    def content(self, kept: Kept) -> bytes:
        """Blocking. The bytes of the file."""
        return self._part(kept.path.name, 0, kept.size_bytes)

    def _part(self, name: str, offset: int, length: int) -> bytes:
        with self._at(name).open("rb") as file:
            there = os.fstat(file.fileno()).st_size
            file.seek(offset)
            return file.read(min(length, max(0, there - offset)))  # A spoiled file may claim any length.

    def _put(self, name: str, content: bytes) -> None:
        partial = self._at(name + ".partial")
        try:
            with partial.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(self._at(name))
            folder = os.open(partial.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as error:
            with contextlib.suppress(OSError):  # It may not even exist.
                partial.unlink()
            raise SnapshotFailed(f"{self._at(name)} could not be written: {error.strerror}") from None

    def _rename(self, old: str, new: str) -> None:
        self._at(old).replace(self._at(new))

    def _delete(self, name: str) -> None:
        self._at(name).unlink()

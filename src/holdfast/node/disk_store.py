"""The files of one disk: an object each, named by its place, written beside and renamed: whole or not there.

A file begins with a header that says which object of which history it is and what its checksum is. Nothing is
synchronised to the platters: this is a cache, and a process that dies loses nothing that the kernel holds. A machine
that dies may: the disk notes under which boot of the kernel it was written, and under another one every file's bytes
are checked before it counts. A file that is torn, foreign or not in the log is deleted (I7, I18).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import struct
import threading
from bisect import bisect_right, insort
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import structlog
import xxhash

from holdfast.entropy import fresh_id
from holdfast.errors import BadValue, HoldfastError, Refused, UnknownSegment
from holdfast.ids import ObjectId

HEADER = struct.Struct("<8sIIQQQQQQ")
"""magic, version, unused, log, object, offset, size, checksum of the bytes, checksum of what stands before"""
MAGIC = b"HOLDFILE"
VERSION = 1
CHUNK = 1 << 20
FOLDERS = 256
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS})
"""After these, what is there can still be read."""

log = structlog.get_logger("holdfast.node")


class DiskTrouble(HoldfastError):
    """The disk did not do what it was told. `readable`: what it holds may still be read."""

    code = "disk_trouble"

    def __init__(self, what: str, error: OSError) -> None:
        super().__init__(f"{what}: {error.strerror or error}")
        self.readable = error.errno in _FULL


@dataclass(frozen=True, slots=True)
class StoredFile:
    oid: ObjectId
    offset: int
    size_bytes: int


class Files:
    """What the store asks of the operating system; a test may let it fail."""

    def write(self, path: Path, pieces: list[bytes | memoryview]) -> None:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            for piece in pieces:
                rest = memoryview(piece).cast("B")
                while rest:
                    rest = rest[os.write(descriptor, rest[: 16 * CHUNK]) :]
        finally:
            os.close(descriptor)

    def read(self, path: Path, start: int, target: memoryview) -> int:
        """How much was read; less than asked for only at the end of the file."""
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            done = 0
            while done < len(target) and (count := os.preadv(descriptor, [target[done:]], start + done)):
                done += count
            return done
        finally:
            os.close(descriptor)


class DiskStore:
    """Open from `open` until `close`; one process at a time. Threads may read while one writes."""

    def __init__(self, directory: Path, files: Files | None = None) -> None:
        self.directory = directory
        self.disk = 0
        self.log_id = 0
        """The history that the files belong to; 0 while there is none."""
        self._files = files if files is not None else Files()
        self._lock = threading.Lock()
        self._stored: dict[int, StoredFile] = {}
        self._starts: list[int] = []
        self._locked: int | None = None

    @classmethod
    def open(cls, directory: Path, kernel_boot: str, files: Files | None = None) -> DiskStore:
        """Take the directory, make it a disk if it is none, and find what it holds."""
        store = cls(directory, files)
        try:
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            store._take()
            verified = store._identify(kernel_boot)
            for number in range(FOLDERS):
                store._folder(number).mkdir(parents=True, exist_ok=True)
            for path in (directory / "drafts").glob("*"):
                path.unlink()
            (directory / "drafts").mkdir(exist_ok=True)
            store._find(not verified)
            store._write_identity(kernel_boot)
        except OSError as error:
            store.close()
            raise Refused(f"the directory {directory} cannot be used as a disk ({error}); choose another") from None
        except BaseException:
            store.close()
            raise
        return store

    def close(self) -> None:
        if self._locked is not None:
            os.close(self._locked)
            self._locked = None

    def _take(self) -> None:
        self._locked = os.open(self.directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._locked, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Refused(
                f"another node uses the disk in {self.directory}; give this one a directory of its own"
            ) from None

    def _identify(self, kernel_boot: str) -> bool:
        """Which disk this is. True: everything on it was written under this boot of the kernel."""
        path = self.directory / "disk.json"
        try:
            facts = json.loads(path.read_text(encoding="utf-8"))
            self.disk, self.log_id = int(facts["disk"], 16), int(facts["log_id"], 16)
        except FileNotFoundError:
            self.disk = fresh_id()
            return True
        except (ValueError, KeyError, TypeError):
            log.warning("the disk's identity cannot be read, so nothing on it is known", path=str(path))
            self.disk = fresh_id()
            return True
        return bool(facts.get("kernel_boot") == kernel_boot)

    def _write_identity(self, kernel_boot: str) -> None:
        self._kernel_boot = kernel_boot
        draft = self.directory / "disk.json.draft"
        facts = {"disk": f"{self.disk:016x}", "log_id": f"{self.log_id:016x}", "kernel_boot": kernel_boot}
        draft.write_text(json.dumps(facts) + "\n", encoding="utf-8")
        draft.replace(self.directory / "disk.json")

    def belongs_to(self, log_id: int) -> None:
        """From now on the files are of this history."""
        if log_id != self.log_id:
            self.log_id = log_id
            self._write_identity(self._kernel_boot)

    def empty(self) -> None:
        """Delete everything: it is a new disk, under a new id."""
        for stored in self.stored():
            self.forget(stored.oid, stored.offset)
        self.disk = fresh_id()
        self.log_id = 0
        self._write_identity(self._kernel_boot)

    def stored(self) -> list[StoredFile]:
        with self._lock:
            return list(self._stored.values())

    def write(self, oid: ObjectId, offset: int, data: memoryview, checksum: int) -> None:
        """The object at this place; it takes the place of a file that was there."""
        draft = self.directory / "drafts" / f"{offset:x}"
        try:
            self._files.write(draft, [self._header(oid, offset, len(data), checksum), data])
            draft.replace(self._path(offset))
        except OSError as error:
            with contextlib.suppress(OSError):  # The first error says more.
                draft.unlink(missing_ok=True)
            raise DiskTrouble(f"an object could not be written to {self.directory}", error) from None
        with self._lock:
            if offset not in self._stored:
                insort(self._starts, offset)
            self._stored[offset] = StoredFile(oid, offset, len(data))

    def read_into(self, offset: int, target: memoryview) -> None:
        """Bytes at a place on the disk, which may be in the middle of an object."""
        with self._lock:
            at = bisect_right(self._starts, offset) - 1
            stored = self._stored.get(self._starts[at]) if at >= 0 else None
        if stored is None or offset + len(target) > stored.offset + stored.size_bytes:
            raise UnknownSegment(
                f"the disk holds no object at {offset:,} (any more); ask the master where the bytes are"
            )
        path = self._path(stored.offset)
        try:
            count = self._files.read(path, HEADER.size + offset - stored.offset, target)
        except FileNotFoundError:
            raise UnknownSegment(f"the file at {offset:,} is gone; ask the master where the bytes are") from None
        except OSError as error:
            raise DiskTrouble(f"an object could not be read from {self.directory}", error) from None
        if count != len(target):
            raise BadValue(f"the file at {offset:,} is shorter than it was; its object cannot be read")

    def forget(self, oid: ObjectId, offset: int) -> bool:
        """Delete the file at this place, if it still is that object's."""
        with self._lock:
            stored = self._stored.get(offset)
            if stored is None or stored.oid != oid:
                return False
            del self._stored[offset]
            self._starts.pop(bisect_right(self._starts, offset) - 1)
        # One that cannot be deleted is found again at the next start.
        with contextlib.suppress(OSError):
            self._path(offset).unlink(missing_ok=True)
        return True

    def _folder(self, number: int) -> Path:
        return self.directory / "objects" / f"{number:02x}"

    def _path(self, offset: int) -> Path:
        return self._folder((offset >> 12) % FOLDERS) / f"{offset:x}"

    def _header(self, oid: ObjectId, offset: int, size: int, checksum: int) -> bytes:
        packed = HEADER.pack(MAGIC, VERSION, 0, self.log_id, oid, offset, size, checksum, 0)
        return packed[:-8] + struct.pack("<Q", xxhash.xxh3_64_intdigest(packed[:-8]))

    def _find(self, verify: bool) -> None:
        for number in range(FOLDERS):
            for path in sorted(self._folder(number).iterdir()):
                stored = self._recognise(path, verify)
                if stored is None:
                    path.unlink(missing_ok=True)
                else:
                    self._stored[stored.offset] = stored
        self._starts = sorted(self._stored)

    def _recognise(self, path: Path, verify: bool) -> StoredFile | None:
        """What the file holds; None if it is torn, altered, of another history or not where it belongs."""
        head = memoryview(bytearray(HEADER.size))
        try:
            size_on_disk = path.stat().st_size
            if self._files.read(path, 0, head) != HEADER.size:
                return None
            magic, version, _, log_id, oid, offset, size, checksum, own = HEADER.unpack(head)
            sound = own == xxhash.xxh3_64_intdigest(head[:-8]) and (magic, version) == (MAGIC, VERSION)
            if not sound or log_id != self.log_id or path != self._path(offset) or size_on_disk != HEADER.size + size:
                return None
            if verify and checksum and checksum != (self._digest(path, size) or 1):
                return None
        except OSError as error:
            log.warning("a file on the disk cannot be read and is left out", path=str(path), reason=str(error))
            return None
        return StoredFile(oid, offset, size)

    def _digest(self, path: Path, size: int) -> int:
        digest = xxhash.xxh3_64()
        for piece in self._pieces(path, size):
            digest.update(piece)
        return digest.intdigest()

    def _pieces(self, path: Path, size: int) -> Iterator[memoryview]:
        room = memoryview(bytearray(min(size, CHUNK)))
        for start in range(0, size, CHUNK):
            piece = room[: min(CHUNK, size - start)]
            self._files.read(path, HEADER.size + start, piece)
            yield piece

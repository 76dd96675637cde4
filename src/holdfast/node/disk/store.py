"""The files of one disk: one per object, named by its place, written under another name and renamed, so never partial.

A file begins with a header that names its object and history and holds its checksum. There is no fsync: this is a
cache, and when a process dies the kernel keeps its writes. When a machine dies they may be lost: the disk notes under
which boot of the kernel it was written, and under another one every file's bytes are checked before it counts. A file
that is torn, foreign or not in the log is deleted (I7, I18).

Every read checks the file's length and header, and the bytes too if it reads a whole object of up to `CHUNK`. A file
that fails is a `DamagedFile`, which loses that object; a directory that is no longer this disk is `DiskTrouble`, which
loses none: a disk that was unmounted must not look like a disk whose files are all lost.
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
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import structlog
import xxhash

from holdfast.entropy import fresh_id
from holdfast.errors import Refused, ReplicaLost, TryAgain, UnknownSegment
from holdfast.ids import ObjectId
from holdfast.messages.of_nodes import Damage
from holdfast.private_files import private_directory

HEADER = struct.Struct("<8sIIQQQQQQ")
"""magic, version, unused, log, object, offset, size, checksum of the bytes, checksum of the fields before"""
MAGIC = b"HOLDFILE"
VERSION = 1
CHUNK = 1 << 20
FOLDERS = 256
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS})
"""After these errors, existing files can still be read."""
_OF_ONE_FILE = frozenset(
    {errno.EIO, errno.EISDIR, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.ELOOP, errno.EUCLEAN, errno.EBADMSG}
)
"""A read error of this kind means that the file is damaged."""
_PASSING = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR, errno.EAGAIN})
"""A read error of this kind is temporary, and says nothing about the file or the disk."""
MOST_UNREADABLE = 16
"""If the device refuses to read more files than this, the device itself is broken."""

log = structlog.get_logger("holdfast.node")


class DiskTrouble(ReplicaLost):
    """The disk failed an operation. `readable`: its files may still be read."""

    def __init__(self, what: str, error: OSError) -> None:
        super().__init__(f"{what}: {error.strerror or error}")
        self.readable = error.errno in _FULL


@dataclass(frozen=True, slots=True)
class StoredFile:
    oid: ObjectId
    offset: int
    size_bytes: int


class DamagedFile(ReplicaLost):
    """One file is missing or wrong; the rest of the disk is fine."""

    def __init__(self, stored: StoredFile, damage: Damage, why: str) -> None:
        super().__init__(f"the file at {stored.offset:,} cannot be used ({why}); ask the master for another replica")
        self.stored = stored
        self.damage = damage


class Files:
    """The store's view of the operating system; a test may make it fail, and the simulator keeps files in a dict."""

    def take(self, directory: Path) -> int | None:
        """Make the directory if there is none, and take its lock; None: another process holds it."""
        private_directory(directory)
        lock = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            return None
        except BaseException:
            os.close(lock)
            raise
        return lock

    def release(self, lock: int) -> None:
        os.close(lock)

    def names(self, directory: Path) -> list[Path]:
        """The entries of the directory, in order; none if it does not exist."""
        return sorted(directory.iterdir()) if directory.is_dir() else []

    def is_in_place(self, directory: Path, lock: int) -> bool:
        """Is this directory still the one whose lock file is open here?"""
        try:
            there, locked = (directory / "lock").stat(), os.fstat(lock)
        except OSError:
            return False
        return (there.st_dev, there.st_ino) == (locked.st_dev, locked.st_ino)

    def size(self, path: Path) -> int:
        return path.stat().st_size

    def replace(self, draft: Path, path: Path) -> None:
        """Rename, also if the target folder has been deleted."""
        try:
            draft.replace(path)
        except FileNotFoundError:
            path.parent.mkdir(parents=True, exist_ok=True)
            draft.replace(path)

    def delete(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def write(self, path: Path, pieces: list[bytes | memoryview]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            for piece in pieces:
                rest = memoryview(piece).cast("B")
                while rest:
                    rest = rest[os.write(descriptor, rest[: 16 * CHUNK]) :]
        finally:
            os.close(descriptor)

    def read(self, path: Path, start: int, target: memoryview) -> int:
        """Read into the target. Returns the number of bytes; fewer than asked for only at the end of the file."""
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            done = 0
            while done < len(target) and (count := os.preadv(descriptor, [target[done:]], start + done)):
                done += count
            return done
        finally:
            os.close(descriptor)


class DiskStore:
    """In use from `open` until `close`, by one process at a time. Threads may read while one writes."""

    def __init__(self, directory: Path, files: Files | None = None) -> None:
        self.directory = directory
        self.disk = 0
        self.log_id = 0
        """The history that the files belong to; 0 while there is none."""
        self.files = files if files is not None else Files()
        self._lock = threading.Lock()
        self._stored: dict[int, StoredFile] = {}
        self._starts: list[int] = []
        self._locked: int | None = None
        self._unreadable: set[int] = set()

    @classmethod
    def open(cls, directory: Path, kernel_boot: str, files: Files | None = None) -> DiskStore:
        """Lock the directory, make it a disk if it is none, and find its files."""
        store = cls(directory, files)
        try:
            store._take()
            verified = store._identify(kernel_boot)
            for path in store.files.names(directory / "drafts"):
                store.files.delete(path)
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
            self.files.release(self._locked)
            self._locked = None

    def _take(self) -> None:
        self._locked = self.files.take(self.directory)
        if self._locked is None:
            raise Refused(f"another node uses the disk in {self.directory}; give this one a directory of its own")

    def _identify(self, kernel_boot: str) -> bool:
        """Read the disk's id, or make one. True: everything on it was written under this boot of the kernel."""
        path = self.directory / "disk.json"
        try:
            content = memoryview(bytearray(self.files.size(path)))
            facts = json.loads(bytes(content[: self.files.read(path, 0, content)]))
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
        self.files.write(draft, [json.dumps(facts).encode() + b"\n"])
        self.files.replace(draft, self.directory / "disk.json")

    def belongs_to(self, log_id: int) -> None:
        """Note that the files belong to this history from now on."""
        if log_id != self.log_id:
            self.log_id = log_id
            self._write_identity(self._kernel_boot)

    def empty(self) -> None:
        """Delete everything: it becomes a new disk, with a new id."""
        for stored in self.stored():
            self.forget(stored.oid, stored.offset)
        self.disk = fresh_id()
        self.log_id = 0
        self._write_identity(self._kernel_boot)

    def stored(self) -> list[StoredFile]:
        with self._lock:
            return list(self._stored.values())

    def write(self, oid: ObjectId, offset: int, data: memoryview, checksum: int) -> None:
        """Write the object at this place, replacing a file that was there."""
        self.check_in_place()
        draft = self.directory / "drafts" / f"{offset:x}"
        try:
            self.files.write(draft, [self._header(oid, offset, len(data), checksum), data])
            self.files.replace(draft, self.path_of(offset))
        except OSError as error:
            with contextlib.suppress(OSError):  # The first error says more.
                self.files.delete(draft)
            raise DiskTrouble(f"an object could not be written to {self.directory}", error) from None
        with self._lock:
            if offset not in self._stored:
                insort(self._starts, offset)
            self._stored[offset] = StoredFile(oid, offset, len(data))

    def read_into(self, offset: int, target: memoryview) -> None:
        """Read bytes at a place on the disk, which may be in the middle of an object."""
        stored = self._around(offset)
        if stored is None or offset + len(target) > stored.offset + stored.size_bytes:
            raise UnknownSegment(
                f"the disk holds no object at {offset:,} (any more); ask the master where the bytes are"
            )
        whole = len(target) == stored.size_bytes and len(target) <= CHUNK
        self._examined(stored, lambda: self._fill(stored, offset - stored.offset, target, whole))

    def check(self, offset: int, checksum: int = 0) -> int:
        """Read the whole file of the object around this place: DamagedFile if it has changed, or has another checksum
        than this one. Returns the object's size."""
        stored = self._around(offset)
        if stored is None:
            raise UnknownSegment(f"the disk holds no object at {offset:,} (any more); nothing was checked")
        self._examined(stored, lambda: self._compare(stored, checksum))
        return stored.size_bytes

    def check_size(self, offset: int) -> None:
        """As `check`, but compare only the file's length."""
        stored = self.at(offset)
        if stored is not None:
            self._examined(stored, lambda: self._measure(stored))

    def at(self, offset: int) -> StoredFile | None:
        """The object whose place begins here."""
        with self._lock:
            return self._stored.get(offset)

    def _around(self, offset: int) -> StoredFile | None:
        with self._lock:
            at = bisect_right(self._starts, offset) - 1
            return self._stored.get(self._starts[at]) if at >= 0 else None

    def check_in_place(self) -> None:
        """DiskTrouble if the directory is no longer this disk."""
        if self._locked is not None and not self.files.is_in_place(self.directory, self._locked):
            gone = OSError(errno.ENOENT, "it was unmounted, moved or replaced by another one")
            raise DiskTrouble(f"the disk is not at {self.directory} any more", gone)

    def _examined(self, stored: StoredFile, look: Callable[[], None]) -> None:
        """Run a check of a file, and sort its errors: of the file, of the whole disk, or temporary."""
        try:
            look()
            return
        except FileNotFoundError as error:
            damaged = DamagedFile(stored, Damage.MISSING, f"it is gone: {error.strerror}")
        except DamagedFile as error:
            damaged = error
        except OSError as error:
            if error.errno in _PASSING:
                raise TryAgain(f"an object cannot be read at the moment ({error.strerror}); ask again") from None
            self._unreadable.add(stored.offset)
            if error.errno not in _OF_ONE_FILE or len(self._unreadable) > MOST_UNREADABLE:
                raise DiskTrouble(f"an object could not be read from {self.directory}", error) from None
            damaged = DamagedFile(stored, Damage.UNREADABLE, str(error.strerror))
        self.check_in_place()
        if self.at(stored.offset) != stored:  # This node itself has deleted or replaced it meanwhile.
            raise UnknownSegment("the object has left the disk; ask the master where the bytes are")
        raise damaged

    def _measure(self, stored: StoredFile) -> None:
        found, wanted = self.files.size(self.path_of(stored.offset)), HEADER.size + stored.size_bytes
        if found != wanted:
            raise DamagedFile(stored, Damage.WRONG_SIZE, f"it has {found:,} bytes and not {wanted:,}")

    def _checksum_of(self, stored: StoredFile) -> int:
        """The checksum in the file's header, which must be the one that was written."""
        self._measure(stored)
        head = memoryview(bytearray(HEADER.size))
        self.files.read(self.path_of(stored.offset), 0, head)
        checksum = int(HEADER.unpack(head)[7])
        if head != self._header(stored.oid, stored.offset, stored.size_bytes, checksum):
            raise DamagedFile(stored, Damage.SPOILED, "its header is not the one that was written")
        return checksum

    def _fill(self, stored: StoredFile, start: int, target: memoryview, whole: bool) -> None:
        checksum = self._checksum_of(stored)
        if self.files.read(self.path_of(stored.offset), HEADER.size + start, target) != len(target):
            raise DamagedFile(stored, Damage.WRONG_SIZE, "it became shorter while it was read")
        if whole and checksum != (xxhash.xxh3_64_intdigest(target) or 1):
            raise DamagedFile(stored, Damage.SPOILED, "its bytes do not match their checksum")

    def _compare(self, stored: StoredFile, wanted: int) -> None:
        checksum = self._checksum_of(stored)
        if wanted and checksum != wanted:
            raise DamagedFile(stored, Damage.SPOILED, "by its checksum it holds other bytes than the log says")
        if checksum != (self._digest(self.path_of(stored.offset), stored.size_bytes) or 1):
            raise DamagedFile(stored, Damage.SPOILED, "its bytes do not match their checksum")

    def forget(self, oid: ObjectId, offset: int) -> bool:
        """Delete the file at this place, if it is still that object's."""
        with self._lock:
            stored = self._stored.get(offset)
            if stored is None or stored.oid != oid:
                return False
            del self._stored[offset]
            self._starts.pop(bisect_right(self._starts, offset) - 1)
        # A file that cannot be deleted is found again at the next start.
        with contextlib.suppress(OSError):
            self.files.delete(self.path_of(offset))
        return True

    def _folder(self, number: int) -> Path:
        return self.directory / "objects" / f"{number:02x}"

    def path_of(self, offset: int) -> Path:
        return self._folder((offset >> 12) % FOLDERS) / f"{offset:x}"

    def _header(self, oid: ObjectId, offset: int, size: int, checksum: int) -> bytes:
        packed = HEADER.pack(MAGIC, VERSION, 0, self.log_id, oid, offset, size, checksum, 0)
        return packed[:-8] + struct.pack("<Q", xxhash.xxh3_64_intdigest(packed[:-8]))

    def _find(self, verify: bool) -> None:
        for number in range(FOLDERS):
            for path in self.files.names(self._folder(number)):
                stored = self._recognise(path, verify)
                if stored is None:
                    self._delete_stray(path)
                else:
                    self._stored[stored.offset] = stored
        self._starts = sorted(self._stored)

    def _recognise(self, path: Path, verify: bool) -> StoredFile | None:
        """The object in the file; None if it is torn, altered, of another history or not where it belongs."""
        head = memoryview(bytearray(HEADER.size))
        try:
            size_on_disk = self.files.size(path)
            if self.files.read(path, 0, head) != HEADER.size:
                return None
            magic, version, _, log_id, oid, offset, size, checksum, own = HEADER.unpack(head)
            sound = own == xxhash.xxh3_64_intdigest(head[:-8]) and (magic, version) == (MAGIC, VERSION)
            if not sound or log_id != self.log_id or path != self.path_of(offset) or size_on_disk != HEADER.size + size:
                return None
            if verify and checksum and checksum != (self._digest(path, size) or 1):
                return None
        except OSError as error:
            if error.errno not in _OF_ONE_FILE:
                raise  # Then nothing is known about the other files either, and none of them is deleted.
            log.warning("a file on the disk cannot be read and is left out", path=str(path), reason=str(error))
            return None
        return StoredFile(oid, offset, size)

    def _delete_stray(self, path: Path) -> None:
        """Delete a file that belongs to no object. Anything else that somebody put there is left alone."""
        try:
            self.files.delete(path)
        except (IsADirectoryError, PermissionError) as error:
            log.warning("this does not belong on the disk and is left alone", path=str(path), reason=str(error))

    def _digest(self, path: Path, size: int) -> int:
        digest = xxhash.xxh3_64()
        for piece in self._pieces(path, size):
            digest.update(piece)
        return digest.intdigest()

    def _pieces(self, path: Path, size: int) -> Iterator[memoryview]:
        room = memoryview(bytearray(min(size, CHUNK)))
        for start in range(0, size, CHUNK):
            piece = room[: min(CHUNK, size - start)]
            self.files.read(path, HEADER.size + start, piece)
            yield piece

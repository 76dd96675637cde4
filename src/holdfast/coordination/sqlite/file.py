"""The SQLite file: opening it, its tables, and the meaning of its errors.

WAL mode, so that readers never wait for the writer; `synchronous=FULL`, so that a batch is on the disk when its
append returns. Errors are sorted by what they mean for the caller: nothing was written, or it is unknown.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sqlite3
from pathlib import Path
from urllib.parse import quote

from holdfast.coordination.interface import CoordinationLost, StoreFull
from holdfast.coordination.sqlite.process_proof import writer_of
from holdfast.coordination.sqlite.published import NEWS_SCHEMA
from holdfast.errors import BadValue, HoldfastError, ReplyLost, WrongVersion
from holdfast.private_files import close_to_others

SCHEMA_VERSION = 1
FILES = ("", "-wal", "-shm")
CHECKPOINT_PAGES = 2000
WAL_LIMIT_BYTES = 64 << 20
WAL_READY_BYTES = 9 << 20
"""Size of the write-ahead log between two checkpoints, and a little more."""

SCHEMA = """
CREATE TABLE IF NOT EXISTS "term {cluster}" (
    one INTEGER PRIMARY KEY CHECK (one = 1), epoch INTEGER NOT NULL, address TEXT NOT NULL,
    resigned INTEGER NOT NULL, doubtful INTEGER NOT NULL, beat INTEGER NOT NULL, process BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS "log {cluster}" (
    number INTEGER PRIMARY KEY, epoch INTEGER NOT NULL, batch BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS "published {cluster}" (
    name TEXT PRIMARY KEY, value BLOB NOT NULL, boot TEXT NOT NULL, until_ms INTEGER);
"""


class StoreMoved(CoordinationLost):
    """The database, its log or its index is no longer the file that this process has open: others do not see what is
    written to it. Nothing that was written since may be acknowledged."""

    code = "store_moved"


class OpenFiles:
    """The files of one connection, as the file system knew them when they were opened.

    They are examined by name only. Opening one and closing it again would release all locks that this process has on
    it. An inode number is not reused while a connection keeps the old file open.
    """

    def __init__(self, path: Path) -> None:
        self._paths = [f"{path}{suffix}" for suffix in FILES]
        self._known: dict[str, tuple[int, int]] = {}

    def note(self) -> None:
        """Note the files that exist by now: SQLite makes the other two with the first transaction in WAL mode."""
        if len(self._known) < len(self._paths):
            for path in self._paths:
                if path not in self._known and (found := _file_at(path)) is not None:
                    self._known[path] = found

    def moved(self) -> str:
        """A text that names one that was deleted or replaced; empty while all are where they were."""
        for path, known in self._known.items():
            found = _file_at(path)
            if found != known:
                return f"{path} was {'deleted' if found is None else 'replaced by another file'} while it was in use"
        return ""


def _file_at(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def abandon(connection: sqlite3.Connection) -> None:
    """Never close it. SQLite would remove its log and index by their names, which may be another database's now."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))


def connect(path: Path, busy_s: float, synchronous: str, creates: bool) -> sqlite3.Connection:
    mode = "rwc" if creates else "rw"
    # Without an (empty) authority, a path that begins with two slashes would be read as one.
    scheme = "file://" if path.is_absolute() else "file:"
    for suffix in FILES:
        close_to_others(Path(f"{path}{suffix}"))
    try:
        connection = sqlite3.connect(
            f"{scheme}{quote(str(path))}?mode={mode}",
            timeout=busy_s,
            isolation_level=None,
            check_same_thread=False,
            uri=True,
        )
    except sqlite3.OperationalError as error:
        if not creates and not path.exists():
            raise StoreMoved(
                f"{path} is gone, and no other is begun while this master runs; nothing was written. Put the file "
                "back, or restart the masters and decide there whether to restore"
            ) from error
        raise CoordinationLost(f"cannot open {path}: {error}; check that its directory exists") from error
    connection.execute(f"PRAGMA synchronous={synchronous}")
    connection.execute(f"PRAGMA wal_autocheckpoint={CHECKPOINT_PAGES}")
    connection.execute(f"PRAGMA journal_size_limit={WAL_LIMIT_BYTES}")
    # A first read opens the other two files: from here on no other process that closes the database may remove them.
    connection.execute("PRAGMA schema_version").fetchone()
    return connection


def prepare(connection: sqlite3.Connection, cluster: str) -> None:
    """Make the tables if they are missing. Nothing is written otherwise: a stopped leader may hold the write lock."""
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version > SCHEMA_VERSION:
        raise WrongVersion(f"the database was written by a newer holdfast (version {version}, here {SCHEMA_VERSION})")
    known = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if {f"term {cluster}", f"log {cluster}", f"published {cluster}", f"news {cluster}"} <= known:
        return
    if connection.execute("PRAGMA journal_mode=WAL").fetchone()[0] != "wal":
        raise BadValue("the database cannot be put into WAL mode: is it on a network file system?")
    connection.executescript(f"BEGIN IMMEDIATE; {(SCHEMA + NEWS_SCHEMA).format(cluster=cluster)} COMMIT")
    connection.execute(f"PRAGMA user_version={SCHEMA_VERSION}")


def lay_out_wal(connection: sqlite3.Connection, path: Path) -> None:
    """Give the write-ahead log its size before it is needed.

    A commit that makes a file longer also waits for the file system's journal, which doubles its time. SQLite does not
    take the zeros after the end for frames; nobody else can append while this holds the write lock.
    """
    wal = Path(f"{path}-wal")
    # This is only for speed: the next batch reports a full disk, or a writer that keeps the lock.
    with contextlib.suppress(OSError, sqlite3.Error):
        disk = os.statvfs(path.parent)
        if wal.stat().st_size >= WAL_READY_BYTES or disk.f_bavail * disk.f_frsize < 4 * WAL_READY_BYTES:
            return
        connection.execute("BEGIN IMMEDIATE")
        try:
            _lengthen(wal)
        finally:
            # The lock must be released even if the disk is full.
            connection.execute("ROLLBACK")


def _lengthen(wal: Path) -> None:
    with wal.open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        try:
            file.write(bytes(max(0, WAL_READY_BYTES - size)))
            file.flush()
            os.fsync(file.fileno())
        except OSError:
            file.truncate(size)
            raise


def translated(error: sqlite3.Error, path: Path) -> HoldfastError:
    name = getattr(error, "sqlite_errorname", "")
    if name == "SQLITE_FULL":
        return StoreFull(f"the disk of {path} is full; nothing was written; free some space there")
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        writer = writer_of(path)
        who = f"process {writer}" if writer is not None else "another process"
        return CoordinationLost(f"{who} keeps {path} locked; nothing was written")
    if name.startswith("SQLITE_IOERR"):
        return ReplyLost(f"the disk of {path} fails ({error}); the last write may or may not be there")
    if name in ("SQLITE_NOTADB", "SQLITE_CORRUPT"):
        return BadValue(f"{path} is not a sound database: {error}")
    return CoordinationLost(f"{path} cannot be used: {error}; nothing was written")

"""One SQLite file and the threads that speak to it, each with a connection of its own.

WAL mode, so that readers never wait for the writer; `synchronous=FULL`, so that a batch is on the disk when its
append returns. Every failure is told apart by what it means for the caller: nothing written, or not known.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from holdfast.coordination.interface import CoordinationLost
from holdfast.coordination.process_proof import writer_of
from holdfast.errors import BadValue, HoldfastError, ReplyLost, WrongVersion

SCHEMA_VERSION = 1
CHECKPOINT_PAGES = 2000
WAL_LIMIT_BYTES = 64 << 20

Result = TypeVar("Result")

SCHEMA = """
CREATE TABLE IF NOT EXISTS "term {cluster}" (
    one INTEGER PRIMARY KEY CHECK (one = 1), epoch INTEGER NOT NULL, address TEXT NOT NULL,
    resigned INTEGER NOT NULL, doubtful INTEGER NOT NULL, beat INTEGER NOT NULL, process BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS "log {cluster}" (
    number INTEGER PRIMARY KEY, epoch INTEGER NOT NULL, batch BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS "published {cluster}" (
    name TEXT PRIMARY KEY, value BLOB NOT NULL, boot TEXT NOT NULL, until_ms INTEGER);
"""


def connect(path: Path, busy_s: float, synchronous: str) -> sqlite3.Connection:
    try:
        connection = sqlite3.connect(path, timeout=busy_s, isolation_level=None, check_same_thread=False)
    except sqlite3.OperationalError as error:
        raise CoordinationLost(f"cannot open {path}: {error}; check that its directory exists") from error
    connection.execute(f"PRAGMA synchronous={synchronous}")
    connection.execute(f"PRAGMA wal_autocheckpoint={CHECKPOINT_PAGES}")
    connection.execute(f"PRAGMA journal_size_limit={WAL_LIMIT_BYTES}")
    return connection


def prepare(connection: sqlite3.Connection, cluster: str) -> None:
    """Make the tables if they are missing. Nothing is written otherwise: a stopped leader may hold the write lock."""
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version > SCHEMA_VERSION:
        raise WrongVersion(f"the database was written by a newer holdfast (version {version}, here {SCHEMA_VERSION})")
    known = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if {f"term {cluster}", f"log {cluster}", f"published {cluster}"} <= known:
        return
    if connection.execute("PRAGMA journal_mode=WAL").fetchone()[0] != "wal":
        raise BadValue("the database cannot be put into WAL mode: is it on a network file system?")
    connection.executescript(f"BEGIN IMMEDIATE; {SCHEMA.format(cluster=cluster)} COMMIT")
    connection.execute(f"PRAGMA user_version={SCHEMA_VERSION}")


def translated(error: sqlite3.Error, path: Path) -> HoldfastError:
    name = getattr(error, "sqlite_errorname", "")
    if name == "SQLITE_FULL":
        return CoordinationLost(f"the disk of {path} is full; nothing was written; free some space there")
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        writer = writer_of(path)
        who = f"process {writer}" if writer is not None else "another process"
        return CoordinationLost(f"{who} keeps {path} locked; nothing was written")
    if name.startswith("SQLITE_IOERR"):
        return ReplyLost(f"the disk of {path} fails ({error}); the last write may or may not be there")
    if name in ("SQLITE_NOTADB", "SQLITE_CORRUPT"):
        return BadValue(f"{path} is not a sound database: {error}")
    return CoordinationLost(f"{path} cannot be used: {error}; nothing was written")


class Worker:
    """One thread with one connection. Calls are done in the order they were asked for."""

    def __init__(self, path: Path, name: str, busy_s: float, synchronous: str = "FULL") -> None:
        self.path = path
        self._busy_s = busy_s
        self._synchronous = synchronous
        self._connection: sqlite3.Connection | None = None
        self._closed = False
        self._pool = ThreadPoolExecutor(1, thread_name_prefix=f"sqlite-{name}")

    async def run(self, call: Callable[[sqlite3.Connection], Result], wait_s: float | None = None) -> Result:
        """TimeoutError: it was not done within the wait, and may be done yet."""
        pending = asyncio.get_running_loop().run_in_executor(self._pool, self._call, call)
        if wait_s is None:
            return await pending
        async with asyncio.timeout(wait_s):
            return await pending

    async def ask(self, call: Callable[[sqlite3.Connection], Result], wait_s: float) -> Result:
        """A read: when it takes too long, nothing has happened."""
        try:
            return await self.run(call, wait_s)
        except TimeoutError as error:
            raise CoordinationLost(f"{self.path} does not answer within {wait_s:g} s; nothing was changed") from error

    async def change(self, call: Callable[[sqlite3.Connection], Result], wait_s: float) -> Result:
        """A write that may be done twice: when it takes too long, it may have happened."""
        try:
            return await self.run(call, wait_s)
        except TimeoutError as error:
            raise ReplyLost(f"{self.path} does not answer within {wait_s:g} s; it may have been written") from error

    def _call(self, call: Callable[[sqlite3.Connection], Result]) -> Result:
        try:
            if self._connection is None:
                self._connection = connect(self.path, self._busy_s, self._synchronous)
            return call(self._connection)
        except sqlite3.Error as error:
            raise translated(error, self.path) from error
        finally:
            self._leave_transaction()

    def _leave_transaction(self) -> None:
        if self._connection is not None and self._connection.in_transaction:
            self._connection.rollback()

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        await asyncio.get_running_loop().run_in_executor(self._pool, self._disconnect)
        self._pool.shutdown(wait=False)

"""One thread with one connection to the SQLite file, and a queue of calls for it.

An executor would do, but its locks and futures cost as much time as a small batch takes to reach the disk: a thread
that wakes up and finds the interpreter's lock taken has to be woken twice. So a call goes through one queue, the thread
reports completion as its last act before it waits again, and the event loop is free meanwhile, however long the disk
takes. While the disk is quick, a batch may be written at once, by the caller itself (ADR 23).
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple, TypeVar

from holdfast.coordination.interface import CoordinationLost
from holdfast.coordination.sqlite.file import (
    CHECKPOINT_PAGES,
    OpenFiles,
    StoreMoved,
    abandon,
    connect,
    translated,
)
from holdfast.errors import ReplyLost

Result = TypeVar("Result")
AT_ONCE_IN_A_ROW = 500
"""After this many writes by callers, the thread does one, and checkpoints the log of SQLite if that is due."""


class Job(NamedTuple):
    call: Callable[[sqlite3.Connection], Any]
    loop: asyncio.AbstractEventLoop
    answer: asyncio.Future[Any]


class Worker:
    """Runs calls in the order they were made, each outside any transaction of another."""

    def __init__(self, path: Path, name: str, busy_s: float, synchronous: str = "FULL") -> None:
        self.path = path
        self._name = name
        self._busy_s = busy_s
        self._synchronous = synchronous
        self.creates = False
        """Whether a missing file is created: at the first start of a cluster, and never while it runs."""
        self._connection: sqlite3.Connection | None = None
        self._files = OpenFiles(path)
        self._asked: SimpleQueue[Job | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._under_way = 0
        self._at_once = 0
        """Number of calls done in the caller's thread since the last one in this thread."""

    def _put(self, call: Callable[[sqlite3.Connection], Result]) -> asyncio.Future[Result]:
        if self._closed:
            raise CoordinationLost(f"{self.path} was closed here; nothing was written")
        if self._thread is None or not self._thread.is_alive():
            # A daemon thread may be cut off at the process's end without loss: a batch is written completely or not.
            self._thread = threading.Thread(target=self._work, name=f"sqlite-{self._name}", daemon=True)
            self._thread.start()
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Result] = loop.create_future()
        self._under_way += 1
        self._asked.put(Job(call, loop, answer))
        return answer

    async def run(self, call: Callable[[sqlite3.Connection], Result], wait_s: float | None = None) -> Result:
        """Run a call in the thread. TimeoutError: it was not done within the wait, and may still be done."""
        answer = self._put(call)
        if wait_s is None:
            return await answer
        giving_up = asyncio.get_running_loop().call_later(wait_s, _give_up, answer)
        try:
            return await answer
        finally:
            giving_up.cancel()

    async def ask(self, call: Callable[[sqlite3.Connection], Result], wait_s: float) -> Result:
        """Run a read: if it times out, nothing has happened."""
        try:
            return await self.run(call, wait_s)
        except TimeoutError as error:
            raise CoordinationLost(f"{self.path} does not answer within {wait_s:g} s; nothing was changed") from error

    async def change(self, call: Callable[[sqlite3.Connection], Result], wait_s: float) -> Result:
        """Run a write that may be done twice: if it times out, it may have happened."""
        try:
            return await self.run(call, wait_s)
        except TimeoutError as error:
            raise ReplyLost(f"{self.path} does not answer within {wait_s:g} s; it may have been written") from error

    def _work(self) -> None:
        while (asked := self._asked.get()) is not None:
            # A call that was given up before its turn is not begun; one that is given up later is still done.
            result, error = None, None
            try:
                if not asked.answer.cancelled():
                    result = self._call(asked.call)
            except Exception as failure:  # noqa: BLE001 - it goes to the caller.
                error = failure
            try:
                asked.loop.call_soon_threadsafe(self._answer, asked.answer, result, error)
            except RuntimeError:
                return  # The loop is closed: nobody waits for this or anything else.
        self._disconnect()

    def _answer(self, answer: asyncio.Future[Any], result: Any, error: Exception | None) -> None:
        self._under_way -= 1
        if answer.done():
            return  # The caller has given up.
        if error is None:
            answer.set_result(result)
        else:
            answer.set_exception(error)

    def at_once(self, call: Callable[[sqlite3.Connection], None]) -> bool:
        """Do a write in the caller's thread, if nothing else is under way and nobody else writes. False if not done."""
        if self._under_way or self._connection is None or self._at_once >= AT_ONCE_IN_A_ROW:
            return False
        if self._at_once == 0:
            # Here the caller must wait neither for another writer nor for a checkpoint.
            self._connection.execute("PRAGMA busy_timeout=0")
            self._connection.execute("PRAGMA wal_autocheckpoint=0")
        self._at_once += 1
        try:
            call(self._connection)
        except sqlite3.Error as error:
            if getattr(error, "sqlite_errorname", "").startswith("SQLITE_BUSY"):
                return False
            raise translated(error, self.path) from error
        finally:
            self._leave_transaction()
        self._check_files()
        return True

    def _call(self, call: Callable[[sqlite3.Connection], Result]) -> Result:
        try:
            if self._connection is None:
                self._connection = connect(self.path, self._busy_s, self._synchronous, self.creates)
                self._files = OpenFiles(self.path)
                self._files.note()
            if self._at_once:
                self._at_once = 0
                self._connection.execute(f"PRAGMA busy_timeout={round(self._busy_s * 1000)}")
                self._connection.execute(f"PRAGMA wal_autocheckpoint={CHECKPOINT_PAGES}")
            result = call(self._connection)
        except sqlite3.Error as error:
            self._check_files()  # A moved file may be the reason.
            raise translated(error, self.path) from error
        finally:
            self._leave_transaction()
        self._files.note()
        self._check_files()
        return result

    def _check_files(self) -> None:
        """Check, after each call and before its reply, that the files are still in place. Data written to a file that
        no longer has a name is lost with this process, and data read from it says nothing about the cluster (I1). The
        next call connects anew."""
        moved = self._files.moved()
        if moved:
            self._disconnect()
            raise StoreMoved(
                f"{moved}: what was written last is not in the log that others see; nothing is acknowledged"
            )

    def _leave_transaction(self) -> None:
        if self._connection is not None and self._connection.in_transaction:
            self._connection.rollback()

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None and self._files.moved():
            abandon(connection)
        elif connection is not None:
            connection.close()

    async def close(self) -> None:
        """Close it after all earlier calls are done."""
        if self._closed:
            return
        if self._thread is not None:
            ended = self._put(lambda _: self._disconnect())
            self._closed = True
            self._asked.put(None)
            with contextlib.suppress(CoordinationLost):  # Then it is disconnected anyway.
                await ended
        self._closed = True


def _give_up(answer: asyncio.Future[Any]) -> None:
    if not answer.done():
        answer.set_exception(TimeoutError())

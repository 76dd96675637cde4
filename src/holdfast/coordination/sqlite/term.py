"""A term on SQLite: one statement both checks the leader row and writes the batch."""

from __future__ import annotations

import sqlite3

from holdfast.coordination.interface import MIB, Deposed
from holdfast.coordination.sqlite.file import StoreMoved
from holdfast.coordination.sqlite.process_proof import LeaderLock
from holdfast.coordination.sqlite.worker import Worker
from holdfast.coordination.terms import Tenure, TermSeat, append_unknown, check_size, out_of_order


class SqliteTerm(Tenure):
    def __init__(self, seat: TermSeat, writer: Worker, cluster: str, lock: LeaderLock) -> None:
        super().__init__(seat)
        self._writer = writer
        self._cluster = cluster
        self._lock = lock
        self._insert = (
            f'INSERT INTO "log {cluster}" SELECT ?1, ?2, ?3'
            f' WHERE (SELECT epoch FROM "term {cluster}" WHERE resigned = 0) = ?2'
            f' AND (SELECT coalesce(max(number), 0) FROM "log {cluster}") = ?1 - 1'
        )

    def finish(self, reason: str) -> None:
        was_over = self.over
        super().finish(reason)
        if not was_over and reason != "resigned":
            self._lock.release()

    async def _append(self, index: int, batch: bytes) -> None:
        check_size(batch, MIB)
        try:
            await self._writer.run(lambda connection: self._write(connection, index, batch), self._timing.answer_s)
        except StoreMoved as error:
            raise Deposed(str(error)) from error
        except TimeoutError as error:
            raise append_unknown(index, f"no answer from {self._writer.path}") from error

    def _append_at_once(self, index: int, batch: bytes) -> bool:
        try:
            return self._writer.at_once(lambda connection: self._write(connection, index, batch))
        except StoreMoved as error:
            raise Deposed(str(error)) from error

    def _write(self, connection: sqlite3.Connection, index: int, batch: bytes) -> None:
        if connection.execute(self._insert, (index, self.epoch, batch)).rowcount == 1:
            return
        connection.execute("BEGIN")
        if self._holds(connection, index, batch):
            return
        leads = connection.execute(
            f'SELECT 1 FROM "term {self._cluster}" WHERE epoch = ? AND resigned = 0', (self.epoch,)
        ).fetchone()
        if leads is None:
            raise Deposed(f"epoch {self.epoch} leads no more; batch {index} was not written")
        (last,) = connection.execute(f'SELECT coalesce(max(number), 0) FROM "log {self._cluster}"').fetchone()
        raise out_of_order(index, last)

    def _holds(self, connection: sqlite3.Connection, index: int, batch: bytes) -> bool:
        query = f'SELECT epoch, batch FROM "log {self._cluster}" WHERE number = ?'
        return bool(connection.execute(query, (index,)).fetchone() == (self.epoch, batch))

    async def _is_written(self, index: int, batch: bytes) -> bool:
        return await self._writer.ask(lambda connection: self._holds(connection, index, batch), self._timing.answer_s)

    async def _renew(self, ends_doubt: bool) -> None:
        doubt = ", doubtful = 0" if ends_doubt else ""
        change = f'UPDATE "term {self._cluster}" SET beat = beat + 1{doubt} WHERE epoch = ? AND resigned = 0'
        try:
            renewed = await self._change(change)
        except StoreMoved as error:
            raise Deposed(str(error)) from error
        if renewed != 1:
            raise Deposed(f"epoch {self.epoch} leads no more")

    async def _resign(self) -> None:
        change = f'UPDATE "term {self._cluster}" SET resigned = 1 WHERE epoch = ?'
        try:
            await self._change(change)
        finally:
            self._lock.release()

    async def _change(self, statement: str) -> int:
        def change(connection: sqlite3.Connection) -> int:
            return connection.execute(statement, (self.epoch,)).rowcount

        return await self._writer.change(change, self._timing.answer_s)

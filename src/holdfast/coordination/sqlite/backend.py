"""Coordination in one SQLite file, for masters on the same machine: nothing to install, nothing to run.

The leader row is the fence: one statement checks that row and inserts a batch. The leader raises a counter in it, whose
silence others judge by their own clock, and holds a lock on a file that is free the moment its process is dead. A
leader that was stopped while it kept the database locked is killed.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import NamedTuple

import msgspec

from holdfast.coordination import watches
from holdfast.coordination.campaign import Look
from holdfast.coordination.candidate import Candidate
from holdfast.coordination.codec import decode_process_name
from holdfast.coordination.interface import MIB, Batches, Compacted, CoordinationLost, Landmark, Leader, LogBehind
from holdfast.coordination.sqlite.file import WAL_LIMIT_BYTES, lay_out_wal, prepare
from holdfast.coordination.sqlite.process_proof import LeaderLock, is_free, kill_for_sure, writer_of
from holdfast.coordination.sqlite.published import names_after, note_published
from holdfast.coordination.sqlite.term import SqliteTerm
from holdfast.coordination.sqlite.worker import Result, Worker
from holdfast.coordination.terms import LeaderProcess, Tenure, TermRecord, TermSeat, Timing, Verdict
from holdfast.ids import ProcessName
from holdfast.instant import now_ms, now_seconds
from holdfast.supervisor import Supervisor
from holdfast.witness import boot_id, this_process

TRIM_ROWS = 32
POLL_S = (0.005, 0.02)
FOLLOW_WAIT_S = 0.25
WATCH_EVERY_S = 0.05
KILL_WAIT_S = 5.0


class LeaderRow(NamedTuple):
    record: TermRecord
    beat: int
    process: ProcessName


def read_row(connection: sqlite3.Connection, cluster: str) -> LeaderRow | None:
    found = connection.execute(
        f'SELECT epoch, address, resigned, doubtful, beat, process FROM "term {cluster}"'
    ).fetchone()
    if found is None:
        return None
    epoch, address, resigned, doubtful, beat, process = found
    record = TermRecord(epoch, address, bool(resigned), bool(doubtful))
    return LeaderRow(record, beat, decode_process_name(process))


_IS_VALID = "(until_ms IS NULL OR (boot = ? AND until_ms > ?))"


def select_published(connection: sqlite3.Connection, cluster: str, prefix: str) -> dict[str, bytes]:
    rows = connection.execute(
        f'SELECT name, value FROM "published {cluster}" WHERE substr(name, 1, ?) = ? AND {_IS_VALID} ORDER BY name',
        (len(prefix), prefix, boot_id(), now_ms()),
    )
    return dict(rows.fetchall())


def select_named(connection: sqlite3.Connection, cluster: str, names: list[str]) -> dict[str, bytes]:
    query = f'SELECT name, value FROM "published {cluster}" WHERE name = ? AND {_IS_VALID}'
    found = (connection.execute(query, (name, boot_id(), now_ms())).fetchone() for name in names)
    return dict(row for row in found if row is not None)


def lock_path(path: Path, cluster: str, epoch: int) -> Path:
    return path.with_name(f"{path.name}.{cluster}.{epoch}.lock")


class SqliteCoordination(Candidate):
    max_batch_bytes = MIB
    appends_in_flight = 1
    look_every_s = POLL_S[1]

    def __init__(
        self,
        path: Path,
        cluster: str,
        leader_ttl_ms: int,
        synchronous: str = "FULL",
        supervisor: Supervisor | None = None,
    ) -> None:
        super().__init__(Timing(leader_ttl_ms / 1000, now_seconds), supervisor)
        self._path = path
        self._cluster = cluster
        # Short enough that a renewal and an append, one after the other, fail before either times out.
        busy_s = self.timing.answer_s / 4
        self._writer = Worker(path, "write", busy_s, synchronous)
        self._reader = Worker(path, "read", busy_s)

    async def open(self) -> None:
        self._writer.creates = True
        await self._writer.run(lambda connection: prepare(connection, self._cluster))
        self._writer.creates = False

    def leader_changes(self) -> int:
        return 0

    async def leader_changed(self, seen: int, wait_s: float) -> None:
        """Just wait: a death frees a lock and writes nothing, so polling is the only way to notice it."""
        del seen
        await asyncio.sleep(wait_s)

    async def look(self) -> Look:
        row = await self._row()
        if row is None:
            return Look(None)
        # Earlier leaders are not in the row: after a guess only time ends it, and here the lock makes guesses rare.
        leader = LeaderProcess(row.record.epoch, row.process, None)
        return Look(row.record, (row.record.epoch, row.beat), dead=self._is_dead(row.record), leader=leader)

    async def _row(self) -> LeaderRow | None:
        return await self._reader.ask(lambda connection: read_row(connection, self._cluster), self.timing.answer_s)

    def _is_dead(self, record: TermRecord) -> bool:
        return is_free(lock_path(self._path, self._cluster, record.epoch))

    async def take(self, address: str, look: Look, verdict: Verdict) -> Tenure | None:
        sent_at = self.timing.clock()
        locks: list[LeaderLock] = []
        try:
            # No deadline but the database's own: a leadership won after a timeout would belong to nobody.
            won = await self._writer.run(lambda connection: self._take(connection, address, look, verdict, locks))
        except CoordinationLost:
            for lock in locks:  # Locks of a leadership that nobody else has seen.
                lock.release()
            if verdict.proof == "silence" and await self._end_stopped_leader():
                return None
            raise
        if won is None:
            return None
        record, lock = won
        seat = TermSeat(record, verdict, look.record, self.timing)
        term = SqliteTerm(seat, self._writer, self._cluster, lock)
        self._terms.begin(term, sent_at, self)
        return term

    def _take(
        self, connection: sqlite3.Connection, address: str, look: Look, verdict: Verdict, locks: list[LeaderLock]
    ) -> tuple[TermRecord, LeaderLock] | None:
        connection.execute("BEGIN IMMEDIATE")
        row = read_row(connection, self._cluster)
        if (row.record if row is not None else None) != look.record:
            return None
        if verdict.proof == "silence" and row is not None and look.mark != (row.record.epoch, row.beat):
            return None
        record = verdict.record(look.record, address, self.epoch_floor)
        try:
            lock = LeaderLock(lock_path(self._path, self._cluster, record.epoch))
        except OSError as error:
            # In a database that was replaced by an older one, epochs repeat.
            raise CoordinationLost(
                f"the lock of epoch {record.epoch} cannot be had ({error}); nothing was won"
            ) from error
        locks.append(lock)
        try:
            connection.execute(
                f'INSERT OR REPLACE INTO "term {self._cluster}" VALUES (1, ?, ?, 0, ?, 0, ?)',
                (record.epoch, address, record.doubtful, msgspec.msgpack.encode(this_process())),
            )
            connection.execute("COMMIT")
        except sqlite3.Error:
            lock.release()
            raise
        self._sweep_locks(record.epoch)
        lay_out_wal(connection, self._path)
        return record, lock

    def _sweep_locks(self, epoch: int) -> None:
        """Remove the lock files of dead leaders; a stopped one keeps its own until it is gone."""
        for path in self._path.parent.glob(f"{self._path.name}.{self._cluster}.*.lock"):
            number = path.name.split(".")[-2]
            if number.isdecimal() and int(number) < epoch and is_free(path):
                path.unlink(missing_ok=True)

    async def _end_stopped_leader(self) -> bool:
        """Kill a silent leader that holds the write lock: it cannot be deposed, and its death is proof as well."""
        row = await self._row()
        if row is None or writer_of(self._path) != row.process.pid:
            return False
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(None, kill_for_sure, row.process, KILL_WAIT_S)

    async def leader(self) -> Leader | None:
        row = await self._row()
        if row is None or row.record.resigned or self._is_dead(row.record):
            return None
        return Leader(row.record.epoch, row.record.address)

    def watch_leader(self) -> AsyncGenerator[Leader | None, None]:
        return watches.watch_leader(self.leader, self.leader_changes, self.leader_changed, 2 * self.look_every_s)

    async def follow(self, after_index: int) -> AsyncGenerator[Batches, None]:
        tail = SqliteTail(Worker(self._path, "follow", self.timing.answer_s), self._cluster)
        try:
            async for batches in watches.follow_log(tail.read, after_index):
                yield batches
        finally:
            await tail.close()

    async def last_index(self) -> int:
        def last(connection: sqlite3.Connection) -> int:
            return int(connection.execute(f'SELECT coalesce(max(number), 0) FROM "log {self._cluster}"').fetchone()[0])

        return await self._reader.ask(last, self.timing.answer_s)

    async def trim(self, through_index: int, landmark: Landmark | None = None) -> bool:
        def step(connection: sqlite3.Connection) -> int:
            if landmark is not None and not self._has(connection, landmark):
                return -1
            return connection.execute(
                f'DELETE FROM "log {self._cluster}" WHERE number < (SELECT min(number) FROM "log {self._cluster}") + ?'
                f' AND number <= ? AND number < (SELECT max(number) FROM "log {self._cluster}")',
                (TRIM_ROWS, through_index),
            ).rowcount

        while (trimmed := await self._write(step)) > 0:
            pass
        await self._write(self._bound_wal)
        return trimmed == 0

    def _has(self, connection: sqlite3.Connection, landmark: Landmark) -> bool:
        query = f'SELECT batch FROM "log {self._cluster}" WHERE number = ?'
        found = connection.execute(query, (landmark.number,)).fetchone()
        return found is not None and landmark.is_it(found[0])

    def _bound_wal(self, connection: sqlite3.Connection) -> None:
        wal = Path(f"{self._path}-wal")
        if wal.exists() and wal.stat().st_size > WAL_LIMIT_BYTES:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            lay_out_wal(connection, self._path)

    async def _write(self, call: Callable[[sqlite3.Connection], Result]) -> Result:
        return await self._writer.change(call, self.timing.answer_s)

    async def publish(self, name: str, value: bytes, ttl_ms: int | None) -> None:
        # One machine has one clock; the boot id tells when the time in a row has lost its meaning.
        until_ms = None if ttl_ms is None else now_ms() + ttl_ms

        def store(connection: sqlite3.Connection) -> None:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute(
                f'DELETE FROM "published {self._cluster}" WHERE until_ms <= ? OR (until_ms > 0 AND boot <> ?)',
                (now_ms(), boot_id()),
            )
            connection.execute(
                f'INSERT OR REPLACE INTO "published {self._cluster}" VALUES (?, ?, ?, ?)',
                (name, value, boot_id(), until_ms),
            )
            note_published(connection, self._cluster, name)
            connection.execute("COMMIT")

        await self._write(store)

    async def read(self, name: str) -> bytes | None:
        return (await self.list(name)).get(name)

    async def list(self, prefix: str) -> dict[str, bytes]:
        return await self._reader.ask(
            lambda connection: select_published(connection, self._cluster, prefix), self.timing.answer_s
        )

    def watch(self, prefix: str) -> AsyncGenerator[dict[str, bytes], None]:
        seen = 0

        def news(connection: sqlite3.Connection) -> tuple[dict[str, bytes], int]:
            names, last = names_after(connection, self._cluster, prefix, seen)
            if names is None:
                return select_published(connection, self._cluster, prefix), last
            return select_named(connection, self._cluster, names), last

        async def read() -> dict[str, bytes]:
            nonlocal seen
            found, seen = await self._reader.ask(news, self.timing.answer_s)
            return found

        return watches.watch_published(read, self.leader_changes, self.leader_changed, WATCH_EVERY_S)

    async def unpublish(self, name: str) -> None:
        await self._write(
            lambda connection: connection.execute(f'DELETE FROM "published {self._cluster}" WHERE name = ?', (name,))
        )

    async def log_bytes(self) -> int:
        def total(connection: sqlite3.Connection) -> int:
            query = f'SELECT coalesce(sum(length(batch)), 0) FROM "log {self._cluster}"'
            return int(connection.execute(query).fetchone()[0])

        return await self._reader.ask(total, self.timing.answer_s)

    async def close(self) -> None:
        await self._terms.resign()
        await self._writer.close()
        await self._reader.close()


class SqliteTail:
    """The end of the log, as a follower polls it in a thread of its own that sleeps between looks."""

    def __init__(self, worker: Worker, cluster: str) -> None:
        self._worker = worker
        self._query = f'SELECT number, batch FROM "log {cluster}" WHERE number > ? ORDER BY number'
        self._last = f'SELECT coalesce(max(number), 0) FROM "log {cluster}"'
        self._stopped = threading.Event()
        self._version = -1
        self._pause_s = POLL_S[0]

    async def read(self, after_index: int) -> Batches:
        return await self._worker.run(lambda connection: self._poll(connection, after_index))

    def _poll(self, connection: sqlite3.Connection, after_index: int) -> Batches:
        give_up_at = now_seconds() + FOLLOW_WAIT_S
        while True:
            # The version is read first: a later write shows as another version next time.
            version = connection.execute("PRAGMA data_version").fetchone()[0]
            if version != self._version:
                batches = self._rows(connection, after_index)
                if batches:
                    self._pause_s = POLL_S[0]
                    return batches
                last = int(connection.execute(self._last).fetchone()[0])
                if last < after_index:
                    raise LogBehind(last, after_index)
                self._version = version
            if self._stopped.wait(self._pause_s) or now_seconds() > give_up_at:
                return []
            self._pause_s = min(self._pause_s * 1.2, POLL_S[1])

    def _rows(self, connection: sqlite3.Connection, after_index: int) -> Batches:
        batches: Batches = []
        size_bytes = 0
        cursor = connection.execute(self._query, (after_index,))
        try:
            for number, batch in cursor:
                if not batches and number != after_index + 1:
                    raise Compacted(number)
                batches.append((number, batch))
                size_bytes += len(batch)
                if size_bytes >= watches.READ_BYTES:
                    break
        finally:
            cursor.close()
        return batches

    async def close(self) -> None:
        self._stopped.set()
        await self._worker.close()

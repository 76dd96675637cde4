"""Write snapshots in the background, and trim the log behind them.

A standby writes them, so that the primary never pauses, and offers them to the others. The primary fetches a copy,
verifies its last two and trims the log through the older one. A primary without standbys has a forked child write
its own. If the log was trimmed past a standby, it fetches one from any master that has it. Only snapshots of the
history that is followed or led are offered, fetched, counted and trimmed by (I19).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec
import structlog

from holdfast.coordination.interface import Coordination, CoordinationLost, Landmark
from holdfast.core.state.state import State
from holdfast.errors import MALFORMED, HoldfastError, TryAgain, Uncertain
from holdfast.instant import now_ms, now_seconds
from holdfast.messages.hello import fresh_hello
from holdfast.messages.of_masters import FetchSnapshot, SnapshotPiece, TakeSnapshot
from holdfast.messages.requests import Done
from holdfast.replication.batches import Position, hash_of
from holdfast.replication.chain import goes_through
from holdfast.replication.log_writer import LogWriter, PendingLog
from holdfast.replication.snapshot_store import SnapshotFailed, SnapshotStore
from holdfast.replication.snapshots import CorruptSnapshot, NewerSnapshot, dump, position_of, verify
from holdfast.replication.standby import Standby
from holdfast.transport.async_channel import AsyncChannel
from holdfast.wire.codec import expect

log = structlog.get_logger("holdfast.snapshots")
PREFIX = "snapshots/"
LOOK_SECONDS = 2.0
FETCH_SECONDS = 30.0
FRESH_MS = 60_000
"""How long a master's offer of a snapshot is valid."""
ASK_AGAIN_SECONDS = 10.0
OFFER_AGAIN_SECONDS = 10.0
"""How often an offer is repeated: the last one may have been lost, and that master's may be the only snapshot."""


class Offer(msgspec.Struct, array_like=True):
    """`name` keeps a snapshot through `batch`, which any master may fetch at `address`."""

    name: str
    address: str
    batch: int
    older: int = 0
    """The last batch of the previous snapshot, if it is kept too: the log reaches back to it, in case the newest turns
    out to be damaged."""
    log_id: int = 0
    """The history of both; 0: the master's version does not give it."""


@dataclass(eq=False)
class Snapshots:
    """The snapshots of one master."""

    store: SnapshotStore
    _coordination: Coordination
    _name: str
    address: str
    _token: str = field(repr=False)
    every_bytes: int
    _works: Callable[[], None] = lambda: None
    """Called after each round that went well."""
    _on_written: Callable[[int], None] = lambda batch: None
    """Called with the last batch of a new snapshot."""
    log_bytes: int = 0
    """Bytes of log that this master has applied or written since the last snapshot."""
    _writing: asyncio.Lock = field(default_factory=asyncio.Lock)
    _asked: list[asyncio.Task[int]] = field(default_factory=list)
    """Snapshots that a caller waits for."""
    _counted: tuple[LogWriter, int] | None = None
    """The writer whose bytes are in `log_bytes`, and how many of them."""
    _ask_again_at: float = 0.0
    _offered: tuple[int, int] = (0, 0)
    """The history and batch of the last offer."""
    _offer_again_at: float = 0.0

    def __post_init__(self) -> None:
        self.in_child: Callable[[SnapshotStore, State, Position], Callable[[], int]] = _fork
        """Starts a process that writes a snapshot of the state as it is now. The result waits for its exit code."""

    def _newest(self, log_id: int) -> int:
        kept = self.store.kept(log_id)
        return kept[0].batch if kept else 0

    def newest_at(self, log_id: int) -> float | None:
        """When the newest snapshot of that history was written, in seconds since 1970; None: there is none."""
        kept = self.store.kept(log_id)
        try:
            return kept[0].path.stat().st_mtime if kept else None
        except FileNotFoundError:  # A newer one has displaced it meanwhile.
            return None

    async def write(self, standby: Standby) -> int:
        """Write a snapshot of the standby's state as it is now. Returns the number of its last batch."""
        log_id = standby.state.log_id
        if not log_id:
            raise SnapshotFailed("this master follows no history yet, so there is nothing to write")
        if standby.carries:
            # A master that started from here would lack the earlier pieces, and could never follow the log again (I13).
            raise SnapshotFailed(
                "a history is being restored in the log, and no snapshot ends in the middle; ask again"
            )
        async with self._writing:
            if self._newest(log_id) >= standby.position.batch:
                return self._newest(log_id)
            batch, content = self.store.take(standby)
            covered = self.log_bytes
            kept = await asyncio.to_thread(self.store.write, batch, content)
            self.log_bytes = max(0, self.log_bytes - covered)
        log.info("snapshot written", batch=batch, bytes=kept.size_bytes)
        self._on_written(batch)
        await self._offer(log_id, batch)
        return batch

    async def write_by_child(self, state: State, writer: LogWriter, pending: PendingLog) -> int:
        """The same for a primary: a forked child has the state as it is now, and all the time it needs.

        The file counts only once the last batch in it is durable.
        """
        loop = asyncio.get_running_loop()
        async with self._writing:
            covered = self.log_bytes
            forked: asyncio.Future[tuple[Callable[[], int], Position]] = loop.create_future()
            writer.at_boundary(lambda position: self._begin_child(forked, state, position, pending))
            exit_code, position = await forked
            code = await asyncio.to_thread(exit_code)
            if code != 0:
                raise SnapshotFailed(f"the child that wrote the snapshot ended with {code}; the log is not trimmed")
            durable: asyncio.Future[None] = loop.create_future()
            pending.when_durable(position.index, lambda: None if durable.done() else durable.set_result(None))
            await durable
            await asyncio.to_thread(self.store.prove, state.log_id, position.batch)
            self.log_bytes = max(0, self.log_bytes - covered)
        log.info("snapshot written by a child", batch=position.batch)
        self._on_written(position.batch)
        await self._offer(state.log_id, position.batch)
        return position.batch

    async def write_for_asker(self, state: State, writer: LogWriter, pending: PendingLog) -> int:
        """`write_by_child`, but only until the term ends: after that its writer reaches no batch boundary, and a caller
        that waited for one would keep all others from writing snapshots."""
        writing = asyncio.create_task(self.write_by_child(state, writer, pending))
        self._asked.append(writing)
        try:
            await asyncio.wait([writing])
        finally:
            self._asked.remove(writing)
            writing.cancel()
        if writing.cancelled():
            raise SnapshotFailed("the term of this master ended before the snapshot was written; ask again")
        return writing.result()

    def end_term(self) -> None:
        for writing in self._asked:
            writing.cancel()

    def _begin_child(
        self,
        forked: asyncio.Future[tuple[Callable[[], int], Position]],
        state: State,
        position: Position,
        pending: PendingLog,
    ) -> None:
        """Called by the log writer. No failure here may reach it: that would end the term."""
        if forked.done():
            return  # The caller that asked for the snapshot no longer waits.
        if pending.torn:
            forked.set_exception(SnapshotFailed(f"a defect spoiled this master's state ({pending.torn}); ask the next"))
            return
        try:
            forked.set_result((self.in_child(self.store, state, position), position))
        except OSError as error:
            failure = SnapshotFailed(f"no child could be made to write it ({error}); the log is not trimmed")
            forked.set_exception(failure)

    async def _offer(self, log_id: int, batch: int) -> None:
        older = next((one.batch for one in self.store.kept(log_id) if one.batch < batch), 0)
        offer = msgspec.msgpack.encode(Offer(self._name, self.address, batch, older, log_id))
        again_at = now_seconds() + OFFER_AGAIN_SECONDS
        await self._coordination.publish(PREFIX + self._name, offer, FRESH_MS)
        self._offered, self._offer_again_at = (log_id, batch), again_at

    async def _offer_newest(self, log_id: int) -> None:
        newest = self._newest(log_id)
        if newest and ((log_id, newest) != self._offered or now_seconds() >= self._offer_again_at):
            await self._offer(log_id, newest)

    async def _note_followed(self, log_id: int) -> None:
        if log_id not in (0, self.store.followed):
            await asyncio.to_thread(self.store.note_followed, log_id)

    async def offers(self, log_id: int) -> list[Offer]:
        """Offers of the other masters, the newest first: of that history (0: of any), and those that name none."""
        found = await self._coordination.list(PREFIX)
        offers = []
        for name, value in found.items():
            try:
                offers.append(msgspec.msgpack.decode(value, type=Offer))
            except MALFORMED as error:
                # Anyone can write there, and one unreadable offer must not hide the others.
                log.warning("an offer of a snapshot was passed over", of=name, why=str(error))
        others = (o for o in offers if o.name != self._name and (not log_id or o.log_id in (0, log_id)))
        return sorted(others, key=lambda o: o.batch, reverse=True)

    async def fetch(self, offer: Offer, batch: int) -> None:
        """Keep a verified copy of another master's snapshot through that batch, if the log goes through it."""
        deadline = now_seconds() + FETCH_SECONDS
        hello = fresh_hello(self._token, looks=True)
        channel = await AsyncChannel.open(offer.address, hello, deadline)
        try:
            content = bytearray()
            while True:
                request = FetchSnapshot(batch, len(content), offer.log_id)
                piece = expect(await channel.call(request, deadline), SnapshotPiece)
                content += piece.content
                if len(content) >= piece.size_bytes or not piece.content:
                    break
        finally:
            channel.close()
        if piece.batch != batch or len(content) != piece.size_bytes:
            raise TryAgain(f"{offer.name} no longer keeps its snapshot through batch {batch}; another is looked for")
        position = position_of(verify(bytes(content)))
        if await goes_through(self._coordination, position) is False:
            raise TryAgain(f"the snapshot of {offer.name} through batch {batch} is of another history than the log")
        await asyncio.to_thread(self.store.write, batch, bytes(content))

    async def fetch_newest(self, log_id: int) -> None:
        """Fetch a newer, sound snapshot of that history from another master; 0: of any history that the log is of."""
        for offer in await self.offers(log_id):
            try:
                if await self._fetch_sound(offer, self._newest(log_id or offer.log_id)):
                    return
            except HoldfastError as error:
                log.warning("a snapshot could not be fetched", of=offer.name, why=str(error))

    async def ask_for_one(self, address: str) -> None:
        """Have the primary write one now. If every snapshot that reaches the log is damaged, only the primary can write
        one, and unasked it would wait until its log has grown."""
        if now_seconds() < self._ask_again_at:
            return
        self._ask_again_at = now_seconds() + ASK_AGAIN_SECONDS
        deadline = now_seconds() + FETCH_SECONDS
        try:
            channel = await AsyncChannel.open(address, fresh_hello(self._token, looks=True), deadline)
            try:
                batch = expect(await channel.call(TakeSnapshot(), deadline), Done).count
            finally:
                channel.close()
        except HoldfastError as error:
            log.warning("the primary was asked for a snapshot, in vain", address=address, why=str(error))
        else:
            log.info("the primary has written a snapshot for this master", batch=batch)

    async def _fetch_sound(self, offer: Offer, newest: int) -> bool:
        for batch in (offer.batch, offer.older):
            if batch > newest:
                try:
                    await self.fetch(offer, batch)
                except NewerSnapshot as error:
                    self.store.too_new = str(error)
                    log.error("a snapshot needs a newer master than this one", of=offer.name, batch=batch)
                except CorruptSnapshot as error:
                    log.error("a snapshot is damaged where it is kept", of=offer.name, batch=batch, why=str(error))
                else:
                    self.log_bytes = 0
                    log.info("snapshot fetched", of=offer.name, batch=batch)
                    return True
        return False

    async def _share(self, log_id: int) -> None:
        if self.store.unshared(log_id):
            await asyncio.to_thread(self.store.share, log_id)

    async def keep_for_standby(self, standby: Callable[[], Standby]) -> None:
        """Write one whenever the log has grown enough; until cancelled.

        An error of the snapshot store is raised, and the supervisor tries again: the snapshot is still due.
        Coordination that does not answer for a while is not an error of this task.
        """
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self.store.check_writable()
            log_id = standby().state.log_id
            try:
                await self._note_followed(log_id)
                due = self.store.directory is not None and self.log_bytes >= self.every_bytes
                if log_id and due and not standby().carries:
                    await self.write(standby())
                else:
                    await self._offer_newest(log_id)
                await self._share(log_id)
            except (CoordinationLost, Uncertain) as error:
                log.warning("snapshots cannot be offered to the other masters now", why=str(error))
            self._works()

    async def keep_for_primary(self, state: State, writer: LogWriter, pending: PendingLog) -> None:
        """Fetch a standby's snapshot, or have a child write one, and trim the log behind it; until cancelled. Raises as
        `keep_for_standby` does."""
        trimmed = 0
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self._count(writer)
            self.store.check_writable()
            log_id = state.log_id
            try:
                await self._note_followed(log_id)
                await self.fetch_newest(log_id)
                if self.store.directory is not None and self.log_bytes >= 2 * self.every_bytes:
                    # The log has grown twice as much as a standby allows: there seems to be no standby.
                    await self.write_by_child(state, writer, pending)
                else:
                    await self._offer_newest(log_id)
                await self._share(log_id)
                trimmed = await self._trim(log_id, trimmed)
            except (CoordinationLost, Uncertain) as error:
                log.warning("the log could not be trimmed now", why=str(error))
            self._works()

    async def _trim(self, log_id: int, trimmed: int) -> int:
        """Trim the log, which is trimmed through batch `trimmed` so far. Return the batch it is trimmed through now.

        After that, only snapshots hold the trimmed records. A snapshot may be spoiled long after it was verified, so
        both are verified again here: if both were spoiled, nobody could follow the log any more (I13).
        """
        async with self._writing:  # No newer snapshot displaces these meanwhile.
            through = self.store.trim_through(log_id)
            if through <= trimmed:
                return trimmed
            if not await asyncio.to_thread(self.store.are_sound, log_id, through):
                self.log_bytes = max(self.log_bytes, 2 * self.every_bytes)  # Another one is due at once.
                raise SnapshotFailed("a snapshot is spoiled or cannot be read; the log is not trimmed, one is written")
            if not await self._coordination.trim(through, await self._landmark(log_id)):
                raise SnapshotFailed("the store holds another log than the one that was led; it is not trimmed")
        log.info("the log was trimmed", through=through)
        return through

    async def _landmark(self, log_id: int) -> Landmark:
        """The last batch of the newest snapshot: it is in the log that the snapshots are of, and in no other (I19)."""
        position = await asyncio.to_thread(self.store.position, self.store.kept(log_id)[0])
        if position is None:
            raise SnapshotFailed("a snapshot cannot be read any more; the log is not trimmed")
        return Landmark(position.batch, lambda batch: hash_of(batch) == position.hash)

    def _count(self, writer: LogWriter) -> None:
        """Add the bytes that this primary wrote since the last count."""
        before = self._counted[1] if self._counted is not None and self._counted[0] is writer else 0
        self.log_bytes += writer.bytes - before
        self._counted = (writer, writer.bytes)


def _fork(store: SnapshotStore, state: State, position: Position) -> Callable[[], int]:
    """Fork a child that writes a snapshot. Returns a function that waits for its exit code. The child touches no loop,
    lock or logger of the parent, and runs no exit handler."""
    child = os.fork()
    if child:
        return lambda: os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    code = 1
    try:
        store.write(position.batch, b"".join(dump(state, position, now_ms())), proven=False)
        code = 0
    finally:
        os._exit(code)

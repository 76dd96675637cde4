"""Which history this master follows, what it knows of others, and when a new one may begin (I19).

A history is one log from its beginning, named by its `log_id`. The store holds one; a master may know others: files in
its data directory or in the place that all masters share, and its own memory, if the store was emptied or replaced
while it ran. None of them is used under another history, and none is discarded for another. A standby goes through
these steps each time it begins:

1. `start`: it looks for the newest snapshot that the log in the store goes through, here and at other masters. A
   former primary without one goes on from its memory, if all of that is in the log.
2. It follows the log to its end.
3. `admit`: with a history in the log, it may lead. With none, the store is empty: the first master ever begins a
   history; one that knows of another waits, visibly, for the operator's decision, because only the operator can know
   whether to restore the cache or begin empty.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace

import structlog

from holdfast.coordination.interface import Coordination, CoordinationLost, Leader
from holdfast.core.state.state import State
from holdfast.errors import HoldfastError, TryAgain, Uncertain
from holdfast.instant import now_ms, now_seconds
from holdfast.master.events import EventHistory
from holdfast.master.histories.snapshot_upkeep import Snapshots
from holdfast.replication.batches import NO_HASH, Position
from holdfast.replication.chain import first_batch, goes_through
from holdfast.replication.depots import DepotFailed
from holdfast.replication.snapshot_store import Kept, SnapshotFailed, SnapshotStore
from holdfast.replication.snapshots import load
from holdfast.replication.standby import Standby

log = structlog.get_logger("holdfast.master")
LOOK_SECONDS = 0.5
SAY_AGAIN_SECONDS = 30.0
WAITING = "waiting/"
"""The prefix under which masters that wait for the operator announce it to those that know of no history."""
ANNOUNCED_MS = 15_000
WAYS_OUT = "bring it back with `holdfast restore`, or begin empty with --new-history"


class WaitsForOperator(TryAgain):
    """The store is empty and another history is known: nothing was begun."""

    code = "waits_for_operator"


@dataclass(frozen=True, slots=True)
class Word:
    """The operator's decision on how a history begins in an empty store."""

    content: bytes = b""
    """The snapshot whose catalogue it begins with; empty: none."""
    epoch: int = 0
    """The epoch of that snapshot."""
    last: int | None = None
    """The log's last batch when this was decided. None until the primary that was ordered has written its last one."""
    mark: bytes = b""
    """The mark that the order left in the store (`candidacy.note_order`)."""


@dataclass(slots=True)
class RetainedHistory:
    """A state in memory whose log may no longer be in the store."""

    standby: Standby
    written: Position
    """Up to here it was in the log for sure. A primary may hold records beyond it."""
    is_kept: bool = False
    """It is on disk too."""

    @property
    def log_id(self) -> int:
        return self.standby.state.log_id


class Histories:
    """The histories that one master knows."""

    def __init__(
        self,
        snapshots: Snapshots,
        coordination: Coordination,
        name: str,
        leader: Callable[[], Leader | None],
        events: EventHistory,
        word: Word | None = None,
    ) -> None:
        self.retained: RetainedHistory | None = None
        self.known: dict[int, int] = {}
        """Histories known when the store was last found empty, and the last batch in a snapshot of each."""
        self.word = word
        self.waits = ""
        """Why it waits for the operator; empty while it does not."""
        self.stuck = ""
        """Why it finds no snapshot to follow the log from; empty while it does."""
        self.may_begin = False
        """It may begin a history in an empty store."""
        self._snapshots = snapshots
        self._store = snapshots.store
        self._coordination = coordination
        self._name = name
        self._leader = leader
        self._events = events
        self.restore_asked = asyncio.Event()
        self._told = asyncio.Event()
        self._said = ""
        self._say_again_at = 0.0
        self._announce_again_at = 0.0

    def tell(self, word: Word) -> None:
        """Take over the operator's decision."""
        self.word = word
        self._told.set()
        if word.content:
            self.restore_asked.set()

    @property
    def restores(self) -> Word | None:
        """The operator's decision, if it is to restore a history."""
        return self.word if self.word is not None and self.word.content else None

    async def known_here(self, state: State, store: SnapshotStore) -> list[int]:
        """Every history of this state, of a retained history, and of this master's snapshots."""
        states = [state, *([self.retained.standby.state] if self.retained is not None else [])]
        known = [one for each in states if each.log_id for one in (*each.continues, each.log_id)]
        try:
            known += await asyncio.to_thread(store.known)
        except (HoldfastError, OSError) as error:
            log.warning("which histories were served here cannot be read; nodes may have to begin anew", why=str(error))
        return list(dict.fromkeys(known))

    def gives_way(self, last: int) -> bool:
        """Note the last batch of this master's term. True: it ended by the operator's decision, which covers the log up
        to that batch. Batches that another master adds before the restore begins must not be lost (I1)."""
        word = self.restores
        if word is not None and word.last is None:
            self.word = replace(word, last=last)
        return word is not None

    def end_restore(self) -> None:
        """Forget the decision to restore, which was carried out or failed."""
        self.word = None
        self.restore_asked.clear()

    def began(self, log_id: int) -> None:
        """Forget the operator's decision: this master leads, and its history is durable."""
        self.may_begin = False
        self._release(log_id)

    def _release(self, log_id: int) -> None:
        """The log is of this history: drop a retained one, unless it is another that no disk could take."""
        self.word = None
        if self.retained is not None and (self.retained.is_kept or self.retained.log_id == log_id):
            self.retained = None

    def hold(self, standby: Standby, written: Position) -> None:
        """Hold this process's state until it is known that the log in the store still has it."""
        if standby.carries:
            # Between the pieces of a catalogue no master can continue from here, so it gets no hash to continue from.
            position = standby.position
            standby = Standby(standby.state, Position(position.batch, position.index, NO_HASH))
        if standby.state.log_id:
            self.retained = RetainedHistory(standby, written)

    # Where to follow the log from.

    async def start(self) -> Standby:
        """The newest snapshot that the log goes through, or the log's beginning if the log reaches back to it.

        Until a start is found, this master keeps the history that it holds in memory: an operator may restore from it.
        """
        self.may_begin = False
        while True:
            try:
                retained = self.retained
                if retained is not None and not await goes_through(self._coordination, retained.written):
                    retained = None  # Its log is not in the store, or was trimmed past it.
                found = await self._newest_here() or await self._from_elsewhere(retained)
                if found is not None:
                    self.stuck = ""
                    if retained is not None:
                        self.retained = None  # Its log is followed.
                    return found
                await self._ask_for_one()
            except (CoordinationLost, Uncertain) as error:
                self._say("coordination does not answer; the log is followed when it does", str(error))
            await asyncio.sleep(LOOK_SECONDS)

    async def _newest_here(self) -> Standby | None:
        try:
            await asyncio.to_thread(self._store.bring, 0)
        except (DepotFailed, SnapshotFailed) as error:
            self._say("the shared snapshots cannot be had; this master's own are used", str(error))
        try:
            histories = await asyncio.to_thread(self._store.histories)
        except OSError as error:
            # An unreadable directory costs its snapshots, never the standby (I18).
            self._say("the snapshots cannot be read; this master goes on from what it can follow", str(error))
            return None
        kept = [one for several in histories.values() for one in several]
        for one in sorted(kept, key=lambda one: one.batch, reverse=True):
            if await self._goes_through(one):
                found = await asyncio.to_thread(self._store.read, one)
                if found is not None:
                    return found
        return None

    async def _goes_through(self, kept: Kept) -> bool:
        position = await asyncio.to_thread(self._store.position, kept)
        return position is not None and bool(await goes_through(self._coordination, position))

    async def _from_elsewhere(self, retained: RetainedHistory | None) -> Standby | None:
        """From the log's beginning, this process's memory, or what another master keeps."""
        if await first_batch(self._coordination) == 1:
            return Standby()
        if retained is not None and retained.standby.position == retained.written:
            return await self._from_memory(retained)
        self.stuck = "the log was trimmed past it, and it finds no snapshot that reaches it"
        self._say(self.stuck, self._store.too_new or "another master is asked")
        await self._snapshots.fetch_newest(0)
        if self._store.too_new:
            self.stuck += f"; of the last one: {self._store.too_new}"
        return await self._newest_here()

    async def _from_memory(self, retained: RetainedHistory) -> Standby:
        """The state of a former primary whose records are all in the log (I5). If every snapshot that reaches the log
        is spoiled, this may be the only master that can lead."""
        _, content = await asyncio.to_thread(self._store.take, retained.standby)
        restored = await asyncio.to_thread(load, content, now_ms())
        batch = retained.written.batch
        log.warning("no snapshot here reaches the log; this master goes on from its memory", batch=batch)
        return Standby(restored.state, restored.position)

    async def _ask_for_one(self) -> None:
        leader = self._leader()
        if leader is not None and leader.address != self._snapshots.address:
            await self._snapshots.ask_for_one(leader.address)

    # Whether to lead.

    async def admit(self, standby: Callable[[], Standby]) -> None:
        """Return when this master may lead, having read the log to its end."""
        try:
            while True:
                log_id = standby().state.log_id
                if log_id:
                    if await self._follows(log_id):
                        return
                elif await self._is_first():
                    self.may_begin = True
                    return
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_SECONDS):  # `wait_for` may lose a cancellation.
                        await self._told.wait()
                self._told.clear()
        finally:
            self.waits = ""

    async def _follows(self, log_id: int) -> bool:
        """The log is of this history: write any other retained history to disk, and set strays aside.

        False: that could not be done now.
        """
        if self.retained is not None and self.retained.log_id != log_id:
            await self._keep_held()
        self._release(log_id)
        try:
            for one in await asyncio.to_thread(self._store.kept, log_id):
                position = await asyncio.to_thread(self._store.position, one)
                if position is not None and await goes_through(self._coordination, position) is False:
                    await asyncio.to_thread(self._store.set_astray, one, position)
        except (CoordinationLost, Uncertain, OSError) as error:
            # Otherwise the log might be trimmed by a snapshot that lacks the trimmed batches (I13).
            self._say("the snapshots here could not be compared with the log; that is tried again", str(error))
            return False
        return True

    async def _is_first(self) -> bool:
        """May a history begin here? If the operator decided so, or no master knows of any."""
        await self._keep_held()
        if self.word is not None:
            return True
        try:
            self.known = await asyncio.to_thread(self._store.known)
            waiting = await self._coordination.list(WAITING)
        except (CoordinationLost, Uncertain) as error:
            self._say("coordination does not answer; nothing begins before it does", str(error))
            return False
        except (HoldfastError, OSError) as error:
            self._wait(f"whether there was another history is not known: {error}")
            return False
        others = {name: text for name, text in waiting.items() if name != WAITING + self._name}
        if self.retained is not None or self.known:
            self._wait(f"the store is empty, and this master {self._knowledge()}; {WAYS_OUT}")
            await self._announce()
        elif others:
            name, text = next(iter(others.items()))
            self._wait(f"{name.removeprefix(WAITING)} waits for the operator: {text.decode(errors='replace')}")
        else:
            return True
        return False

    def _knowledge(self) -> str:
        if self.retained is not None:
            return f"holds history {self.retained.log_id:016x} through record {self.retained.standby.state.index}"
        log_id, batch = max(self.known.items(), key=lambda one: one[1])
        if batch:
            return f"keeps snapshots of history {log_id:016x} through batch {batch}"
        return f"has followed history {log_id:016x}, of which it keeps no snapshot"

    async def _keep_held(self) -> None:
        """Write the retained history to disk, once: this process may end while it waits."""
        retained = self.retained
        if retained is None or retained.is_kept or self._store.directory is None:
            return
        try:
            await asyncio.to_thread(self._write_retained, retained.standby)
        except (SnapshotFailed, OSError) as error:
            self._say("what this master holds of another history is in its memory alone", str(error))
        else:
            retained.is_kept = True

    def _write_retained(self, standby: Standby) -> None:
        if all(one.batch != standby.position.batch for one in self._store.kept(standby.state.log_id)):
            self._store.write(*self._store.take(standby))

    def _wait(self, why: str) -> None:
        if why != self.waits:
            self._events.add("waiting", self._name, why, now_ms())
        self.waits = why
        self._say("no history begins: this master waits for the operator", why)

    async def _announce(self) -> None:
        """Announce the wait to masters that know of no history."""
        if now_seconds() >= self._announce_again_at:
            try:
                await self._coordination.publish(WAITING + self._name, self.waits.encode(), ANNOUNCED_MS)
            except HoldfastError as error:
                self._say("that this master waits could not be announced; it is announced again", str(error))
            else:
                self._announce_again_at = now_seconds() + ANNOUNCED_MS / 5000

    def _say(self, what: str, why: str) -> None:
        """Log it when it is new, and again every 30 seconds."""
        now = now_seconds()
        if what != self._said or now >= self._say_again_at:
            self._said, self._say_again_at = what, now + SAY_AGAIN_SECONDS
            log.warning(what, why=why)

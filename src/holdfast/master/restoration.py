"""Restore a history at a master: list what can be restored from here, and carry out the operator's order.

1. `DescribeHistories`: the histories in this process's memory and in its snapshots.
2. `OfferCatalogue`: an operator may send a snapshot that no master has.
3. `RestoreHistory`: the order. A serving master ends its term and wins a new one with a larger epoch.
4. The catalogue is appended to the log as a new history (`replication.carried`), and served.
5. Nodes come back, and verify their memory and their disks (`core.nodes.restored_memory`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine

import structlog

from holdfast.core.catalogue.catalogue import DISK, MEMORY
from holdfast.core.nodes.restored_memory import unverified_objects
from holdfast.core.state.state import State
from holdfast.errors import BadRequest, BadValue, HoldfastError, Refused
from holdfast.instant import now_ms, now_seconds
from holdfast.master.election.candidacy import note_order
from holdfast.master.engine.waiting_room import Answer
from holdfast.master.histories.histories import Word
from holdfast.master.roles.master import Master
from holdfast.messages.of_masters import (
    DescribeHistories,
    HistoriesDescribed,
    HistoryFound,
    OfferCatalogue,
    RestoreHistory,
)
from holdfast.messages.requests import Done, Failed
from holdfast.messages.shapes import Message
from holdfast.replication.batches import Position
from holdfast.replication.snapshots import CorruptSnapshot, dump, found_in
from holdfast.wire.codec import failed

log = structlog.get_logger("holdfast.master")
MEMORY_OF_PROCESS = "memory"
SETTLE_SECONDS = 10.0
STEP_DOWN_SECONDS = 3.0
LOOK_SECONDS = 0.05
MOST_CATALOGUE_BYTES = 4 << 30
"""Enough for forty million objects."""


class WouldLose(Refused):
    """The history served now has objects; nothing was changed."""

    code = "would_lose"


class Restoration:
    """Answers the verbs about histories, whatever the master's role."""

    def __init__(self, master: Master) -> None:
        self._master = master
        self._offered = bytearray()
        self._tasks: set[asyncio.Task[None]] = set()
        views = master.server.views
        views[DescribeHistories] = lambda request, answer: self._later(answer, self._describe())
        views[OfferCatalogue] = self._offer
        views[RestoreHistory] = lambda request, answer: self._later(answer, self._restore(request))

    def _later(self, answer: Answer, work: Coroutine[None, None, Message]) -> None:
        async def run() -> None:
            try:
                answer(await work)
            except HoldfastError as error:
                answer(failed(error))
            except OSError as error:
                answer(failed(CorruptSnapshot(f"a snapshot cannot be read ({error}); nothing was changed")))
            except Exception as error:  # A defect must not leave the caller waiting; it is reported to both sides.
                log.exception("a request about histories failed unexpectedly")
                answer(Failed("error", f"internal error: {type(error).__name__}: {error}"))

        task = asyncio.create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # 1. The histories that can be restored.

    async def _describe(self) -> HistoriesDescribed:
        await self._until_it_leads_or_has_stepped_down()
        found = await asyncio.to_thread(self._found)
        # Read the rest at one moment: a restore may end while the snapshots are read.
        master = self._master
        histories = master.histories
        state = self._state
        origin = state.origin
        doubtful = [state.segments[handle] for handle in state.unverified]
        return HistoriesDescribed(
            name=master.server.name,
            role=master.role,
            log_id=state.log_id,
            objects=state.objects,
            found=found,
            leader=master.leader_address,
            waits=(histories.waits or histories.stuck) if histories is not None else "",
            restoring=master.restoring,
            failure=master.restore_failure,
            older=origin.log_id,
            restored=origin.objects,
            restored_bytes=origin.size_bytes,
            mismatched=origin.mismatched,
            lost=origin.lost,
            unverified=unverified_objects(state),
            unverified_nodes=sorted({one.name.node for one in doubtful if one.kind == MEMORY}),
            unverified_disks=sorted({one.name.node for one in doubtful if one.kind == DISK}),
            lost_files=origin.lost_files,
        )

    async def _until_it_leads_or_has_stepped_down(self) -> None:
        """Wait for a primary whose term has run out by its clock: it still has the state that it served, and holds it
        for a restore only when it has stepped down. The wait is bounded, because the operator's is."""
        master, until = self._master, now_seconds() + STEP_DOWN_SECONDS
        while now_seconds() < until:
            if master.server.engine is None or master.role == "primary":
                return
            await asyncio.sleep(LOOK_SECONDS)

    @property
    def _serves(self) -> bool:
        """Does it serve a history, if only until its late term is renewed or given up?"""
        return self._master.server.engine is not None

    @property
    def _state(self) -> State:
        engine = self._master.server.engine
        return engine.state if engine is not None else self._master.standby.state

    def _found(self) -> list[HistoryFound]:
        """The newest sound snapshot of each history in each place. Blocks."""
        found: list[HistoryFound] = []
        retained = self._retained
        if retained is not None:
            live = retained.catalogue.live()
            size = int(retained.catalogue.sizes[live].sum())
            where = MEMORY_OF_PROCESS
            found.append(HistoryFound(retained.log_id, where, retained.epoch, retained.index, len(live), size))
        for kept in self._master.store.histories().values():
            for one in kept:
                try:
                    found.append(found_in(self._master.store.content(one), one.path.name))
                    break
                except (CorruptSnapshot, OSError) as error:
                    log.warning("a snapshot cannot be restored from", file=one.path.name, why=str(error))
        return found

    @property
    def _retained(self) -> State | None:
        histories = self._master.histories
        return histories.retained.standby.state if histories is not None and histories.retained is not None else None

    # 2. A snapshot that an operator sends.

    def _offer(self, request: OfferCatalogue, answer: Answer) -> None:
        if request.offset == 0:
            self._offered = bytearray()
        if request.offset != len(self._offered):
            answer(failed(BadRequest(f"{len(self._offered):,} bytes have come, and this piece is not the next")))
        elif len(self._offered) + len(request.content) > MOST_CATALOGUE_BYTES:
            answer(failed(BadValue(f"a catalogue has at most {MOST_CATALOGUE_BYTES:,} bytes; what came is forgotten")))
            self._offered = bytearray()
        else:
            self._offered += request.content
            answer(Done(len(self._offered)))

    # 3. The order.

    async def _restore(self, request: RestoreHistory) -> Done:
        master = self._master
        if master.coordination is None or master.histories is None:
            raise Refused("this master keeps its log in memory, so there is no store to restore a history to")
        await self._until_it_knows_who_leads()
        # While this master finds no history in the store, the leader named there serves none: it may have died over an
        # order like this. If it is alive after all, the campaign waits for its end in vain and reports that.
        serves_none = bool(master.histories.waits or master.histories.stuck)
        leader = master.leader if master.role != "primary" and not serves_none else None
        if leader is not None and leader.address != master.plan.address:
            raise master.server.not_leading("another master leads, and only it can begin another history")
        if master.restoring:
            raise BadRequest(f"a restore is under way already ({master.restoring}); nothing was changed")
        objects = self._state.objects
        if self._serves and objects and not request.replace:
            raise WouldLose(f"{objects:,} objects of the history that is served would be lost; nothing was changed")
        content = await asyncio.to_thread(self._content, request.where)
        found = await asyncio.to_thread(found_in, content, request.where)
        if found.log_id != request.log_id:
            raise BadValue(f"that is of history {found.log_id:016x}, not {request.log_id:016x}; nothing was changed")
        mark = await note_order(master.coordination, master.server.name)
        last = None if self._serves else await master.coordination.last_index()
        master.restore(Word(content, found.epoch, last, mark))
        self._offered = bytearray()
        return Done(len(content))

    async def _until_it_knows_who_leads(self) -> None:
        """Wait until this master knows whether it leads, and over what: only then is it known what the order may
        replace. The wait is bounded, because a master that never gets there may need the order to do so."""
        until = now_seconds() + SETTLE_SECONDS
        while now_seconds() < until:
            if self._knows_who_leads:
                return
            await asyncio.sleep(LOOK_SECONDS)

    @property
    def _knows_who_leads(self) -> bool:
        master = self._master
        assert master.histories is not None, "there is coordination"
        another = master.leader is not None and master.leader.address != master.plan.address
        return master.role == "primary" or another or bool(master.histories.waits or master.histories.stuck)

    def _content(self, where: str) -> bytes:
        """The bytes of the snapshot at `where`. Blocks."""
        if not where:
            return bytes(self._offered)
        retained = self._retained
        if where == MEMORY_OF_PROCESS:
            if retained is None:
                raise BadValue("this master holds no other history in memory (any more); nothing was changed")
            return b"".join(dump(retained, Position(0, retained.index), now_ms()))
        for kept in self._master.store.histories().values():
            for one in kept:
                if one.path.name == where:
                    return self._master.store.content(one)
        raise BadValue(f"this master keeps no snapshot {where!r}; nothing was changed")

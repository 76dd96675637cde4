"""Coordination in one process, for unit tests and the simulator, with the faults of real stores.

A `MemoryStore` is the server; every `MemoryCoordination` on it is one master's client, with its own link to the store.
Clock and sleep are arguments. `store.faults` delays replies, loses them after or before the write, or stops replying at
all; `expire_leader` acts as a server that drops a lease. The simulator brings links of its own.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from holdfast.coordination import watches
from holdfast.coordination.campaign import Look
from holdfast.coordination.candidate import Candidate
from holdfast.coordination.interface import (
    MIB,
    Batches,
    Compacted,
    CoordinationLost,
    Deposed,
    Landmark,
    Leader,
    LogBehind,
)
from holdfast.coordination.terms import (
    LeaderProcess,
    Tenure,
    TermRecord,
    TermSeat,
    Timing,
    Verdict,
    append_unknown,
    check_size,
    out_of_order,
)
from holdfast.errors import Uncertain
from holdfast.instant import Clock, now_seconds
from holdfast.supervisor import Supervisor

AppendFate = Literal["answered", "written_unanswered", "lost"]


@dataclass(slots=True)
class Faults:
    outage: bool = False
    delay_s: float = 0.0
    appends: deque[AppendFate] = field(default_factory=deque)
    """Fates of the next appends, one each; after these all are answered."""


@dataclass(slots=True)
class Cluster:
    record: TermRecord | None = None
    leader: LeaderProcess | None = None
    beat: int | None = None
    """Number of renewals of the present leader; None if there is none."""
    batches: dict[int, tuple[int, bytes]] = field(default_factory=dict)
    last: int = 0
    published: dict[str, tuple[bytes, float]] = field(default_factory=dict)
    published_at: dict[str, int] = field(default_factory=dict)
    """Name -> the number of its publication, counting all."""
    publishings: int = 0
    wipes: int = 0
    """How often the store was emptied. Epochs then begin anew: a term of before must not pass for one of after, and
    no lease would."""
    links: list[MemoryLink] = field(default_factory=list)
    """Links of all watchers."""

    def changed(self) -> None:
        for link in self.links:
            link.tell()


class MemoryLink:
    """One client's link to the store and back."""

    def __init__(self, store: MemoryStore, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        self.changes = watches.Changes(sleep)
        self._store = store
        self._sleep = sleep

    async def arrive(self) -> None:
        """Return when the request has arrived. CoordinationLost if it never will."""
        faults = self._store.faults
        if faults.delay_s:
            await self._sleep(faults.delay_s)
        if faults.outage:
            raise CoordinationLost("the memory store is out of order, by order of a test; nothing was changed")

    async def answer(self) -> None:
        """Return when the reply has arrived. Uncertain if it never will."""

    def tell(self) -> None:
        """Notify the watchers of a change."""
        self.changes.bump()


class MemoryStore:
    def __init__(self, clock: Clock = now_seconds) -> None:
        self.clock = clock
        self.faults = Faults()
        self._clusters: dict[str, Cluster] = {}

    def cluster(self, name: str) -> Cluster:
        return self._clusters.setdefault(name, Cluster())

    def expire_leader(self, name: str) -> None:
        """Drop the leader without telling it, as a server does with a lease that ran out or was revoked."""
        self.cluster(name).beat = None
        self.cluster(name).changed()

    def wipe(self, name: str) -> None:
        """Forget everything, like a server whose disk was replaced."""
        cluster = self.cluster(name)
        cluster.record, cluster.beat, cluster.last = None, None, 0
        cluster.wipes += 1
        for content in (cluster.batches, cluster.published, cluster.published_at):
            content.clear()
        cluster.changed()


class MemoryTerm(Tenure):
    def __init__(self, seat: TermSeat, faults: Faults, link: MemoryLink, cluster: Cluster, limit: int) -> None:
        super().__init__(seat)
        self._faults = faults
        self._link = link
        self._cluster = cluster
        self._limit = limit
        self._wipes = cluster.wipes

    def _leads(self) -> bool:
        cluster = self._cluster
        if cluster.wipes != self._wipes:
            return False
        return cluster.beat is not None and cluster.record is not None and cluster.record.epoch == self.epoch

    async def _append(self, index: int, batch: bytes) -> None:
        check_size(batch, self._limit)
        fates = self._faults.appends
        fate = fates.popleft() if fates else "answered"
        await self._link.arrive()
        if fate == "lost":
            raise append_unknown(index, "lost on the way, by order of a test")
        self._write(index, bytes(batch))
        try:
            await self._link.answer()
        except Uncertain as error:
            raise append_unknown(index, error) from None
        if fate == "written_unanswered":
            raise append_unknown(index, "the answer was lost, by order of a test")

    async def _is_written(self, index: int, batch: bytes) -> bool:
        await self._link.arrive()
        found = self._cluster.batches.get(index) == (self.epoch, batch)
        await self._link.answer()
        return found

    def _write(self, index: int, batch: bytes) -> None:
        cluster = self._cluster
        if cluster.batches.get(index) == (self.epoch, batch):
            return
        if not self._leads():
            raise Deposed(f"epoch {self.epoch} leads no more; batch {index} was not written")
        if index != cluster.last + 1:
            raise out_of_order(index, cluster.last)
        cluster.batches[index] = (self.epoch, batch)
        cluster.last = index
        cluster.changed()

    async def _renew(self, ends_doubt: bool) -> None:
        await self._link.arrive()
        if not self._leads():
            raise Deposed(f"epoch {self.epoch} leads no more")
        assert self._cluster.beat is not None
        assert self._cluster.record is not None
        self._cluster.beat += 1
        if ends_doubt:
            self._cluster.record = msgspec.structs.replace(self._cluster.record, doubtful=False)
        await self._link.answer()

    async def _resign(self) -> None:
        await self._link.arrive()
        if self._leads():
            assert self._cluster.record is not None
            self._cluster.record = msgspec.structs.replace(self._cluster.record, resigned=True)
            self._cluster.beat = None
            self._cluster.changed()
        await self._link.answer()


class MemoryCoordination(Candidate):
    max_batch_bytes = MIB
    appends_in_flight = 4
    look_every_s = 1.0

    def __init__(
        self,
        store: MemoryStore,
        cluster: str = "holdfast",
        leader_ttl_ms: int = 5000,
        clock: Clock = now_seconds,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        link: MemoryLink | None = None,
        supervisor: Supervisor | None = None,
    ) -> None:
        self._link = link if link is not None else MemoryLink(store, sleep)
        super().__init__(Timing(leader_ttl_ms / 1000, clock, sleep), supervisor, self._link.changes)
        self._clock = store.clock
        self._faults = store.faults
        self._cluster = store.cluster(cluster)
        self._cluster.links.append(self._link)

    async def look(self) -> Look:
        await self._link.arrive()
        look = Look(self._cluster.record, self._mark(), leader=self._cluster.leader)
        await self._link.answer()
        return look

    async def take(self, address: str, look: Look, verdict: Verdict) -> Tenure | None:
        sent_at = self.timing.clock()
        await self._link.arrive()
        cluster = self._cluster
        if cluster.record != look.record or (verdict.proof == "silence" and self._mark() != look.mark):
            return None
        record = verdict.record(cluster.record, address, self.epoch_floor)
        seat = TermSeat(record, verdict, cluster.record, self.timing)
        term = MemoryTerm(seat, self._faults, self._link, cluster, self.max_batch_bytes)
        cluster.record, cluster.beat, cluster.leader = record, 0, verdict.leader_process(record)
        cluster.changed()
        # Without a reply nobody knows of this term; it ends by silence.
        await self._link.answer()
        self._terms.begin(term, sent_at, self)
        return term

    def _mark(self) -> tuple[int, int] | None:
        record, beat = self._cluster.record, self._cluster.beat
        return None if record is None or beat is None else (record.epoch, beat)

    async def leader(self) -> Leader | None:
        await self._link.arrive()
        record, beat = self._cluster.record, self._cluster.beat
        await self._link.answer()
        return None if record is None or beat is None else Leader(record.epoch, record.address)

    def follow(self, after_index: int) -> AsyncGenerator[Batches, None]:
        return watches.follow_log(self._read_after, after_index, self.timing.sleep)

    async def _read_after(self, after_index: int) -> Batches:
        seen = self._link.changes.count
        await self._link.arrive()
        batches = self._cluster.batches
        if self._cluster.last < after_index:
            raise LogBehind(self._cluster.last, after_index)
        if self._cluster.last == after_index:
            await self._link.answer()
            await self._link.changes.beyond(seen, self.look_every_s)
            return []
        first = next(iter(batches))
        if first > after_index + 1:
            raise Compacted(first)
        found: Batches = []
        size_bytes = 0
        for index in range(after_index + 1, self._cluster.last + 1):
            found.append((index, batches[index][1]))
            size_bytes += len(batches[index][1])
            if size_bytes >= watches.READ_BYTES:
                break
        await self._link.answer()
        return found

    async def last_index(self) -> int:
        await self._link.arrive()
        last = self._cluster.last
        await self._link.answer()
        return last

    async def trim(self, through_index: int, landmark: Landmark | None = None) -> bool:
        await self._link.arrive()
        batches = self._cluster.batches
        if landmark is not None and not (landmark.number in batches and landmark.is_it(batches[landmark.number][1])):
            await self._link.answer()
            return False
        while batches and (first := next(iter(batches))) <= min(through_index, self._cluster.last - 1):
            del batches[first]
        await self._link.answer()
        return True

    async def publish(self, name: str, value: bytes, ttl_ms: int | None) -> None:
        await self._link.arrive()
        until = float("inf") if ttl_ms is None else self._clock() + ttl_ms / 1000
        cluster = self._cluster
        cluster.published[name] = (bytes(value), until)
        cluster.publishings += 1
        cluster.published_at[name] = cluster.publishings
        cluster.changed()
        await self._link.answer()

    async def read(self, name: str) -> bytes | None:
        return (await self.list(name)).get(name)

    async def list(self, prefix: str) -> dict[str, bytes]:
        await self._link.arrive()
        now = self._clock()
        published = self._cluster.published
        for name in [name for name, (_, until) in published.items() if until <= now]:
            del published[name], self._cluster.published_at[name]
        found = {name: value for name, (value, _) in sorted(published.items()) if name.startswith(prefix)}
        await self._link.answer()
        return found

    def watch(self, prefix: str) -> AsyncGenerator[dict[str, bytes], None]:
        cluster, seen = self._cluster, 0

        async def read() -> dict[str, bytes]:
            nonlocal seen
            before, newest = seen, cluster.publishings
            found = await self.list(prefix)
            seen = newest
            return {name: value for name, value in found.items() if cluster.published_at.get(name, 0) > before}

        changes = self._link.changes
        return watches.watch_published(
            read, lambda: changes.count, changes.beyond, self.look_every_s, self.timing.sleep
        )

    async def unpublish(self, name: str) -> None:
        await self._link.arrive()
        self._cluster.published.pop(name, None)
        self._cluster.published_at.pop(name, None)
        await self._link.answer()

    async def log_bytes(self) -> int:
        await self._link.arrive()
        return sum(len(batch) for _, batch in self._cluster.batches.values())

    async def close(self) -> None:
        await self._terms.resign()
        if self._link in self._cluster.links:
            self._cluster.links.remove(self._link)


_NAMED: dict[str, MemoryStore] = {}


def named_store(name: str) -> MemoryStore:
    """The store of `memory://NAME`, shared in this process; without a name, a new one."""
    if not name:
        return MemoryStore()
    return _NAMED.setdefault(name, MemoryStore())

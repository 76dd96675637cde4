"""Coordination in one process, for unit tests and the simulator, with the faults that real ones have.

A `MemoryStore` is the server; every `MemoryCoordination` on it is one master's client. Clock and sleep are
arguments. `store.faults` makes answers late, loses them after or before the write, or stops answering at all;
`expire_leader` is a lease that the server dropped.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from holdfast.coordination import following
from holdfast.coordination.campaigning import Look, campaign
from holdfast.coordination.interface import (
    MIB,
    Batches,
    Compacted,
    CoordinationLost,
    Deposed,
    Leader,
    Proof,
    Term,
)
from holdfast.coordination.terms import Tenure, TermRecord, Timing, append_unknown, check_size, out_of_order
from holdfast.instant import now_seconds

AppendFate = Literal["answered", "written_unanswered", "lost"]


@dataclass(slots=True)
class Faults:
    outage: bool = False
    delay_s: float = 0.0
    appends: deque[AppendFate] = field(default_factory=deque)
    """What becomes of the next appends, one each; afterwards all are answered."""


@dataclass(slots=True)
class Cluster:
    changes: following.Changes
    record: TermRecord | None = None
    beat: int | None = None
    """Renewals of the present leader; None when there is none."""
    batches: dict[int, tuple[int, bytes]] = field(default_factory=dict)
    last: int = 0
    published: dict[str, tuple[bytes, float]] = field(default_factory=dict)


class MemoryStore:
    def __init__(self, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        self.faults = Faults()
        self._sleep = sleep
        self._clusters: dict[str, Cluster] = {}

    def cluster(self, name: str) -> Cluster:
        if name not in self._clusters:
            self._clusters[name] = Cluster(following.Changes(self._sleep))
        return self._clusters[name]

    def expire_leader(self, name: str) -> None:
        """Drop the leader without its knowing, as a server does with a lease that ran out or was revoked."""
        self.cluster(name).beat = None
        self.cluster(name).changes.bump()

    async def answer(self) -> None:
        if self.faults.delay_s:
            await self._sleep(self.faults.delay_s)
        if self.faults.outage:
            raise CoordinationLost("the memory store is out of order, by order of a test; nothing was changed")


class MemoryTerm(Tenure):
    def __init__(
        self, store: MemoryStore, cluster: Cluster, record: TermRecord, proof: Proof, timing: Timing, limit: int
    ) -> None:
        super().__init__(record, proof, cluster.record, timing)
        self._store = store
        self._cluster = cluster
        self._limit = limit

    def _leads(self) -> bool:
        cluster = self._cluster
        return cluster.beat is not None and cluster.record is not None and cluster.record.epoch == self.epoch

    async def _append(self, index: int, batch: bytes) -> None:
        check_size(batch, self._limit)
        fates = self._store.faults.appends
        fate = fates.popleft() if fates else "answered"
        await self._store.answer()
        if fate == "lost":
            raise append_unknown(index, "lost on the way, by order of a test")
        self._write(index, bytes(batch))
        if fate == "written_unanswered":
            raise append_unknown(index, "the answer was lost, by order of a test")

    async def _is_written(self, index: int, batch: bytes) -> bool:
        await self._store.answer()
        return self._cluster.batches.get(index) == (self.epoch, batch)

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
        cluster.changes.bump()

    async def _renew(self, settles: bool) -> None:
        await self._store.answer()
        if not self._leads():
            raise Deposed(f"epoch {self.epoch} leads no more")
        assert self._cluster.beat is not None
        assert self._cluster.record is not None
        self._cluster.beat += 1
        if settles:
            self._cluster.record = msgspec.structs.replace(self._cluster.record, doubtful=False)

    async def _resign(self) -> None:
        await self._store.answer()
        if self._leads():
            assert self._cluster.record is not None
            self._cluster.record = msgspec.structs.replace(self._cluster.record, resigned=True)
            self._cluster.beat = None
            self._cluster.changes.bump()


class MemoryCoordination:
    max_batch_bytes = MIB
    appends_in_flight = 1
    look_every_s = 1.0

    def __init__(
        self,
        store: MemoryStore,
        cluster: str = "holdfast",
        leader_ttl_ms: int = 5000,
        clock: Callable[[], float] = now_seconds,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.timing = Timing(leader_ttl_ms / 1000, clock, sleep)
        self._store = store
        self._cluster = store.cluster(cluster)
        self._terms: list[Tenure] = []

    async def campaign(self, address: str, replacing: int | None = None) -> Term:
        return await campaign(self, address, replacing)

    def leader_changes(self) -> int:
        return self._cluster.changes.count

    async def leader_changed(self, seen: int, wait_s: float) -> None:
        await self._cluster.changes.beyond(seen, wait_s)

    async def look(self) -> Look:
        await self._store.answer()
        return Look(self._cluster.record, self._mark())

    async def take(self, address: str, look: Look, proof: Proof) -> Tenure | None:
        sent_at = self.timing.clock()
        await self._store.answer()
        cluster = self._cluster
        if cluster.record != look.record or (proof == "silence" and self._mark() not in (None, look.mark)):
            return None
        epoch = 1 if cluster.record is None else cluster.record.epoch + 1
        record = TermRecord(epoch, address, doubtful=proof == "guess")
        term = MemoryTerm(self._store, cluster, record, proof, self.timing, self.max_batch_bytes)
        cluster.record, cluster.beat = record, 0
        cluster.changes.bump()
        self._terms = [*(term for term in self._terms if not term.over), term]
        term.begin(sent_at, self)
        return term

    def _mark(self) -> tuple[int, int] | None:
        record, beat = self._cluster.record, self._cluster.beat
        return None if record is None or beat is None else (record.epoch, beat)

    async def leader(self) -> Leader | None:
        await self._store.answer()
        record = self._cluster.record
        return None if record is None or self._cluster.beat is None else Leader(record.epoch, record.address)

    def watch_leader(self) -> AsyncGenerator[Leader | None, None]:
        return following.watch_leader(
            self.leader, self.leader_changes, self.leader_changed, self.look_every_s, self.timing.sleep
        )

    def follow(self, after_index: int) -> AsyncGenerator[Batches, None]:
        return following.follow_log(self._read_after, self.last_index, after_index, self.timing.sleep)

    async def _read_after(self, after_index: int) -> Batches:
        seen = self._cluster.changes.count
        await self._store.answer()
        batches = self._cluster.batches
        if self._cluster.last <= after_index:
            await self._cluster.changes.beyond(seen, self.look_every_s)
            return []
        first = next(iter(batches))
        if first > after_index + 1:
            raise Compacted(first)
        found: Batches = []
        size_bytes = 0
        for index in range(after_index + 1, self._cluster.last + 1):
            found.append((index, batches[index][1]))
            size_bytes += len(batches[index][1])
            if size_bytes >= following.READ_BYTES:
                break
        return found

    async def last_index(self) -> int:
        await self._store.answer()
        return self._cluster.last

    async def trim(self, through_index: int) -> None:
        await self._store.answer()
        batches = self._cluster.batches
        while batches and (first := next(iter(batches))) <= min(through_index, self._cluster.last - 1):
            del batches[first]

    async def publish(self, name: str, value: bytes, ttl_ms: int | None) -> None:
        await self._store.answer()
        until = float("inf") if ttl_ms is None else self.timing.clock() + ttl_ms / 1000
        self._cluster.published[name] = (bytes(value), until)

    async def read(self, name: str) -> bytes | None:
        return (await self.list(name)).get(name)

    async def list(self, prefix: str) -> dict[str, bytes]:
        await self._store.answer()
        now = self.timing.clock()
        published = self._cluster.published
        for name in [name for name, (_, until) in published.items() if until <= now]:
            del published[name]
        return {name: value for name, (value, _) in sorted(published.items()) if name.startswith(prefix)}

    async def unpublish(self, name: str) -> None:
        await self._store.answer()
        self._cluster.published.pop(name, None)

    async def log_bytes(self) -> int:
        await self._store.answer()
        return sum(len(batch) for _, batch in self._cluster.batches.values())

    async def close(self) -> None:
        for term in self._terms:
            await term.resign()


_NAMED: dict[str, MemoryStore] = {}


def named_store(name: str) -> MemoryStore:
    """The store of `memory://NAME`, shared in this process; without a name, one of its own."""
    if not name:
        return MemoryStore()
    return _NAMED.setdefault(name, MemoryStore())

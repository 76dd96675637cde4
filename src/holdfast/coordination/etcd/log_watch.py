"""Following the log in etcd: a watch reports new batches while they are rare.

A watch gets an event for every batch, which costs its receiver about as much as a read. So while batches come one after
another nothing is watched: the log is read at an interval, several batches at once, until a read finds none.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from holdfast.coordination.codec import decode_batch
from holdfast.coordination.etcd import rpc
from holdfast.coordination.etcd.channel import EtcdChannel
from holdfast.coordination.etcd.term import Keys, decode_tail, found, get, txn
from holdfast.coordination.interface import Batches, Compacted, LogBehind
from holdfast.coordination.watches import READ_BYTES, Changes
from holdfast.instant import now_seconds
from holdfast.supervisor import Supervisor

READ_KEYS = (4, 1024)
FOLLOW_EVERY_S = 0.02
"""Least interval between two reads: under load a read brings several batches for the cost of one."""


@dataclass(eq=False)
class EtcdFollower:
    _channel: EtcdChannel
    _keys: Keys
    _look_every_s: float
    _supervisor: Supervisor
    _changes: Changes = field(default_factory=Changes)
    _seen: int = -1
    _limit: int = READ_KEYS[0]
    _rested_at: float = 0.0
    _found_at: float = 0.0
    _watching: asyncio.Task[None] | None = None

    async def read(self, after: int) -> Batches:
        """The batches that follow; empty if none come for a while. `Compacted`, `LogBehind`."""
        if self._watching is not None:
            await self._changes.beyond(self._seen, self._look_every_s)
        await asyncio.sleep(max(0.0, self._rested_at - now_seconds()))
        seen_before, self._seen = self._changes.count, -1
        batches = get(self._keys.batch(after + 1), range_end=self._keys.log_end, limit=self._limit)
        answer = await self._channel.read(lambda stubs: stubs.kv.Txn, txn([], [batches, get(self._keys.tail)]))
        kvs = found(answer, 0)
        now = now_seconds()
        if len(kvs) < self._limit:  # That was all: do not read again before something changes.
            self._seen, self._rested_at = seen_before, now + FOLLOW_EVERY_S
        if not kvs:
            last = decode_tail(found(answer, 1)).number
            if last < after:
                raise LogBehind(last, after)
            self._watch()
            return []
        if now - self._found_at < 3 * FOLLOW_EVERY_S:
            await self.end()
        self._found_at = now
        return self._decoded(kvs, after)

    def _decoded(self, kvs: Any, after: int) -> Batches:
        if self._keys.index(kvs[0].key) != after + 1:
            raise Compacted(self._keys.index(kvs[0].key))
        mean_bytes = max(1, sum(len(kv.value) for kv in kvs) // len(kvs))
        self._limit = min(max(READ_KEYS[0], READ_BYTES // mean_bytes), READ_KEYS[1])
        return [(self._keys.index(kv.key), decode_batch(kv.value).batch) for kv in kvs]

    def _watch(self) -> None:
        if self._watching is None:
            wanted = [rpc.WatchCreateRequest(key=self._keys.tail)]
            watch = partial(self._channel.keep_watching, wanted, lambda _: self._changes.bump())
            self._watching = asyncio.create_task(self._supervisor.keep("watch of the log in etcd", watch))

    async def end(self) -> None:
        """Stop watching."""
        watching, self._watching = self._watching, None
        if watching is not None:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

"""Coordination in etcd: the production default.

The leader key is attached to a lease that the leader keeps alive; a campaigner reads how much of that lease is left and
so knows, by its own clock, until when the leader may be answering, even if somebody revokes the lease. A watch event
only means that it is time to read again: Debian's etcd 3.4 loses and repeats events.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from holdfast.coordination import watches
from holdfast.coordination.campaign import Look
from holdfast.coordination.candidate import Candidate
from holdfast.coordination.codec import decode_batch, decode_leader, encode_leader, encode_process, encode_record
from holdfast.coordination.etcd import rpc
from holdfast.coordination.etcd.channel import EtcdChannel, range_end_of
from holdfast.coordination.etcd.leases import SharedLeases
from holdfast.coordination.etcd.log_watch import EtcdFollower
from holdfast.coordination.etcd.term import (
    EtcdTerm,
    Keys,
    created_at,
    decode_process,
    decode_record,
    decode_tail,
    delete,
    found,
    get,
    put,
    txn,
)
from holdfast.coordination.interface import MIB, Batches, CoordinationLost, Landmark, Leader
from holdfast.coordination.terms import Tenure, TermRecord, TermSeat, Timing, Verdict
from holdfast.coordination.urls import Location
from holdfast.errors import HoldfastError, Uncertain
from holdfast.instant import now_seconds
from holdfast.supervisor import Supervisor

log = logging.getLogger("holdfast.coordination")
LEASE_GONE = "requested lease not found"
"""Text of etcd's error."""

TRIM_KEYS = 512


class EtcdCoordination(Candidate):
    max_batch_bytes = MIB
    appends_in_flight = 4
    look_every_s = 0.5

    def __init__(self, place: Location, leader_ttl_ms: int, supervisor: Supervisor | None = None) -> None:
        super().__init__(Timing(leader_ttl_ms / 1000, now_seconds), supervisor)
        self.keys = Keys(place.cluster)
        self.channel = EtcdChannel(place, self.timing.answer_s)
        self._compacts = place.options.get("compact", "on") != "off"
        self._news = watches.Changes()
        self._leases = SharedLeases(self.channel, self.timing.clock)
        self._watching: asyncio.Task[None] | None = None

    async def open(self) -> None:
        await self.channel.authenticate()
        await self.last_index()
        self._watching = asyncio.create_task(self.supervisor.keep("watch of etcd", self._keep_watching))

    async def _keep_watching(self) -> None:
        published = self.keys.published.encode()
        wanted = [
            rpc.WatchCreateRequest(key=self.keys.leader),
            rpc.WatchCreateRequest(key=published, range_end=range_end_of(published)),
        ]

        def told(events: list[Any]) -> None:
            if not events or any(event.kv.key == self.keys.leader for event in events):
                self._leader_changes.bump()
            if not events or any(event.kv.key.startswith(published) for event in events):
                self._news.bump()

        await self.channel.keep_watching(wanted, told)

    async def _read(self, *operations: Any) -> Any:
        return await self.channel.read(lambda stubs: stubs.kv.Txn, txn([], list(operations)))

    async def _write(self, request: Any) -> Any:
        return await self.channel.write(lambda stubs: stubs.kv.Txn, request)

    async def look(self) -> Look:
        keys = self.keys
        answer = await self._read(get(keys.leader), get(keys.epoch), get(keys.process), get(keys.leading))
        leader, record = found(answer, 0), decode_record(found(answer, 1))
        process = decode_process(found(answer, 2), record)
        if not leader:
            # A term without a named process is of an older version, which has no `leading` key that could run out.
            return Look(record, expired=process is not None and not found(answer, 3), leader=process)
        promised_until = await self._promised_until(leader[0].lease)
        return Look(record, leader[0].create_revision, promised_until, leader=process)

    async def _promised_until(self, lease: int) -> float | None:
        """None if the lease is gone. etcd rounds the seconds down, so one more may be left."""
        request = rpc.LeaseTimeToLiveRequest(ID=lease)
        left = await self.channel.read(lambda stubs: stubs.lease.LeaseTimeToLive, request)
        if left.TTL < 0:
            return None
        renewed_by = self.timing.clock() - (left.grantedTTL - left.TTL - 1)
        return float(renewed_by + self.timing.ttl_s)

    async def take(self, address: str, look: Look, verdict: Verdict) -> Tenure | None:
        sent_at = self.timing.clock()
        ttl = rpc.LeaseGrantRequest(TTL=math.ceil(self.timing.ttl_s))
        leases: list[int] = []
        term: EtcdTerm | None = None
        try:
            while len(leases) < 2:
                leases.append((await self.channel.write(lambda stubs: stubs.lease.LeaseGrant, ttl)).ID)
            term = await self._take(address, look, verdict, *leases)
        finally:
            if term is None:
                for lease in leases:
                    await self._revoke(lease)
        if term is not None:
            self._terms.begin(term, sent_at, self)
        return term

    async def _take(self, address: str, look: Look, verdict: Verdict, lease: int, leading: int) -> EtcdTerm | None:
        keys = self.keys
        if look.mark is not None:
            # One transaction may not both delete and put a key. Between the two, the first campaigner wins.
            deposing = txn([created_at(keys.leader, int(str(look.mark)))], [delete(keys.leader)])
            if not (await self._write(deposing)).succeeded:
                return None
        record = verdict.record(look.record, address, self.epoch_floor)
        winning = txn(
            [created_at(keys.leader, 0), self._unchanged(look.record)],
            [
                put(keys.leader, encode_leader(Leader(record.epoch, address)), lease),
                put(keys.epoch, encode_record(record)),
                get(keys.tail),
                put(keys.process, encode_process(verdict.leader_process(record))),
                put(keys.leading, b"", leading),
            ],
        )
        answer = await self._write(winning)
        if not answer.succeeded:
            return None
        seat = TermSeat(record, verdict, look.record, self.timing)
        tail, fence = decode_tail(found(answer, 2)), answer.header.revision
        return EtcdTerm(seat, self.channel, keys, (lease, leading), fence, tail)

    def _unchanged(self, record: TermRecord | None) -> Any:
        if record is None:
            return created_at(self.keys.epoch, 0)
        return rpc.Compare(
            key=self.keys.epoch, target=rpc.Compare.VALUE, result=rpc.Compare.EQUAL, value=encode_record(record)
        )

    async def _revoke(self, lease: int) -> None:
        try:
            await self.channel.write(lambda stubs: stubs.lease.LeaseRevoke, rpc.LeaseRevokeRequest(ID=lease))
        except (CoordinationLost, Uncertain) as error:
            log.warning("a lease of a lost campaign was not revoked and will run out: %s", error)

    async def leader(self) -> Leader | None:
        kvs = found(await self._read(get(self.keys.leader)), 0)
        return decode_leader(kvs[0].value) if kvs else None

    async def follow(self, after_index: int) -> AsyncGenerator[Batches, None]:
        follower = EtcdFollower(self.channel, self.keys, self.look_every_s, self.supervisor)
        try:
            async with aclosing(watches.follow_log(follower.read, after_index)) as several:
                async for batches in several:
                    yield batches
        finally:
            await follower.end()

    async def last_index(self) -> int:
        return decode_tail(found(await self._read(get(self.keys.tail)), 0)).number

    async def trim(self, through_index: int, landmark: Landmark | None = None) -> bool:
        through = min(through_index, await self.last_index() - 1)
        first = get(self.keys.batch(0), range_end=self.keys.log_end, limit=1, keys_only=True)
        revision = 0
        recognised = True
        while True:
            kvs = found(await self._read(first), 0)
            if not kvs or self.keys.index(kvs[0].key) > through:
                break
            unchanged = [] if landmark is None else await self._while_it_holds(landmark)
            if unchanged is None:
                recognised = False
                break
            end = min(self.keys.index(kvs[0].key) + TRIM_KEYS, through + 1)
            request = txn(unchanged, [delete(kvs[0].key, self.keys.batch(end))])
            answer = await self.channel.write(lambda stubs: stubs.kv.Txn, request)
            revision = answer.header.revision
        if revision and self._compacts:
            await self._compact(revision)
        return recognised

    async def _while_it_holds(self, landmark: Landmark) -> list[Any] | None:
        """The condition of a transaction that this very batch is in the log; None if it is not there now."""
        key = self.keys.batch(landmark.number)
        kvs = found(await self._read(get(key)), 0)
        if not kvs or not landmark.is_it(decode_batch(kvs[0].value).batch):
            return None
        return [created_at(key, kvs[0].create_revision)]

    async def _compact(self, revision: int) -> None:
        """Compact: etcd keeps deleted keys until then, and the log would fill it."""
        try:
            await self.channel.write(lambda stubs: stubs.kv.Compact, rpc.CompactionRequest(revision=revision))
        except HoldfastError as error:
            # Another compaction may have gone further, or this user lacks the permission: the trim itself is done.
            log.info("etcd was not compacted: %s", error)

    async def publish(self, name: str, value: bytes, ttl_ms: int | None) -> None:
        key = (self.keys.published + name).encode()
        if ttl_ms is None:
            await self._write(txn([], [put(key, value)]))
            return
        try:
            await self._publish_for(key, value, ttl_ms)
        except HoldfastError as error:
            if LEASE_GONE not in str(error):
                raise
            # An etcd that was emptied does not know earlier leases; the next attempt gets a new one.
            await self._publish_for(key, value, ttl_ms)

    async def _publish_for(self, key: bytes, value: bytes, ttl_ms: int) -> None:
        lease = await self._leases.lease_for(ttl_ms)
        try:
            await self._write(txn([], [put(key, value, lease)]))
        except HoldfastError:
            # The lease may be gone: a retry gets another one.
            self._leases.forget(lease)
            raise

    async def read(self, name: str) -> bytes | None:
        kvs = found(await self._read(get((self.keys.published + name).encode())), 0)
        return bytes(kvs[0].value) if kvs else None

    async def list(self, prefix: str) -> dict[str, bytes]:
        return (await self._published(prefix, 0))[0]

    async def _published(self, prefix: str, after_revision: int) -> tuple[dict[str, bytes], int]:
        """The values put there after that revision, and the revision that was read."""
        start = (self.keys.published + prefix).encode()
        options = {"min_mod_revision": after_revision + 1} if after_revision else {}
        answer = await self._read(get(start, range_end=range_end_of(start), **options))
        cut = len(self.keys.published)
        return {
            kv.key.decode(errors="replace")[cut:]: bytes(kv.value) for kv in found(answer, 0)
        }, answer.header.revision

    def watch(self, prefix: str) -> AsyncGenerator[dict[str, bytes], None]:
        revision = 0

        async def read() -> dict[str, bytes]:
            nonlocal revision
            news, revision = await self._published(prefix, revision)
            return news

        return watches.watch_published(read, lambda: self._news.count, self._news.beyond, self.look_every_s)

    async def unpublish(self, name: str) -> None:
        await self._write(txn([], [delete((self.keys.published + name).encode())]))

    async def log_bytes(self) -> int:
        first = get(self.keys.batch(0), range_end=self.keys.log_end, limit=1)
        answer = await self._read(get(self.keys.tail), first)
        if not found(answer, 1):
            return 0
        stored = decode_batch(found(answer, 1)[0].value)
        return decode_tail(found(answer, 0)).total_bytes - stored.total_bytes + len(stored.batch)

    async def close(self) -> None:
        await self._terms.resign()
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        await self.channel.close()

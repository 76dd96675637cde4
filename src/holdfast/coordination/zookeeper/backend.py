"""Coordination in ZooKeeper, through kazoo.

The leader writes its ephemeral node again and again; others judge its silence by their own clock from the last write
they saw, so neither a session that outlasts its timeout nor one that ends early can mislead them. Batches are nodes
with numbers of our own, found without ever listing them.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

import msgspec
from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError
from kazoo.security import CREATOR_ALL_ACL, make_acl

from holdfast.coordination import watches
from holdfast.coordination.campaign import Look
from holdfast.coordination.candidate import Candidate
from holdfast.coordination.codec import (
    TTL,
    decode_batch,
    decode_leader,
    decode_process,
    decode_record,
    decode_tail,
    decode_ttl,
    encode_leader,
    encode_process,
    encode_record,
    encode_tail,
)
from holdfast.coordination.interface import Batches, Compacted, CoordinationLost, Landmark, Leader, LogBehind
from holdfast.coordination.terms import Tail, Tenure, TermSeat, Timing, Verdict
from holdfast.coordination.urls import Location
from holdfast.coordination.zookeeper.published import PublishedWatch
from holdfast.coordination.zookeeper.session import ZooKeeperSession
from holdfast.coordination.zookeeper.term import MAX_BATCH_BYTES, Paths, ZooKeeperTerm
from holdfast.errors import Uncertain
from holdfast.instant import now_seconds
from holdfast.supervisor import Supervisor

log = logging.getLogger("holdfast.coordination")

TRIM_NODES = 64
READ_NODES = (4, 256)


@dataclass(frozen=True, slots=True)
class ZooKeeperLook(Look):
    epoch_version: int = 0
    leader_version: int | None = None


class ZooKeeperCoordination(Candidate):
    max_batch_bytes = MAX_BATCH_BYTES
    appends_in_flight = 4
    look_every_s = 0.5

    def __init__(self, place: Location, leader_ttl_ms: int, supervisor: Supervisor | None = None) -> None:
        super().__init__(Timing(leader_ttl_ms / 1000, now_seconds), supervisor)
        self.paths = Paths(place.cluster)
        self.session = ZooKeeperSession(place, self.timing.ttl_s, self.timing.answer_s)
        self.client = self.session.client
        self._log_changes = watches.Changes()
        self._seen: dict[str, tuple[int, float]] = {}
        self._expiring: deque[tuple[float, str]] = deque()
        self.session.when_moved(self._leader_changes.bump)
        self.session.when_moved(self._log_changes.bump)
        self.session.when_lost(self._lose_terms)

    async def open(self) -> None:
        await self.session.open()
        await self._open_root()
        await self._lay_out()

    async def _open_root(self) -> None:
        """Make the node above all clusters, where the user of another cluster may add its own; and look whether this
        cluster's nodes were made before there was a user."""
        if not self.client.default_acl:
            return
        try:
            shared = [*CREATOR_ALL_ACL, make_acl("world", "anyone", read=True, create=True)]
            await self.session.write(self.client.create_async(Paths.ROOT, b"", acl=shared))
        except NodeExistsError:
            pass  # Another cluster has made it.
        except Uncertain as error:
            raise CoordinationLost(str(error)) from error
        try:
            acls, _ = await self.session.read(self.client.get_acls_async(self.paths.root))
        except NoNodeError:
            return
        if any(acl.id.scheme == "world" for acl in acls):
            log.warning(
                "nodes of this cluster were made without a user and are open to everybody who reaches ZooKeeper; "
                "close them: zkCli.sh setAcl -R %s auth::cdrwa",
                self.paths.root,
            )

    async def _lay_out(self) -> None:
        """Make the missing nodes: all of them the first time, and after ZooKeeper was emptied."""
        for path, value in (
            (self.paths.log, b""),
            (self.paths.published, b""),
            (self.paths.doubt, b""),
            (self.paths.process, b""),
            (self.paths.first, encode_tail(1, 0)),
            (self.paths.tail, encode_tail(0, 0)),
            (self.paths.epoch, b""),
        ):
            try:
                await self.session.write(self.client.create_async(path, value, makepath=True))
            except NodeExistsError:
                pass  # It exists, as wanted.
            except Uncertain as error:
                raise CoordinationLost(str(error)) from error

    def _lose_terms(self) -> None:
        self._terms.finish("the ZooKeeper session was lost")

    def _leader_event(self, _: Any) -> None:
        self.session.soon(self._leader_changes.bump)

    def _log_event(self, _: Any) -> None:
        self.session.soon(self._log_changes.bump)

    async def _leader_node(self) -> tuple[bytes, Any] | None:
        try:
            value, stat = await self.session.read(self.client.get_async(self.paths.leader, self._leader_event))
        except NoNodeError:
            # A missing node can only be watched by asking whether it exists.
            found = await self.session.read(self.client.exists_async(self.paths.leader, self._leader_event))
            if found is not None:
                self._leader_changes.bump()
            return None
        return value, stat

    async def look(self) -> Look:
        # Read the epoch first: if another term begins in between, `take` finds another version of it and fails.
        try:
            epoch, stat = await self.session.read(self.client.get_async(self.paths.epoch))
            doubt, _ = await self.session.read(self.client.get_async(self.paths.doubt))
            stored, _ = await self.session.read(self.client.get_async(self.paths.process))
        except NoNodeError:
            raise await self._emptied() from None
        record = msgspec.structs.replace(decode_record(epoch), doubtful=bool(doubt)) if epoch else None
        process = decode_process(stored, record)
        node = await self._leader_node()
        if node is None:
            return ZooKeeperLook(record, leader=process, epoch_version=stat.version)
        mark, version = (node[1].czxid, node[1].version), node[1].version
        return ZooKeeperLook(record, mark, leader=process, epoch_version=stat.version, leader_version=version)

    async def take(self, address: str, look: Look, verdict: Verdict) -> Tenure | None:
        assert isinstance(look, ZooKeeperLook)
        sent_at = self.timing.clock()
        record = verdict.record(look.record, address, self.epoch_floor)
        winning = self.client.transaction()
        winning.set_data(self.paths.epoch, encode_record(record), look.epoch_version)
        winning.set_data(self.paths.doubt, b"1" if record.doubtful else b"")
        winning.set_data(self.paths.process, encode_process(verdict.leader_process(record)))
        if look.leader_version is not None:
            winning.delete(self.paths.leader, look.leader_version if verdict.proof == "silence" else -1)
        winning.create(self.paths.leader, encode_leader(Leader(record.epoch, address)), ephemeral=True)
        try:
            results = await self.session.commit(winning)
            if results is None:
                return None
            tail = await self._tail(self.paths.tail)
        except (CoordinationLost, Uncertain):
            await self._leave_nothing()
            raise
        seat = TermSeat(record, verdict, look.record, self.timing)
        term = ZooKeeperTerm(seat, self.session, self.paths, results[0].version, tail)
        self._terms.begin(term, sent_at, self)
        return term

    async def _leave_nothing(self) -> None:
        """Delete our leader node, if there is one: a campaign that failed may have won, and must not keep others
        waiting."""
        try:
            _, stat = await self.session.read(self.client.get_async(self.paths.leader))
            if stat.ephemeralOwner == self.session.number:
                await self.session.write(self.client.delete_async(self.paths.leader))
        except NoNodeError:
            pass  # There is nothing to remove.
        except (CoordinationLost, Uncertain) as error:
            log.warning("what a lost campaign may have left will run out by silence: %s", error)

    async def _tail(self, path: str, watch: Any = None) -> Tail:
        try:
            value, stat = await self.session.read(self.client.get_async(path, watch))
        except NoNodeError:
            raise await self._emptied() from None
        return decode_tail(value, stat.version)

    async def _emptied(self) -> CoordinationLost:
        """The cluster's nodes were removed while this process ran: make them again, and let the caller retry."""
        await self._lay_out()
        return CoordinationLost(f"ZooKeeper at {self.session.hosts} was emptied; its log begins anew")

    async def leader(self) -> Leader | None:
        found = await self._leader_node()
        return None if found is None else decode_leader(found[0])

    def follow(self, after_index: int) -> AsyncGenerator[Batches, None]:
        limit = READ_NODES[0]

        async def read(after: int) -> Batches:
            nonlocal limit
            seen = self._log_changes.count
            tail = await self._tail(self.paths.tail, self._log_event)
            if tail.number < after:
                # This server may be behind the others: only a read after a sync proves that the log ends here.
                last = await self.last_index()
                if last < after:
                    raise LogBehind(last, after)
            if tail.number <= after:
                await self._log_changes.beyond(seen, self.look_every_s)
                return []
            batches = await self._batches(after, min(tail.number, after + limit))
            mean_bytes = max(1, sum(len(batch) for _, batch in batches) // len(batches))
            limit = min(max(READ_NODES[0], watches.READ_BYTES // mean_bytes), READ_NODES[1])
            return batches

        return watches.follow_log(read, after_index)

    async def _batches(self, after: int, through: int) -> Batches:
        asked = [self.client.get_async(self.paths.batch(index)) for index in range(after + 1, through + 1)]
        batches: Batches = []
        for index, result in enumerate(asked, after + 1):
            try:
                value, _ = await self.session.read(result)
            except NoNodeError:
                # It was in the log, so it was trimmed, and all before it too.
                raise Compacted((await self._tail(self.paths.first)).number) from None
            batches.append((index, decode_batch(value).batch))
        return batches

    async def last_index(self) -> int:
        try:
            await self.session.read(self.client.sync_async(self.paths.root))
        except NoNodeError:
            raise await self._emptied() from None
        return (await self._tail(self.paths.tail)).number

    async def trim(self, through_index: int, landmark: Landmark | None = None) -> bool:
        through = min(through_index, await self.last_index() - 1)
        while (first := await self._tail(self.paths.first)).number <= through:
            if landmark is not None and not await self._has(landmark):
                return False
            end = min(first.number + TRIM_NODES - 1, through)
            value, _ = await self.session.read(self.client.get_async(self.paths.batch(end)))
            step = self.client.transaction()
            step.set_data(self.paths.first, encode_tail(end + 1, decode_batch(value).total_bytes), first.version)
            for index in range(first.number, end + 1):
                step.delete(self.paths.batch(index))
            if await self.session.commit(step) is None:
                log.info("somebody else trims the log too")
                return True
        return True

    async def _has(self, landmark: Landmark) -> bool:
        try:
            value, _ = await self.session.read(self.client.get_async(self.paths.batch(landmark.number)))
        except NoNodeError:
            return False
        return landmark.is_it(decode_batch(value).batch)

    async def publish(self, name: str, value: bytes, ttl_ms: int | None) -> None:
        path = self.paths.of_published(name)
        content = TTL.pack(ttl_ms or 0) + value
        await self._sweep()
        stat = None
        while stat is None:  # Another process may create or delete it between the two.
            try:
                stat = await self.session.write(self.client.set_async(path, content))
            except NoNodeError:
                stat = await self._created(path, content)
        if ttl_ms is not None:
            self._seen[name] = (stat.mzxid, self.timing.clock())
            self._expiring.append((self.timing.clock() + ttl_ms / 1000, name))

    async def _created(self, path: str, content: bytes) -> Any:
        """Create the node; return its stat, None if another process was faster."""
        try:
            creation = self.client.create_async(path, content, makepath=True, include_data=True)
            return (await self.session.write(creation))[1]
        except NodeExistsError:
            return None

    async def _sweep(self) -> None:
        """Delete our expired values: ZooKeeper does not expire nodes, so the publisher deletes them."""
        while self._expiring and self._expiring[0][0] <= self.timing.clock():
            first = self._expiring[0]
            await self.read(first[1])
            # Removed from the list only now: while ZooKeeper does not answer, it stays to be deleted later.
            if self._expiring and self._expiring[0] is first:
                self._expiring.popleft()

    async def read(self, name: str) -> bytes | None:
        path = self.paths.of_published(name)
        try:
            content, stat = await self.session.read(self.client.get_async(path))
        except NoNodeError:
            self._seen.pop(name, None)
            return None
        ttl_ms = decode_ttl(name, content)
        if ttl_ms and await self._is_past(name, path, stat, ttl_ms):
            return None
        return self.paths.published_value(content)

    async def _is_past(self, name: str, path: str, stat: Any, ttl_ms: int) -> bool:
        """Has the value expired? No clock is shared (I16): the time counts from when this process first saw it."""
        now = self.timing.clock()
        if self._seen.get(name, (0, 0.0))[0] != stat.mzxid:
            self._seen[name] = (stat.mzxid, now)
        if now - self._seen[name][1] < ttl_ms / 1000:
            return False
        try:
            await self.session.write(self.client.delete_async(path, stat.version))
        except NoNodeError:
            pass  # Another reader was faster.
        except BadVersionError:
            # It was published anew meanwhile: the value that was read has expired, the one that is there has not.
            return True
        self._seen.pop(name, None)
        return True

    async def list(self, prefix: str) -> dict[str, bytes]:
        children = await self.session.read(self.client.get_children_async(self.paths.published))
        names = sorted(name for name in map(self.paths.published_name, children) if name.startswith(prefix))
        values = await asyncio.gather(*(self.read(name) for name in names))
        return {name: value for name, value in zip(names, values, strict=True) if value is not None}

    async def watch(self, prefix: str) -> AsyncGenerator[dict[str, bytes], None]:
        watching = PublishedWatch(self.session, self.paths, self.read, prefix)
        changes = watching.changes
        try:
            async for news in watches.watch_published(
                watching.read, lambda: changes.count, changes.beyond, self.look_every_s
            ):
                yield news
        finally:
            watching.close()

    async def unpublish(self, name: str) -> None:
        try:
            await self.session.write(self.client.delete_async(self.paths.of_published(name)))
        except NoNodeError:
            pass  # It was not there, as wanted.

    async def log_bytes(self) -> int:
        first, tail = await asyncio.gather(self._tail(self.paths.first), self._tail(self.paths.tail))
        return tail.total_bytes - first.total_bytes

    async def close(self) -> None:
        await self._terms.resign()
        await self.session.close()

"""A term on ZooKeeper: the version of the persistent epoch node is checked in the transaction that adds a batch.

The ephemeral leader node is no fence (recreated, it starts at version 0 again); others only watch it.
"""

from __future__ import annotations

from urllib.parse import quote, unquote

import msgspec
from kazoo.exceptions import NoNodeError

from holdfast.coordination.codec import (
    TTL,
    decode_batch,
    decode_tail,
    encode_batch,
    encode_leader,
    encode_record,
    encode_tail,
)
from holdfast.coordination.interface import Deposed, Leader
from holdfast.coordination.terms import Tail, TailTenure, TermSeat
from holdfast.coordination.zookeeper.session import ZooKeeperSession

MAX_BATCH_BYTES = 768 << 10


class Paths:
    ROOT = "/holdfast"
    """Above all clusters."""

    def __init__(self, cluster: str) -> None:
        self.root = f"{self.ROOT}/{cluster}"
        self.leader = f"{self.root}/leader"
        self.epoch = f"{self.root}/epoch"
        self.doubt = f"{self.root}/doubt"
        """Not empty while the last term is in doubt: won by a guess that may still be wrong."""
        self.process = f"{self.root}/process"
        """The process that leads. Separate from the epoch, whose bytes masters of older versions compare."""
        self.tail = f"{self.root}/tail"
        self.first = f"{self.root}/first"
        """The first batch that was not trimmed, and the total bytes of those before it."""
        self.log = f"{self.root}/log"
        self.published = f"{self.root}/published"

    def batch(self, index: int) -> str:
        return f"{self.log}/{index:020d}"

    def of_published(self, name: str) -> str:
        # A node may not be called `.` or `..`; a sign before every name prevents that.
        return f"{self.published}/={quote(name, safe='')}"

    def published_name(self, node: str) -> str:
        return unquote(node[1:])

    def published_value(self, content: bytes) -> bytes:
        """The value without its prefix, the time to live in milliseconds or 0."""
        return bytes(content[TTL.size :])


class ZooKeeperTerm(TailTenure):
    def __init__(self, seat: TermSeat, session: ZooKeeperSession, paths: Paths, fence: int, tail: Tail) -> None:
        super().__init__(seat, fence, tail, MAX_BATCH_BYTES)
        self._session = session
        self._paths = paths

    async def _put(self, batch: bytes, before: Tail, after: Tail) -> bool:
        adding = self._session.client.transaction()
        adding.check(self._paths.epoch, self._fence)
        adding.create(self._paths.batch(after.number), encode_batch(self.epoch, after.total_bytes, batch))
        adding.set_data(self._paths.tail, encode_tail(after.number, after.total_bytes), before.version)
        return await self._session.commit(adding) is not None

    async def _is_written(self, index: int, batch: bytes) -> bool:
        session, client = self._session, self._session.client
        # A read may be stale; after a sync it is at least as new as the transaction that was just refused.
        await session.read(client.sync_async(self._paths.root))
        _, epoch = await session.read(client.get_async(self._paths.epoch))
        try:
            value, _ = await session.read(client.get_async(self._paths.batch(index)))
            stored = decode_batch(value)
        except NoNodeError:
            stored = None
        is_written = self._is_of_this_term(index, batch, stored, leads=epoch.version == self._fence)
        value, tail = await session.read(client.get_async(self._paths.tail))
        self._tail = decode_tail(value, tail.version)
        return is_written

    async def _renew(self, ends_doubt: bool) -> None:
        beat = self._session.client.transaction()
        beat.check(self._paths.epoch, self._fence)
        beat.set_data(self._paths.leader, encode_leader(Leader(self.epoch, self.record.address)))
        if ends_doubt:
            beat.set_data(self._paths.doubt, b"")
        if await self._session.commit(beat) is None:
            raise Deposed(f"epoch {self.epoch} leads no more")

    async def _resign(self) -> None:
        record = msgspec.structs.replace(self.record, resigned=True, doubtful=False)
        leaving = self._session.client.transaction()
        leaving.set_data(self._paths.epoch, encode_record(record), self._fence)
        leaving.delete(self._paths.leader)
        await self._session.commit(leaving)

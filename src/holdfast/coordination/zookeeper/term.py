"""A term on ZooKeeper: the version of the persistent epoch node is checked in the transaction that adds a batch.

The ephemeral leader node is no fence (recreated, it starts at version 0 again); others only watch it.
"""

from __future__ import annotations

import struct
from urllib.parse import quote, unquote

import msgspec
from kazoo.exceptions import NoNodeError

from holdfast.coordination.codec import (
    Tail,
    decode_batch,
    decode_tail,
    encode_batch,
    encode_leader,
    encode_record,
    encode_tail,
)
from holdfast.coordination.interface import Deposed, Leader
from holdfast.coordination.terms import Tenure, TermRecord, Timing, Verdict, append_unknown, check_size, out_of_order
from holdfast.coordination.zookeeper.session import ZooKeeperSession
from holdfast.errors import ReplyLost

MAX_BATCH_BYTES = 768 << 10
TTL = struct.Struct(">Q")


class Paths:
    def __init__(self, cluster: str) -> None:
        self.root = f"/holdfast/{cluster}"
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


class ZooKeeperTerm(Tenure):
    def __init__(
        self,
        record: TermRecord,
        verdict: Verdict,
        previous: TermRecord | None,
        timing: Timing,
        session: ZooKeeperSession,
        paths: Paths,
        fence: int,
        tail: Tail,
    ) -> None:
        super().__init__(record, verdict, previous, timing)
        self._session = session
        self._paths = paths
        self._fence = fence
        self._tail = tail

    async def _append(self, index: int, batch: bytes) -> None:
        check_size(batch, MAX_BATCH_BYTES)
        for _ in range(2):
            if index == self._tail.number + 1 and await self._create(index, batch):
                return
            # The tail is not the expected one, or this batch was sent before: the log decides.
            if await self._is_written(index, batch):
                return
            if index != self._tail.number + 1:
                raise out_of_order(index, self._tail.number)
        raise append_unknown(index, "the tail of the log moved while it was appended")

    async def _create(self, index: int, batch: bytes) -> bool:
        tail, self._tail = self._tail, self._tail.with_batch(batch)
        total_bytes = self._tail.total_bytes
        adding = self._session.client.transaction()
        adding.check(self._paths.epoch, self._fence)
        adding.create(self._paths.batch(index), encode_batch(self.epoch, total_bytes, batch))
        adding.set_data(self._paths.tail, encode_tail(index, total_bytes), tail.version)
        try:
            results = await self._session.commit(adding)
        except ReplyLost as error:
            raise append_unknown(index, error) from error
        return results is not None

    async def _is_written(self, index: int, batch: bytes) -> bool:
        """Whether this very batch is in the log. `Deposed` if it is not, and no longer can be."""
        session, client = self._session, self._session.client
        # A read may be stale; after a sync it is at least as new as the transaction that was just refused.
        await session.read(client.sync_async(self._paths.root))
        _, epoch = await session.read(client.get_async(self._paths.epoch))
        try:
            value, _ = await session.read(client.get_async(self._paths.batch(index)))
            stored = decode_batch(value)
        except NoNodeError:
            stored = None
        if stored is not None and (stored.epoch, stored.batch) == (self.epoch, batch):
            await self._read_tail()
            return True
        if epoch.version != self._fence:
            raise Deposed(f"epoch {self.epoch} leads no more; batch {index} was not written")
        await self._read_tail()
        return False

    async def _read_tail(self) -> None:
        value, stat = await self._session.read(self._session.client.get_async(self._paths.tail))
        self._tail = decode_tail(value, stat.version)

    async def _renew(self, settles: bool) -> None:
        beat = self._session.client.transaction()
        beat.check(self._paths.epoch, self._fence)
        beat.set_data(self._paths.leader, encode_leader(Leader(self.epoch, self.record.address)))
        if settles:
            beat.set_data(self._paths.doubt, b"")
        if await self._session.commit(beat) is None:
            raise Deposed(f"epoch {self.epoch} leads no more")

    async def _resign(self) -> None:
        record = msgspec.structs.replace(self.record, resigned=True, doubtful=False)
        leaving = self._session.client.transaction()
        leaving.set_data(self._paths.epoch, encode_record(record), self._fence)
        leaving.delete(self._paths.leader)
        await self._session.commit(leaving)

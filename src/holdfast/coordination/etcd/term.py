"""A term on etcd: the leader key's create_revision is compared in the transaction that puts the batch at the tail."""

from __future__ import annotations

import asyncio

import msgspec
from aetcd import rpc

from holdfast.coordination.codec import Tail, decode_batch, encode_batch, encode_record, encode_tail
from holdfast.coordination.etcd.channel import EtcdChannel
from holdfast.coordination.etcd.keys import (
    Keys,
    created_at,
    decode_tail,
    delete,
    found,
    get,
    has_version,
    put,
    txn,
)
from holdfast.coordination.interface import MIB, Deposed
from holdfast.coordination.terms import Tenure, TermRecord, Timing, Verdict, append_unknown, check_size, out_of_order
from holdfast.errors import ReplyLost


class EtcdTerm(Tenure):
    def __init__(
        self,
        record: TermRecord,
        verdict: Verdict,
        previous: TermRecord | None,
        timing: Timing,
        channel: EtcdChannel,
        keys: Keys,
        leases: tuple[int, int],
        fence: int,
        tail: Tail,
    ) -> None:
        super().__init__(record, verdict, previous, timing)
        self._channel = channel
        self._keys = keys
        self._leases = leases
        self._fence = fence
        self._tail = tail
        self._in_doubt = 0
        """The last batch whose reply was lost; 0 if there is none."""

    async def _append(self, index: int, batch: bytes) -> None:
        check_size(batch, MIB)
        # A full etcd refuses every transaction, even for a batch it has written: so read first.
        if index <= self._in_doubt and await self._is_written(index, batch):
            return
        for _ in range(2):
            if index == self._tail.number + 1 and await self._put(index, batch):
                return
            # The tail is not the expected one, or this batch was sent before: the log decides.
            if await self._is_written(index, batch):
                return
            if index != self._tail.number + 1:
                raise out_of_order(index, self._tail.number)
        raise append_unknown(index, "the tail of the log moved while it was appended")

    async def _put(self, index: int, batch: bytes) -> bool:
        tail, self._tail = self._tail, self._tail.with_batch(batch)
        total_bytes = self._tail.total_bytes
        request = txn(
            [created_at(self._keys.leader, self._fence), has_version(self._keys.tail, tail.version)],
            [
                put(self._keys.batch(index), encode_batch(self.epoch, total_bytes, batch)),
                put(self._keys.tail, encode_tail(index, total_bytes)),
            ],
        )
        try:
            answer = await self._channel.write(lambda stubs: stubs.kv.Txn, request)
        except ReplyLost as error:
            self._in_doubt = max(index, self._in_doubt)
            raise append_unknown(index, error) from error
        return bool(answer.succeeded)

    async def _is_written(self, index: int, batch: bytes) -> bool:
        """Whether this very batch is in the log. `Deposed` if it is not, and no longer can be."""
        request = txn([], [get(self._keys.batch(index)), get(self._keys.leader), get(self._keys.tail)])
        answer = await self._channel.read(lambda stubs: stubs.kv.Txn, request)
        stored = [decode_batch(kv.value) for kv in found(answer, 0)]
        self._tail = decode_tail(found(answer, 2))
        if stored and (stored[0].epoch, stored[0].batch) == (self.epoch, batch):
            return True
        if [kv.create_revision for kv in found(answer, 1)] != [self._fence]:
            raise Deposed(f"epoch {self.epoch} leads no more; batch {index} was not written")
        return False

    async def _renew(self, settles: bool) -> None:
        if min(await asyncio.gather(*map(self._channel.keep_alive, self._leases))) <= 0:
            raise Deposed(f"a lease of epoch {self.epoch} ran out or was revoked")
        # The lease may live although the key belongs to another. The read in it makes this a real transaction.
        record = msgspec.structs.replace(self.record, doubtful=False)
        settling = [put(self._keys.epoch, encode_record(record))] if settles else []
        request = txn([created_at(self._keys.leader, self._fence)], [get(self._keys.leader), *settling])
        if not (await self._channel.read(lambda stubs: stubs.kv.Txn, request)).succeeded:
            raise Deposed(f"epoch {self.epoch} leads no more")

    async def _resign(self) -> None:
        record = msgspec.structs.replace(self.record, resigned=True)
        request = txn(
            [created_at(self._keys.leader, self._fence)],
            [delete(self._keys.leader), put(self._keys.epoch, encode_record(record))],
        )
        await self._channel.write(lambda stubs: stubs.kv.Txn, request)
        for lease in self._leases:
            await self._channel.write(lambda stubs: stubs.lease.LeaseRevoke, rpc.LeaseRevokeRequest(ID=lease))

"""A term on etcd: the leader key's create_revision is compared in the transaction that puts the batch at the tail."""

from __future__ import annotations

import asyncio

import msgspec

from holdfast.coordination.codec import decode_batch, encode_batch, encode_record, encode_tail
from holdfast.coordination.etcd import rpc
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
from holdfast.coordination.terms import Tail, TailTenure, TermSeat


class EtcdTerm(TailTenure):
    """`leases`: those of the leader key and of the `leading` key."""

    def __init__(
        self, seat: TermSeat, channel: EtcdChannel, keys: Keys, leases: tuple[int, int], fence: int, tail: Tail
    ) -> None:
        super().__init__(seat, fence, tail, MIB)
        self._channel = channel
        self._keys = keys
        self._leases = leases

    async def _put(self, batch: bytes, before: Tail, after: Tail) -> bool:
        request = txn(
            [created_at(self._keys.leader, self._fence), has_version(self._keys.tail, before.version)],
            [
                put(self._keys.batch(after.number), encode_batch(self.epoch, after.total_bytes, batch)),
                put(self._keys.tail, encode_tail(after.number, after.total_bytes)),
            ],
        )
        return bool((await self._channel.write(lambda stubs: stubs.kv.Txn, request)).succeeded)

    async def _is_written(self, index: int, batch: bytes) -> bool:
        request = txn([], [get(self._keys.batch(index)), get(self._keys.leader), get(self._keys.tail)])
        answer = await self._channel.read(lambda stubs: stubs.kv.Txn, request)
        stored = [decode_batch(kv.value) for kv in found(answer, 0)]
        self._tail = decode_tail(found(answer, 2))
        leads = [kv.create_revision for kv in found(answer, 1)] == [self._fence]
        return self._is_of_this_term(index, batch, stored[0] if stored else None, leads)

    async def _renew(self, ends_doubt: bool) -> None:
        if min(await asyncio.gather(*map(self._channel.keep_alive, self._leases))) <= 0:
            raise Deposed(f"a lease of epoch {self.epoch} ran out or was revoked")
        # The lease may live although the key belongs to another. The read in it makes this a real transaction.
        record = msgspec.structs.replace(self.record, doubtful=False)
        ending = [put(self._keys.epoch, encode_record(record))] if ends_doubt else []
        request = txn([created_at(self._keys.leader, self._fence)], [get(self._keys.leader), *ending])
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

"""A term on etcd: the keys of a cluster, under `/holdfast/CLUSTER/`, and the transactions that compare and put them.

`leader` is attached to a lease; its create_revision is the fence: it is compared in the transaction that puts a batch
at the tail. `epoch` is the record of the last term, which stays, and alone makes epochs grow. `process` names the
process that leads; it is a separate key, because masters of older versions compare the bytes of the other two.

`leading` is attached to a second lease, which the leader keeps alive together with the first. Deposing a leader deletes
`leader` only, and an operator who revokes one lease leaves the other: so both keys are missing only if the leader let
them run out, and had stopped answering before that (I12).
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from holdfast.coordination import codec
from holdfast.coordination.codec import decode_batch, encode_batch, encode_record, encode_tail
from holdfast.coordination.etcd import rpc
from holdfast.coordination.etcd.channel import EtcdChannel
from holdfast.coordination.interface import MIB, Deposed
from holdfast.coordination.terms import LeaderProcess, Tail, TailTenure, TermRecord, TermSeat


class Keys:
    def __init__(self, cluster: str) -> None:
        self.prefix = f"/holdfast/{cluster}/"
        self.leader = f"{self.prefix}leader".encode()
        self.epoch = f"{self.prefix}epoch".encode()
        self.process = f"{self.prefix}process".encode()
        self.leading = f"{self.prefix}leading".encode()
        self.tail = f"{self.prefix}tail".encode()
        self.log_end = f"{self.prefix}log0".encode()
        self.published = f"{self.prefix}published/"

    def batch(self, index: int) -> bytes:
        return f"{self.prefix}log/{index:020d}".encode()

    def index(self, key: bytes) -> int:
        number = key.rpartition(b"/")[2]
        if not number.isdigit():
            raise codec.AlteredEntry("log", f"it has the key {key!r}")
        return int(number)


def decode_record(kvs: Any) -> TermRecord | None:
    return codec.decode_record(kvs[0].value) if kvs else None


def decode_process(kvs: Any, record: TermRecord | None) -> LeaderProcess | None:
    return codec.decode_process(kvs[0].value if kvs else b"", record)


def decode_tail(kvs: Any) -> Tail:
    return codec.decode_tail(kvs[0].value, kvs[0].version) if kvs else Tail(0, 0, 0)


def created_at(key: bytes, revision: int) -> Any:
    """Compare: the key was created at that revision; 0 if it does not exist."""
    return rpc.Compare(key=key, target=rpc.Compare.CREATE, result=rpc.Compare.EQUAL, create_revision=revision)


def has_version(key: bytes, version: int) -> Any:
    """Compare: the key has this version, the number of times it was put."""
    return rpc.Compare(key=key, target=rpc.Compare.VERSION, result=rpc.Compare.EQUAL, version=version)


def get(key: bytes, **options: Any) -> Any:
    return rpc.RequestOp(request_range=rpc.RangeRequest(key=key, **options))


def put(key: bytes, value: bytes, lease: int = 0) -> Any:
    return rpc.RequestOp(request_put=rpc.PutRequest(key=key, value=value, lease=lease))


def delete(key: bytes, range_end: bytes = b"") -> Any:
    return rpc.RequestOp(request_delete_range=rpc.DeleteRangeRequest(key=key, range_end=range_end))


def txn(compare: list[Any], success: list[Any], failure: list[Any] | None = None) -> Any:
    return rpc.TxnRequest(compare=compare, success=success, failure=failure or [])


def found(answer: Any, number: int) -> Any:
    """The key-values that the numbered operation of a transaction read."""
    return answer.responses[number].response_range.kvs


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

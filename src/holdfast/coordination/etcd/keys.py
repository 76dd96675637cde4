"""Keys of a cluster in etcd, under `/holdfast/CLUSTER/`, and the parts of its transactions.

`leader` is attached to a lease; its create_revision is the fence. `epoch` is the record of the last term, which stays,
and alone makes epochs grow. `process` names the process that leads; it is a separate key, because masters of older
versions compare the bytes of the other two.

`leading` is attached to a second lease, which the leader keeps alive together with the first. Deposing a leader deletes
`leader` only, and an operator who revokes one lease leaves the other: so both keys are missing only if the leader let
them run out, and had stopped answering before that (I12).
"""

from __future__ import annotations

from typing import Any

from holdfast.coordination import codec
from holdfast.coordination.etcd import rpc
from holdfast.coordination.terms import LeaderProcess, Tail, TermRecord


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

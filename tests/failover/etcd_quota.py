"""An etcd whose quota is filled, and what its operator does about it."""

from __future__ import annotations

import grpc

from holdfast.coordination.etcd import rpc
from holdfast.coordination.etcd.channel import stubs_on
from tests.contract.servers import Server

FILLING = b"filling/"
FAR_END = b"filling0"
WITHIN_S = 20


def fill(etcd: Server, quota_bytes: int) -> None:
    """Until etcd takes no more. It notices a moment late how large it has grown, and takes more than its quota."""
    with grpc.insecure_channel(f"{etcd.host}:{etcd.port}") as channel:
        stubs = stubs_on(channel)
        for number in range(quota_bytes >> 17):
            request = rpc.PutRequest(key=FILLING + b"%d" % number, value=bytes(1 << 20))
            try:
                stubs.kv.Put(request, timeout=WITHIN_S)
            except grpc.RpcError as error:
                if "space exceeded" not in error.details():
                    raise
                return
    raise AssertionError("etcd took eight times its quota")


def make_room(etcd: Server) -> None:
    """As the error says: compact, defragment, and disarm the alarm."""
    with grpc.insecure_channel(f"{etcd.host}:{etcd.port}") as channel:
        stubs, maintenance = stubs_on(channel), rpc.stub(channel, "Maintenance")
        deleted = stubs.kv.DeleteRange(rpc.DeleteRangeRequest(key=FILLING, range_end=FAR_END), timeout=WITHIN_S)
        stubs.kv.Compact(rpc.CompactionRequest(revision=deleted.header.revision, physical=True), timeout=WITHIN_S)
        maintenance.Defragment(rpc.DefragmentRequest(), timeout=WITHIN_S)
        for raised in maintenance.Alarm(rpc.AlarmRequest(action=rpc.AlarmRequest.GET), timeout=WITHIN_S).alarms:
            disarm = rpc.AlarmRequest(action=rpc.AlarmRequest.DEACTIVATE, alarm=raised.alarm, memberID=raised.memberID)
            maintenance.Alarm(disarm, timeout=WITHIN_S)

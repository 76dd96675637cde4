"""Messages of etcd's v3 API, and stubs that send them over a channel of gRPC.

The messages are generated from `messages.proto` (`make protos`). The methods are a table, not generated stubs: their
names travel and are etcd's (`/etcdserverpb.KV/Range`), while the messages are registered under a name of our own, so
that another package of the same process may bring etcd's.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from holdfast.coordination.etcd import messages_pb2 as messages
from holdfast.coordination.etcd.messages_pb2 import *  # noqa: F403

STREAMS = {"Watch/Watch", "Lease/LeaseKeepAlive"}
"""Many requests, many responses; every other method has one of each."""

METHODS: dict[str, tuple[Any, Any]] = {
    "KV/Range": (messages.RangeRequest, messages.RangeResponse),
    "KV/Put": (messages.PutRequest, messages.PutResponse),
    "KV/DeleteRange": (messages.DeleteRangeRequest, messages.DeleteRangeResponse),
    "KV/Txn": (messages.TxnRequest, messages.TxnResponse),
    "KV/Compact": (messages.CompactionRequest, messages.CompactionResponse),
    "Watch/Watch": (messages.WatchRequest, messages.WatchResponse),
    "Lease/LeaseGrant": (messages.LeaseGrantRequest, messages.LeaseGrantResponse),
    "Lease/LeaseRevoke": (messages.LeaseRevokeRequest, messages.LeaseRevokeResponse),
    "Lease/LeaseKeepAlive": (messages.LeaseKeepAliveRequest, messages.LeaseKeepAliveResponse),
    "Lease/LeaseTimeToLive": (messages.LeaseTimeToLiveRequest, messages.LeaseTimeToLiveResponse),
    "Auth/Authenticate": (messages.AuthenticateRequest, messages.AuthenticateResponse),
    "Auth/AuthEnable": (messages.AuthEnableRequest, messages.AuthEnableResponse),
    "Auth/UserAdd": (messages.AuthUserAddRequest, messages.AuthUserAddResponse),
    "Auth/UserGrantRole": (messages.AuthUserGrantRoleRequest, messages.AuthUserGrantRoleResponse),
    "Auth/RoleAdd": (messages.AuthRoleAddRequest, messages.AuthRoleAddResponse),
    "Maintenance/Alarm": (messages.AlarmRequest, messages.AlarmResponse),
    "Maintenance/Status": (messages.StatusRequest, messages.StatusResponse),
    "Maintenance/Defragment": (messages.DefragmentRequest, messages.DefragmentResponse),
}


def stub(channel: Any, service: str) -> Any:
    """The methods of a service as callables; the channel may be of `grpc` or of `grpc.aio`."""
    methods = SimpleNamespace()
    for path, (request, response) in METHODS.items():
        if path.startswith(f"{service}/"):
            opened = channel.stream_stream if path in STREAMS else channel.unary_unary
            call = opened(
                f"/etcdserverpb.{path}",
                request_serializer=request.SerializeToString,
                response_deserializer=response.FromString,
            )
            setattr(methods, path.partition("/")[2], call)
    return methods

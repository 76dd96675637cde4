"""Encode messages as msgpack and back. Decoding validates every type, and raises BadRequest if one does not fit."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import msgspec

from holdfast.errors import MALFORMED, BadRequest, HoldfastError, from_code
from holdfast.messages import of_masters, of_nodes, of_sessions, of_tenants, requests
from holdfast.messages.requests import Failed
from holdfast.messages.shapes import Message

T = TypeVar("T", bound=Message)
Decode = Callable[[bytes | memoryview], Message]

_encode = msgspec.msgpack.Encoder().encode

REQUESTS: tuple[type[Message], ...] = (
    requests.Hello,
    requests.Exists,
    requests.Locate,
    requests.RenewLeases,
    requests.GrantRanges,
    requests.ExtendGrants,
    requests.CommitPuts,
    requests.ReturnGrants,
    requests.Remove,
    requests.RemoveMatching,
    requests.ChangePins,
    requests.ListKeys,
    requests.Stat,
    requests.Explain,
    requests.ListSegments,
    requests.GetStatus,
    requests.ListNodes,
    of_masters.FetchSnapshot,
    of_masters.HandOver,
    of_masters.TakeSnapshot,
    of_masters.HoldTail,
    of_masters.DescribeHistories,
    of_masters.OfferCatalogue,
    of_masters.RestoreHistory,
    of_masters.ListClients,
    of_masters.GetOverview,
    of_masters.ListEvents,
    of_masters.EndClient,
    requests.ChangeMode,
    requests.ResizeNode,
    requests.RevokeWrites,
    requests.ChangeCopying,
    requests.ChangeSettings,
    of_tenants.ListTenants,
    of_tenants.ChangeTenant,
    of_tenants.RemoveTenant,
    of_nodes.RegisterNode,
    of_nodes.ReportWriters,
    of_nodes.ReportUsage,
    of_nodes.ReportGone,
    of_sessions.OpenSession,
    of_sessions.KeepAlive,
    of_sessions.CloseSession,
    of_sessions.GiveSign,
    of_nodes.AddReplicas,
    of_nodes.MountDisk,
    of_nodes.ReportFiles,
    of_nodes.ReportDisk,
    of_nodes.MountSegment,
    of_nodes.ReportLostFiles,
    of_nodes.ListFiles,
    of_nodes.ReportFilesVerified,
    of_nodes.VerifyRanges,
)
REPLIES: tuple[type[Message], ...] = (
    requests.Welcome,
    requests.Failed,
    requests.Presence,
    requests.Located,
    requests.Granted,
    requests.Committed,
    requests.Done,
    requests.Removed,
    requests.KeyList,
    requests.Stats,
    requests.Explanations,
    requests.SegmentList,
    requests.Status,
    requests.NodeList,
    of_masters.SnapshotPiece,
    of_masters.TailHeld,
    of_masters.HistoriesDescribed,
    of_masters.ClientList,
    of_masters.Overview,
    of_masters.EventList,
    requests.SettingsInForce,
    of_tenants.TenantList,
    of_nodes.Registered,
    of_sessions.Opened,
    of_sessions.KeptAlive,
    of_sessions.EpochDiffers,
    of_nodes.DiskMounted,
    of_nodes.FilesForgotten,
    of_nodes.FileList,
    of_nodes.RangesToVerify,
)
DATA_REQUESTS: tuple[type[Message], ...] = (
    of_nodes.AttachSegment,
    of_nodes.ReadRanges,
    of_nodes.ReadBack,
    of_nodes.WriteRange,
    of_nodes.HearRevocations,
    of_nodes.CheckFile,
)
DATA_REPLIES: tuple[type[Message], ...] = (
    of_nodes.Attached,
    of_nodes.Sending,
    of_nodes.Written,
    of_nodes.LeasesRevoked,
    of_nodes.FileSound,
    requests.Failed,
)


def encode(message: Message) -> bytes:
    return _encode(message)


def decoder(kinds: tuple[type[Message], ...]) -> Decode:
    """A function from a payload to one of these kinds of message."""
    union: object = kinds[0]
    for kind in kinds[1:]:
        union = union | kind
    decode = msgspec.msgpack.Decoder(union).decode

    def decode_payload(payload: bytes | memoryview) -> Message:
        try:
            return decode(payload)  # type: ignore[no-any-return]
        except MALFORMED as error:
            raise BadRequest(f"the message cannot be understood ({error}); nothing was changed") from None

    return decode_payload


def tag_of(payload: bytes | memoryview) -> int:
    """The tag of a message, without decoding it; -1 if it is no array that begins with a small number."""
    head = bytes(payload[:7])
    if not head:
        return -1
    first = 1 if head[0] & 0xF0 == 0x90 else {0xDC: 3, 0xDD: 5}.get(head[0], len(head))
    if len(head) > first and head[first] < 0x80:
        return head[first]
    if len(head) > first + 1 and head[first] == 0xCC:
        return head[first + 1]
    return -1


decode_request = decoder(REQUESTS)
decode_reply = decoder(REPLIES)
decode_data_request = decoder(DATA_REQUESTS)
decode_data_reply = decoder(DATA_REPLIES)


def failed(error: HoldfastError) -> Failed:
    return Failed(error.code, str(error), error.hint, error.retry_after_ms)


def raised(reply: Failed) -> HoldfastError:
    """The error that the peer reported."""
    error = from_code(reply.code, reply.text)
    error.hint, error.retry_after_ms = reply.hint, reply.retry_after_ms
    return error


def expect(reply: Message, kind: type[T]) -> T:
    """Return the reply as the expected kind, or raise the error that the peer reported."""
    if type(reply) is kind:
        return reply
    if isinstance(reply, Failed):
        raise raised(reply)
    raise BadRequest(f"the peer answered {type(reply).__name__} where {kind.__name__} was expected")

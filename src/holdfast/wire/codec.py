"""What a connection carries: frames, sans I/O, and in them messages as msgpack.

A connection opens with an 8-byte preamble (magic, range of protocol versions that the caller speaks), so that a
stranger, or a version that is too far away, is refused before anything is decoded (ADR 63). Then each frame is a
12-byte head (payload length, request id, and in a request its timeout in milliseconds) and a payload. A length over the
limit is refused as soon as the head has arrived, and the buffer grows only with the bytes that really arrived. A server
with thousands of connections receives all of them into one scratch buffer: a connection has memory of its own only for
a frame that has not come whole (ADR 51).

The payload is one message. Decoding validates every type, and raises BadRequest if one does not fit.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TypeVar

import msgspec

from holdfast.errors import MALFORMED, BadRequest, HoldfastError, WrongVersion, from_code
from holdfast.messages import of_masters, of_nodes, of_sessions, of_tenants, requests
from holdfast.messages.requests import Failed
from holdfast.messages.shapes import Message

OLDEST = 1
"""The oldest protocol version that this release speaks: at least the newest one of the release before."""
NEWEST = 2
"""2: callers name a range, and a welcome the version that was chosen."""
MAGIC = b"HLDF"
PREAMBLE = MAGIC + struct.pack("<HH", OLDEST, NEWEST - OLDEST)
"""The oldest version, and how many newer ones are spoken too: 0 by version 1, which takes no other oldest one."""
MAX_FRAME_BYTES = 8 << 20
HEAD = struct.Struct("<III")
HEAD_BYTES = HEAD.size
FIRST_BYTES = 64 << 10
LEAST_SPACE = 4 << 10
"""The least that is received at a time, but for the end of a frame."""
MAX_TIMEOUT_MS = 0xFFFF_FFFF
_LONGEST_SECONDS = 4e6
_ANSWER_SECONDS = 0.25
DEFAULT_TIMEOUT_MS = 30_000
"""The timeout of a request that names none."""
GREETING_SECONDS = 5.0
"""A connection that has not said who it is by then is closed."""
GREETING_BYTES = 4 << 10
"""The most that a connection may send before it has said who it is."""

_unpack_head = HEAD.unpack_from
_pack_head = HEAD.pack


def frame(request_id: int, timeout_ms: int, payload: bytes) -> bytes:
    """The bytes of one frame."""
    if len(payload) > MAX_FRAME_BYTES:
        raise BadRequest(
            f"a message of {len(payload):,} bytes is over the limit of {MAX_FRAME_BYTES:,}; "
            "nothing was sent. Split the batch"
        )
    return _pack_head(len(payload), request_id, timeout_ms) + payload


def told_timeout_ms(left: float) -> int:
    """The timeout to send with a request that has this many seconds left; at least 1.

    It leaves time for the reply to come back. A peer that waits for room until that timeout still replies; with the
    caller's full time, the caller would give up just before it learns why."""
    if left < 10 * _ANSWER_SECONDS:
        return int(left * 900) + 1
    return int((left - _ANSWER_SECONDS) * 1000) if left < _LONGEST_SECONDS else MAX_TIMEOUT_MS


def check_preamble(given: bytes) -> int:
    """The newest protocol version that both sides speak. Raises if there is none."""
    if given[:4] != MAGIC:
        raise BadRequest("the peer does not speak the holdfast protocol; the connection is closed")
    oldest, more = struct.unpack_from("<HH", given, 4)
    newest = oldest + more
    if oldest <= NEWEST and newest >= OLDEST:
        return int(min(newest, NEWEST))
    behind = "the caller" if newest < OLDEST else "the one that was called"
    raise WrongVersion(
        f"the caller speaks protocol versions {oldest} to {newest}, the one that it called {OLDEST} to {NEWEST}; "
        f"the connection is closed. Upgrade {behind}, one release after the other"
    )


class FrameBuffer:
    """Received bytes, cut into frames.

    Write into `space()`, report with `filled(n)`, then take frames with `next_frame()` until it returns None. A
    payload is a view of the buffer and is valid until `space()` or `keep()` is called.

    With a `scratch`, which the buffers of one loop share, call `keep()` before another of them receives.
    """

    __slots__ = ("_bytes", "_scratch", "_start", "_view", "end", "limit", "protocol")

    def __init__(self, limit: int = MAX_FRAME_BYTES, scratch: memoryview | None = None) -> None:
        self.limit = limit
        """The longest payload."""
        self.protocol = OLDEST
        """The newest protocol version that both sides speak, once the preamble was taken."""
        self._scratch = scratch
        self._view = scratch if scratch is not None else memoryview(bytearray(FIRST_BYTES))
        self._bytes = self._view.obj
        self._start = 0
        self.end = 0
        """0 if the buffer is empty."""

    def __len__(self) -> int:
        return self.end - self._start

    def space(self) -> memoryview:
        """Where to receive next; never empty."""
        if self._start == self.end:
            self._start = self.end = 0
            if self._scratch is not None:
                self._view = self._scratch
                self._bytes = self._view.obj
            elif len(self._view) > 16 * FIRST_BYTES:
                self._move_to(FIRST_BYTES)
            return self._view
        if len(self._view) - self.end < LEAST_SPACE:
            self._make_space()
        return self._view[self.end :]

    def _make_space(self) -> None:
        waiting = self.end - self._start
        if waiting <= len(self._view) // 2:
            self._move_to(len(self._view))  # Half free after compaction is enough.
        else:
            # Twice as much as has really come, but no more than the frame needs.
            self._move_to(min(2 * waiting, max(waiting, self._whole_bytes())) + LEAST_SPACE)

    def _whole_bytes(self) -> int:
        """What the frame that is being received takes; as much as a buffer holds while that is not known."""
        if self.end - self._start < HEAD_BYTES:
            return FIRST_BYTES
        length: int = _unpack_head(self._bytes, self._start)[0]
        return HEAD_BYTES + min(length, self.limit)

    def keep(self) -> int:
        """Leave the scratch to others: move the rest of what came, which is no whole frame or waits for its turn, to
        memory of its own. Returns how much that takes."""
        if self._start == self.end:
            self._start = self.end = 0
            if self._scratch is not None:
                self._view = self._scratch
                self._bytes = self._view.obj
            return 0
        if self._view is self._scratch:
            self._move_to(self.end - self._start + LEAST_SPACE)
        return len(self._view)

    def filled(self, count: int) -> None:
        self.end += count

    def sole_frame(self, count: int) -> tuple[int, int, memoryview] | None:
        """In place of `filled`: if the received bytes are exactly one whole frame, as in most receives, that frame.
        Otherwise None, and the bytes are kept for `next_frame`."""
        if not self.end and count >= HEAD_BYTES:
            length, request_id, timeout_ms = _unpack_head(self._bytes)
            if HEAD_BYTES + length == count and length <= self.limit:
                return request_id, timeout_ms, self._view[HEAD_BYTES:count]
        self.end += count
        return None

    def take(self, count: int) -> bytes | None:
        """The next `count` raw bytes, or None until all have arrived."""
        if self.end - self._start < count:
            return None
        taken = bytes(self._view[self._start : self._start + count])
        self._start += count
        return taken

    def take_preamble(self) -> bool:
        """Take the caller's preamble. False: it has not all arrived. Raises if both sides speak no version."""
        given = self.take(len(PREAMBLE))
        if given is None:
            return False
        self.protocol = check_preamble(given)
        return True

    def next_frame(self) -> tuple[int, int, memoryview] | None:
        """(request id, timeout or flags, payload) of the next whole frame."""
        start = self._start
        there = self.end - start
        if there < HEAD_BYTES:
            return None
        length, request_id, timeout_ms = _unpack_head(self._bytes, start)
        if length > self.limit:
            raise BadRequest(
                f"a frame of {length:,} bytes is over the limit of {self.limit:,}; the connection is closed"
            )
        stop = start + HEAD_BYTES + length
        if stop > self.end:
            return None
        self._start = stop
        return request_id, timeout_ms, self._view[start + HEAD_BYTES : stop]

    def _move_to(self, capacity: int) -> None:
        waiting = self._view[self._start : self.end]
        moved = bytearray(capacity)
        moved[: len(waiting)] = waiting
        self.end = len(waiting)
        self._start = 0
        self._bytes = moved
        self._view = memoryview(moved)


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

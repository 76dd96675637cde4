"""Length-prefixed frames, sans I/O.

A connection opens with an 8-byte preamble (magic, protocol version), so that a stranger or another version is refused
before anything is decoded. Then each frame is a 12-byte head (payload length, request id, and in a request its timeout
in milliseconds) and a payload. A length over the limit is refused as soon as the head has arrived, and the buffer grows
only with the bytes that really arrived.
"""

from __future__ import annotations

import struct

from holdfast.errors import BadRequest, WrongVersion

VERSION = 1
MAGIC = b"HLDF"
PREAMBLE = MAGIC + struct.pack("<HH", VERSION, 0)
MAX_FRAME_BYTES = 8 << 20
HEAD = struct.Struct("<III")
HEAD_BYTES = HEAD.size
FIRST_BYTES = 64 << 10
MAX_TIMEOUT_MS = 0xFFFF_FFFF
DEFAULT_TIMEOUT_MS = 30_000
"""The timeout of a request that names none."""
GREETING_SECONDS = 10.0
"""A connection that has not said who it is by then is closed."""

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


def check_preamble(given: bytes) -> None:
    """Raise unless the peer speaks this protocol in this version."""
    if given[:4] != MAGIC:
        raise BadRequest("the peer does not speak the holdfast protocol; the connection is closed")
    version = int.from_bytes(given[4:6], "little")
    if version != VERSION:
        raise WrongVersion(f"the peer speaks protocol version {version}, this side {VERSION}: upgrade the older one")


class FrameBuffer:
    """Received bytes, cut into frames.

    Write into `space()`, report with `filled(n)`, then take frames with `next_frame()` until it returns None. A
    payload is a view of the buffer and is valid until `space()` is called again.
    """

    __slots__ = ("_bytes", "_limit", "_start", "_view", "end")

    def __init__(self, limit: int = MAX_FRAME_BYTES) -> None:
        self._limit = limit
        self._bytes = bytearray(FIRST_BYTES)
        self._view = memoryview(self._bytes)
        self._start = 0
        self.end = 0
        """0 if the buffer is empty."""

    def __len__(self) -> int:
        return self.end - self._start

    def space(self) -> memoryview:
        """Where to receive next; never empty."""
        if self._start == self.end:
            self._start = self.end = 0
            if len(self._bytes) > 16 * FIRST_BYTES:
                self._move_to(FIRST_BYTES)
            return self._view
        if self.end == len(self._bytes):
            waiting = self.end - self._start
            # Half free after compaction is enough; otherwise double the size: the peer has really sent that much.
            self._move_to(len(self._bytes) if waiting <= len(self._bytes) // 2 else 2 * len(self._bytes))
        return self._view[self.end :]

    def filled(self, count: int) -> None:
        self.end += count

    def sole_frame(self, count: int) -> tuple[int, int, memoryview] | None:
        """In place of `filled`: if the received bytes are exactly one whole frame, as in most receives, that frame.
        Otherwise None, and the bytes are kept for `next_frame`."""
        if not self.end and count >= HEAD_BYTES:
            length, request_id, timeout_ms = _unpack_head(self._bytes)
            if HEAD_BYTES + length == count and length <= self._limit:
                return request_id, timeout_ms, self._view[HEAD_BYTES:count]
        self.end += count
        return None

    def take(self, count: int) -> bytes | None:
        """The next `count` raw bytes (a preamble), or None until all have arrived."""
        if self.end - self._start < count:
            return None
        taken = bytes(self._view[self._start : self._start + count])
        self._start += count
        return taken

    def next_frame(self) -> tuple[int, int, memoryview] | None:
        """(request id, timeout or flags, payload) of the next whole frame."""
        start = self._start
        held = self.end - start
        if held < HEAD_BYTES:
            return None
        length, request_id, timeout_ms = _unpack_head(self._bytes, start)
        if length > self._limit:
            raise BadRequest(
                f"a frame of {length:,} bytes is over the limit of {self._limit:,}; the connection is closed"
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

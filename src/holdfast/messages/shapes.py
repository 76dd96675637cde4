"""What requests, replies and records are made of.

All travel as msgpack arrays with a small integer tag. Columns of numbers travel packed, as little-endian
64-bit words, so that a batch is one array operation on both sides.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from holdfast.ids import GrantId, SegmentHandle, SegmentName

SettingValue: TypeAlias = bool | int | float


class Message(msgspec.Struct, array_like=True, gc=False, tag_field="t"):
    """A request or a reply."""


class Record(msgspec.Struct, array_like=True, gc=False, tag_field="t"):
    """Something that happened. Applying the records in order gives the catalogue."""


class Range(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Where one replica of a grant is written. `writer` is the writer's number at that node, for a writer that
    maps the node's memory; 0 means that the bytes come over TCP."""

    segment: SegmentHandle
    offset: int
    writer: int = 0
    mac: bytes = b""


class Attachment(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The client maps this segment and is this writer to its node."""

    segment: SegmentHandle
    writer: int


class SegmentPlace(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """How the bytes of a segment are reached."""

    handle: SegmentHandle
    name: SegmentName
    size_bytes: int
    data_address: str
    """host:port of the node's TCP data server."""
    socket_path: str
    """The node's Unix socket; of use only where `host` is the reader's own."""
    host: str
    """Identity of the machine (its kernel's boot id)."""
    used_bytes: int = 0
    available: bool = True
    """False while the node is silent or set aside: nothing new is placed there, reads go on."""
    kind: int = 0
    """0 memory, 1 disk: a disk cannot be mapped, its bytes come over TCP from the same machine too."""
    unverified: bool = False
    """Its bytes may differ from what the restored catalogue says: copy them and compare the checksum, always."""


__all__ = ["Attachment", "GrantId", "Message", "Range", "Record", "SegmentPlace"]

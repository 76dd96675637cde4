"""Building blocks of requests, replies and records.

All travel as msgpack arrays with a small integer tag. Columns of numbers travel packed, as little-endian
64-bit words, so that a batch is one array operation on both sides.
"""

from __future__ import annotations

import enum
from typing import Annotated, ClassVar, TypeAlias, TypeVar

import msgspec

from holdfast.identity.roles import Role
from holdfast.ids import MAX_BATCH, GrantId, SegmentHandle, SegmentName

T = TypeVar("T")
SettingValue: TypeAlias = bool | int | float
Bounded: TypeAlias = Annotated[list[T], msgspec.Meta(max_length=MAX_BATCH)]
"""A list in a request. A longer one is refused before one of its items is decoded."""


class Message(msgspec.Struct, array_like=True, gc=False, tag_field="t"):
    """A request or a reply."""

    needs: ClassVar[Role | None]
    """Of a request to a master: the role that may send it; None for whoever was let in. A class that does not say is
    refused to all who do not have every role."""
    also_for: ClassVar[frozenset[Role]] = frozenset()
    """Further roles that may send it."""
    force_needs: ClassVar[Role | None] = None
    """The role that it needs with `force`; None: no other than without."""


class Record(msgspec.Struct, array_like=True, gc=False, tag_field="t"):
    """Something that happened. Applying the records in order gives the catalogue."""


class Range(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The range where one replica of a grant is written. `writer` is the writer's number at that node, if it maps the
    node's memory; 0 if the bytes come over TCP."""

    segment: SegmentHandle
    offset: int
    writer: int = 0
    mac: bytes = b""


class Ticket(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The primary's word that a client may read these ranges of one segment over TCP (ADR 48).

    The segment's node checks the MAC and the age of the generation without asking anybody. A ticket is good for at
    least as long as the leases that it was given with.
    """

    segment: SegmentHandle
    client: int
    generation: int
    """(epoch of the primary, number of its keys' generation), packed as an object id."""
    ranges: bytes
    """A `TicketRow` per range; at most MOST_TICKET_RANGES."""
    mac: bytes
    """It begins with when it was given (`wire/mac.py:issued_at`)."""


class MappingRight(enum.IntEnum):
    """How a client may map nodes' memory on its own machine."""

    NONE = 0
    READ = 1
    WRITE = 2


class AttachTicket(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The primary's word that a client may map a segment on its node's machine, for writing only if `write`."""

    client: int
    generation: int
    write: bool
    mac: bytes


class Attachment(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The client maps this segment, and this is its writer number at the node."""

    segment: SegmentHandle
    writer: int


class MountedSegment(msgspec.Struct, gc=False):
    """A segment, and where its node serves its bytes."""

    handle: SegmentHandle
    name: SegmentName
    size_bytes: int
    data_address: str
    """host:port of the node's TCP data server."""
    socket_path: str
    """The node's Unix socket; usable only if `host` is the reader's own."""
    host: str
    """Identity of the machine (its kernel's boot id)."""


class SegmentPlace(MountedSegment, array_like=True, frozen=True, gc=False):  # type: ignore[misc] # msgspec allows it.
    """How a client reaches the bytes of a segment."""

    used_bytes: int = 0
    available: bool = True
    """False while the node is silent, cordoned or draining: nothing new is placed there, reads go on."""
    kind: int = 0
    """0 memory, 1 disk: a disk cannot be mapped, so its bytes come over TCP even on the same machine."""
    unverified: bool = False
    """Its bytes may differ from the restored catalogue: always copy them and compare the checksum."""
    attach: AttachTicket | None = None
    """What the node asks for before it passes the memory; None: the caller may not map it, and reads over TCP."""


class TenantQuotas(msgspec.Struct, gc=False):
    """A tenant, and how much it may have."""

    number: int
    name: str
    guaranteed_bytes: int = 0
    """Memory that others cannot evict."""
    limit_bytes: int = 0
    """Memory that it cannot exceed; 0: no limit."""
    max_objects: int = 0
    """0: no limit."""
    hard_pin_share: float = 1.0
    """Share of its memory that may be hard-pinned."""
    max_clients: int = 0
    """Clients connected at the same time; 0: no limit."""
    requests_per_second: int = 0
    """0: no limit."""
    lease_share: float = -1.0
    """Share of its memory that may be leased at the same time; negative: as the rules say for all."""


__all__ = ["Attachment", "GrantId", "Message", "MountedSegment", "Range", "Record", "SegmentPlace", "TenantQuotas"]

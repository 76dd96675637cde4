"""Commands from the primary to nodes: their bodies, by name.

A command travels as a name and an opaque body over the node's session. `recover`, `migrate`, `offload`, `bring_back`,
`clean` and `gc` are not confirmed: they follow from the state, and are repeated as long as they do. The others change
how a node behaves, and are confirmed: the primary knows that they have arrived.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from holdfast.errors import MALFORMED, BadRequest
from holdfast.ids import GrantId, SegmentName
from holdfast.messages.shapes import Ticket

_encode = msgspec.msgpack.Encoder().encode


class Body(msgspec.Struct, array_like=True, gc=False):
    """The body of a command."""


class Source(Body):
    """A segment to copy from."""

    handle: int
    name: SegmentName
    data_address: str
    tickets: list[Ticket] = []
    """For all objects to be copied from there; none if that is the node's own."""


class CopyObjects(Body):
    """Copy these objects into the granted range of the node's own segment, check their bytes, and report (AddReplicas).

    `rows`: a `CopyRow` per object.
    """

    grant: GrantId
    segment: SegmentName
    offset: int
    length: int
    rows: bytes
    sources: list[Source]
    bytes_per_second: int = 0
    """0 for no limit."""
    to_disk: bool = False
    issued: int = 0
    """Refuse earlier proofs for the granted range before the first byte is written; 0: there are no tenants."""


class Clean(Body):
    """Close every connection that still writes to these grants, refuse them from now on, and report."""

    grants: list[GrantId]


class Clear(Body):
    """The range goes from one tenant to another: refuse all proofs for it that were given before `issued`, end what is
    moving with one of them, and wipe the bytes (ADR 55). Once done it is not done again."""

    segment: SegmentName
    offset: int
    length: int
    issued: int


class CollectGarbage(Body):
    """Delete these files of the disk, a `FileRow` each, if they still hold those objects. `audit`: then compare all
    files with the log, and delete those that it does not hold."""

    disk: int
    rows: bytes = b""
    audit: bool = False


class RevokeLeases(Body):
    """A hint: these objects were removed or moved. It ends no lease; the node tells the clients on its machine, which
    ask the primary next time instead of reading where the objects were."""

    ids: bytes
    more: bool = False
    """There were others, too many to name."""


class RevokeClient(Body):
    """Accept no further bytes from this client, and send it none: its TCP writes are ended, and its grants and tickets
    refused from now on. The same for `others`."""

    client: int
    others: list[int] = []


class Maintain(Body):
    """The node is now `open`, `cordoned` or `draining`. It goes on serving; the primary places accordingly."""

    mode: str


class UpdateVolume(Body):
    """Lend this much memory: mount the missing part, and give the memory beyond each limit back to the machine.

    `limits`: (segment number, bytes of it still in use).
    """

    size_bytes: int = 0
    """0: mount nothing."""
    limits: list[tuple[int, int]] = []
    force: bool = False
    """Take memory that the machine seems to lack."""


class UpdateConfig(Body):
    """The current cluster settings that concern nodes."""

    copy_bytes_per_second: int
    report_interval_ms: int = 0
    """0: as before."""


class TicketTerms(Body):
    """No command: it comes with every answer to a keepalive. For how long tickets are good, on the node's clock (I16).

    `generation` is the one of the primary's tickets now. They are good for `good_ms` from now, those of the next
    generation for `roll_ms` longer, and so on (ADR 48).
    """

    generation: int
    good_ms: int
    roll_ms: int
    issued: int = 0
    """What the primary would write into a proof now. A node that has just started knows of no range that went to
    another tenant before, and takes no older ticket."""


RECOVER, MIGRATE, OFFLOAD, BRING_BACK, CLEAN, CLEAR = "recover", "migrate", "offload", "bring_back", "clean", "clear"
BODIES: dict[str, type[Body]] = {
    RECOVER: CopyObjects,
    MIGRATE: CopyObjects,
    OFFLOAD: CopyObjects,
    BRING_BACK: CopyObjects,
    CLEAN: Clean,
    CLEAR: Clear,
    "gc": CollectGarbage,
    "revoke_lease": RevokeLeases,
    "revoke_client": RevokeClient,
    "maintenance": Maintain,
    "volume_update": UpdateVolume,
    "config_update": UpdateConfig,
}
CONFIRMED = frozenset({CLEAR, "revoke_lease", "revoke_client", "maintenance", "volume_update", "config_update"})
B = TypeVar("B", bound=Body)


def encode_body(body: Body) -> bytes:
    return _encode(body)


def decode_body(kind: type[B], body: bytes) -> B:
    try:
        return msgspec.msgpack.decode(body, type=kind)
    except MALFORMED as error:
        raise BadRequest(f"the body of the command is no {kind.__name__} ({error}); nothing was done") from None

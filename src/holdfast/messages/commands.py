"""What the primary tells nodes to do: the bodies of commands, by their names.

A command travels as a name and an opaque body over the node's session. `recover`, `migrate`, `offload`, `bring_back`,
`clean` and `gc` are not confirmed: they follow from the state, and are told again as long as they do. The others
change how a node behaves, and are confirmed: the primary knows that they have arrived.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from holdfast.errors import BadRequest
from holdfast.ids import GrantId, SegmentName

_encode = msgspec.msgpack.Encoder().encode


class Body(msgspec.Struct, array_like=True, gc=False):
    """What a command says beside its name."""


class Source(Body):
    """A segment to copy from."""

    handle: int
    name: SegmentName
    data_address: str


class CopyObjects(Body):
    """Copy these objects into the granted range of the node's own segment, check their bytes, and say so (AddReplicas).

    `rows`: (id, offset in the range, size, checksum, index of the source, offset there) per object.
    """

    grant: GrantId
    segment: SegmentName
    offset: int
    length: int
    rows: bytes
    sources: list[Source]
    bytes_per_second: int = 0
    """0: as fast as it goes."""
    to_disk: bool = False


class Clean(Body):
    """Close whatever still writes to these grants, refuse them from now on, and say so."""

    grants: list[GrantId]


class CollectGarbage(Body):
    """Delete these files of the disk, (id, offset) each, if they still hold those objects. `audit`: then compare all
    files with the log, and delete what it does not hold."""

    disk: int
    rows: bytes = b""
    audit: bool = False


class RevokeLeases(Body):
    """A hint: these objects were removed or moved. No reader loses its lease by it; the node tells the clients of its
    machine, who ask the primary next time instead of reading where the objects were."""

    ids: bytes
    more: bool = False
    """There were others, too many to name."""


class RevokeClient(Body):
    """Take no more bytes from this client: its TCP writes are ended and its grants refused from now on."""

    client: int


class Maintain(Body):
    """The node is `open`, `cordoned` or `draining` now. It goes on serving; the primary places accordingly."""

    mode: str


class UpdateVolume(Body):
    """Lend this much memory: mount what is missing, and give back to the machine what lies beyond each limit.

    `limits`: (segment number, bytes of it still in use).
    """

    size_bytes: int = 0
    """0: mount nothing."""
    limits: list[tuple[int, int]] = []
    force: bool = False
    """Take memory that the machine seems to lack."""


class UpdateConfig(Body):
    """Settings of the cluster that nodes go by, as they are now."""

    copy_bytes_per_second: int
    report_interval_ms: int = 0
    """0: as before."""


RECOVER, MIGRATE, OFFLOAD, BRING_BACK, CLEAN = "recover", "migrate", "offload", "bring_back", "clean"
BODIES: dict[str, type[Body]] = {
    RECOVER: CopyObjects,
    MIGRATE: CopyObjects,
    OFFLOAD: CopyObjects,
    BRING_BACK: CopyObjects,
    CLEAN: Clean,
    "gc": CollectGarbage,
    "revoke_lease": RevokeLeases,
    "revoke_client": RevokeClient,
    "maintenance": Maintain,
    "volume_update": UpdateVolume,
    "config_update": UpdateConfig,
}
CONFIRMED = frozenset({"revoke_lease", "revoke_client", "maintenance", "volume_update", "config_update"})
B = TypeVar("B", bound=Body)


def encode_body(body: Body) -> bytes:
    return _encode(body)


def decode_body(kind: type[B], body: bytes) -> B:
    try:
        return msgspec.msgpack.decode(body, type=kind)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise BadRequest(f"the body of the command is no {kind.__name__} ({error}); nothing was done") from None

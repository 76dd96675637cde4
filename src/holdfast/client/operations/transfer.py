"""Write the bytes of a put to every replica of its grant: through mapped memory, or over TCP in one attempt."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import xxhash

from holdfast.client.arguments import Gathered, Value
from holdfast.client.bytes.nodes import copy_into, unmapped
from holdfast.client.operations.places import refresh
from holdfast.client.state.client import Core
from holdfast.client.state.grants import WriteGrant
from holdfast.errors import (
    DeadlineExceeded,
    GrantRefused,
    GrantTimedOut,
    HoldfastError,
    ReplyLost,
    UnknownSegment,
    Unreachable,
)
from holdfast.messages.shapes import Range, SegmentPlace
from holdfast.operations.effects import BULK_FROM, Operation, Work
from holdfast.transport.shared_memory import Mapping

_digest: Callable[[bytes | memoryview], int] = xxhash.xxh3_64_intdigest

SMALL_COPY = 64 << 10
BLOCK_BYTES = 1 << 20
"""In a batch, values below this size are copied by slice assignments, which hold the GIL. That is as quick as releasing
it for each, and saves waiting for it where another thread uses it all the time (ADR 35)."""
JOINED = 32


class WriteFailed(Exception):
    """A replica could not be written; nothing is stored. Another grant may be on another node."""

    def __init__(self, cause: HoldfastError) -> None:
        super().__init__(str(cause))
        self.cause = cause


def fill(
    core: Core,
    grant: WriteGrant,
    values: Sequence[Value],
    sizes: list[int],
    offsets: Sequence[int],
    deadline: float,
    checksum: bool | None = None,
) -> Operation[list[int]]:
    """Write all replicas. Returns the checksums of the values (0 if none is kept, or `checksum` is False)."""
    size = sum(sizes)
    checksums: list[int] | None = None
    for piece in grant.ranges:
        # They are computed while the first replica is written.
        wanted = (core.stores_checksums if checksum is None else checksum) and checksums is None
        if piece.writer:
            mapping = core.bytes.writable(piece)
            # Checked after the map: memory of another history is mapped only once the grant is marked void.
            if mapping is None or grant.void:
                core.grants.retire(grant, core.clock())
                raise WriteFailed(unmapped())
            copy = MappedWrite(mapping, piece.offset, values, sizes, offsets, wanted)
            written = copy() if size < BULK_FROM else (yield Work(copy))
        else:
            written = yield from _send(core, grant, piece, values, offsets, wanted, deadline)
        checksums = checksums or written
    assert checksums is not None
    return checksums


def _send(
    core: Core,
    grant: WriteGrant,
    piece: Range,
    values: Sequence[Value],
    offsets: Sequence[int],
    checksum: bool,
    deadline: float,
) -> Operation[list[int]]:
    place = core.segments.places.get(piece.segment)
    if place is None:
        yield from refresh(core, deadline)
        place = core.segments.places.get(piece.segment)
    if place is None:
        raise WriteFailed(GrantTimedOut("the segment that was granted is mounted no more; nothing was stored"))
    try:
        return (yield Work(RemoteWrite(core, grant, place, piece, values, offsets, checksum, deadline)))  # type: ignore[no-any-return]
    except (Unreachable, ReplyLost, DeadlineExceeded, GrantRefused, GrantTimedOut, UnknownSegment) as error:
        if core.bytes.failing:
            core.mind_failing()
            core.grants.retire_on(set(core.unreachable_segments()), core.clock())
        raise WriteFailed(_as_nothing_stored(error)) from None


def _as_nothing_stored(error: HoldfastError) -> HoldfastError:
    if isinstance(error, DeadlineExceeded):
        # The bytes did not get there, so it is certain that nothing was committed.
        return Unreachable(f"the node did not take the bytes in time; nothing was stored ({error})")
    return error


@dataclass(slots=True)
class MappedWrite:
    """Writes values into a mapped range."""

    mapping: Mapping
    base: int
    values: Sequence[Value]
    sizes: list[int]
    offsets: Sequence[int]
    checksum: bool

    def __call__(self) -> list[int]:
        mapping, base, checksum = self.mapping, self.base, self.checksum
        if len(self.values) > 1 and max(self.sizes) < SMALL_COPY:
            return self._copy_small(mapping.view)
        if len(self.values) > 1 and max(self.sizes) < BLOCK_BYTES and Gathered not in {*map(type, self.values)}:
            return self._copy_blocks(mapping.view)
        return [
            copy_into(mapping, base + offset, value, checksum)
            for offset, value in zip(self.offsets, self.values, strict=True)
        ]

    def _copy_blocks(self, view: memoryview) -> list[int]:
        """Copy many values of some size, each hashed while it is in the CPU cache. The copy is hashed, not the
        original: others will read the copy, whatever happens to the original."""
        checksums: list[int] = []
        base, wanted = self.base, self.checksum
        try:
            values = cast("Sequence[bytes | memoryview]", self.values)
            for offset, value, size in zip(self.offsets, values, self.sizes, strict=True):
                start = base + offset
                room = view[start : start + size]
                room[:] = value
                checksums.append((_digest(room) or 1) if wanted else 0)
        except ValueError:
            raise unmapped() from None
        return checksums

    def _copy_small(self, view: memoryview) -> list[int]:
        """Copy many small values by slice assignments, which is all that `copy_in` would do for each."""
        base, offsets, sizes = self.base, self.offsets, self.sizes
        # Small ones are never gathered from several buffers: arguments.py joins them.
        values = cast("Sequence[bytes | memoryview]", self.values)
        try:
            if offsets[-1] + sizes[-1] - offsets[0] != sum(sizes):
                for offset, value, size in zip(offsets, values, sizes, strict=True):
                    start = base + offset
                    view[start : start + size] = value
            else:
                # They are contiguous in the range: join a few at a time in the CPU cache and copy them as one.
                for first in range(0, len(values), JOINED):
                    joined = b"".join(values[first : first + JOINED])
                    start = base + offsets[first]
                    view[start : start + len(joined)] = joined
        except ValueError:
            raise unmapped() from None
        if not self.checksum:
            return [0] * len(self.values)
        return [digest or 1 for digest in map(_digest, values)]


@dataclass(slots=True)
class RemoteWrite:
    """Writes values into a range on another machine. If it fails, bytes may still be under way: the grant is torn."""

    core: Core
    grant: WriteGrant
    place: SegmentPlace
    piece: Range
    values: Sequence[Value]
    offsets: Sequence[int]
    checksum: bool
    deadline: float

    def __call__(self) -> list[int]:
        placed = [
            (offset, value.parts if type(value) is Gathered else [memoryview(value)])
            for offset, value in zip(self.offsets, self.values, strict=True)
        ]
        grant = self.grant
        try:
            return self.core.bytes.write(
                self.place, grant.id, self.piece, grant.length, placed, self.checksum, self.deadline
            )
        except BaseException:
            grant.torn = True
            raise

"""reserve_many and commit_many: one request for a batch of reservations, and one for its commit.

Reservations of several batches are committed by one request per batch, all sent without waiting for replies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import xxhash

from holdfast.client.arguments import PutOptions
from holdfast.client.operations.batch_puts import FIRST_TURNS_SHARE, take_turns
from holdfast.client.operations.puts import ANOTHER_GRANT, Piece, commit_of, take_own_grant
from holdfast.client.operations.reservations import Reserved, committed, hold
from holdfast.client.state.client import FIRST_PAUSE, Core, ask_timed
from holdfast.client.state.grants import WriteGrant, lay_out
from holdfast.errors import (
    BadRequest,
    BadValue,
    ClientClosed,
    GrantTimedOut,
    HoldfastError,
    NotLeader,
    Refused,
    ReplyLost,
    Stopping,
    Uncertain,
    Unreachable,
    WindowFull,
)
from holdfast.ids import extent_of
from holdfast.messages.requests import CommitPuts, Committed
from holdfast.messages.rows import PutRow
from holdfast.operations.effects import Ahead, Begun, Operation, Reply, Sleep, Work
from holdfast.transport.data_tcp import GrantedRange

READ_BACK = 8 << 20
_OF_THE_CALL = (Unreachable, Uncertain, NotLeader, Stopping)
"""No master could be asked: errors of the whole call, not of one key."""

Outcome: TypeAlias = Reserved | HoldfastError | None


def reserve_many(
    core: Core, keys: list[str], sizes: list[int], options: PutOptions, deadline: float
) -> Operation[list[Outcome]]:
    """Per key: its reservation, None if the key is there already, or its error. If there is no room for all, the
    smallest are reserved, and the others fail."""
    core.check_open()
    outcomes: list[Outcome] = [None] * len(keys)

    def attempt(piece: Piece[range], room_by: float) -> Operation[Piece[range] | None]:
        return (yield from _reserve_piece(core, piece, options, outcomes, deadline, room_by))

    def fail(piece: Piece[range], error: HoldfastError) -> None:
        nothing = not any(isinstance(each, Reserved) for each in outcomes)
        if isinstance(error, ClientClosed) or (nothing and isinstance(error, _OF_THE_CALL)):
            raise error
        for place in piece.places:
            outcomes[place] = error

    allowed = _within_window(core, keys, sizes, options, outcomes)
    # The bytes come later: for now an object has a length only.
    whole = Piece([keys[place] for place in allowed], [range(sizes[place]) for place in allowed], allowed)
    share = FIRST_TURNS_SHARE if len(allowed) > 1 else 0.0
    yield from take_turns(core, whole, core.limits.write_window_bytes, attempt, fail, deadline, share)
    return outcomes


def _within_window(
    core: Core, keys: list[str], sizes: list[int], options: PutOptions, outcomes: list[Outcome]
) -> list[int]:
    """The indices of the keys to reserve. Keys for which this client's window has no room are refused at once: only its
    own commits could make room."""
    window = core.limits.write_window_bytes
    in_use = core.grants.bytes_in_use()
    allowed: dict[str, int] = {}
    for index, (key, size) in enumerate(zip(keys, sizes, strict=True)):
        extent = extent_of(size) * options.replicas
        if key in allowed:
            outcomes[index] = BadValue(f"{key!r} is named twice in one batch; it is reserved once")
        elif in_use and in_use + extent > window:
            outcomes[index] = WindowFull(
                f"{key!r} was not reserved: with it this client would hold {in_use + extent:,} bytes that it has not "
                f"committed, and it may hold {window:,}. Commit or abandon some first"
            )
        else:
            allowed[key] = index
            in_use += extent
    return list(allowed.values())


def _reserve_piece(
    core: Core, piece: Piece[range], options: PutOptions, outcomes: list[Outcome], deadline: float, room_by: float
) -> Operation[Piece[range] | None]:
    """Reserve these, waiting for memory until `room_by`. Returns those that the grant had no room for."""
    while True:
        try:
            return (yield from _reserve(core, piece, options, outcomes, deadline, room_by))
        except ANOTHER_GRANT:
            if core.clock() + FIRST_PAUSE >= deadline:
                raise
        yield Sleep(FIRST_PAUSE)


def _reserve(
    core: Core, piece: Piece[range], options: PutOptions, outcomes: list[Outcome], deadline: float, room_by: float
) -> Operation[Piece[range] | None]:
    grant_id = core.grants.next_id()
    taken = False
    # An interrupt may come between any two steps, so the id is chosen before the grant exists.
    try:
        grant, fitting, rest = yield from take_own_grant(core, grant_id, piece, options, deadline, room_by)
        if grant is None:
            return None
        offsets, _ = lay_out(fitting.sizes)
        made = hold(core, grant, list(zip(fitting.keys, fitting.sizes, offsets, strict=True)), options)
        taken = True
        for place, reserved in zip(fitting.places, made, strict=True):
            outcomes[place] = reserved
        return rest
    finally:
        if not taken:
            core.grants.done_with(grant_id, core.clock())


@dataclass(slots=True)
class Batch:
    """Reservations of one grant that are committed together."""

    grant: WriteGrant
    indices: list[int]
    message: CommitPuts
    error: HoldfastError | None = None
    begun: Begun | None = None
    unsure: bool = False
    """It was sent, and its reply was lost."""


def commit_many(core: Core, reservations: Sequence[Reserved], deadline: float) -> Operation[list[bool | HoldfastError]]:
    """For each True if it was stored, False if another put of the key came first, or its error."""
    core.check_open()
    outcomes: list[bool | HoldfastError] = [False] * len(reservations)
    begun: list[int] = []
    over: set[int] = set()
    try:
        for index, reserved in enumerate(reservations):
            try:
                reserved.begin_commit()
            except Refused as error:
                outcomes[index] = error
            else:
                begun.append(index)
        filled = [reservations[index] for index in begun]
        checksums = yield Work(lambda: [_checksum(core, reserved, deadline) for reserved in filled])
        batches = _batches(reservations, begun, checksums, outcomes)
        yield from _send_ahead(core, batches, deadline)
        for batch in batches:
            stored = yield from _finish(core, batch, deadline)
            for position, index in enumerate(batch.indices):
                if batch.error is not None:
                    outcomes[index] = batch.error
                    continue
                outcomes[index] = stored[position] == 1
                over.add(index)
                committed(core, reservations[index], stored[position] == 1)
            if isinstance(batch.error, Refused | GrantTimedOut):
                for index in batch.indices:
                    over.add(index)
                    reservations[index].end(core, f"was lost ({batch.error})")
    finally:
        for index in begun:
            if reservations[index].options.upsert:
                core.leases.drop(reservations[index].key)
            if index not in over:
                reservations[index].commit_failed()
    return outcomes


def _batches(
    reservations: Sequence[Reserved],
    begun: list[int],
    checksums: list[int | HoldfastError],
    outcomes: list[bool | HoldfastError],
) -> list[Batch]:
    rows: dict[WriteGrant, list[tuple[int, int, int]]] = {}
    members: dict[WriteGrant, list[int]] = {}
    for index, checksum in zip(begun, checksums, strict=True):
        reserved = reservations[index]
        if isinstance(checksum, HoldfastError):
            outcomes[index] = checksum
            continue
        rows.setdefault(reserved.share.grant, []).append((reserved.offset, reserved.size, checksum))
        members.setdefault(reserved.share.grant, []).append(index)
    batches = []
    for grant, indices in members.items():
        packed = PutRow.pack_rows(rows[grant])
        options = reservations[indices[0]].options
        keys = [reservations[index].key for index in indices]
        batches.append(Batch(grant, indices, commit_of(grant, keys, packed, options, [])))
    return batches


def _send_ahead(core: Core, batches: list[Batch], deadline: float) -> Operation[None]:
    """If there are several batches, send them all at once, so that together they wait for one round trip."""
    if len(batches) < 2:
        return
    for batch in batches:
        try:
            core.check_nodes(batch.grant.ranges)
            batch.begun = yield Ahead(batch.message)
        except (Unreachable, GrantTimedOut):
            # It was not sent: `_finish` sends it alone.
            continue


def _finish(core: Core, batch: Batch, deadline: float) -> Operation[bytes]:
    """Which were stored, a byte per object; or the batch has its error."""
    reply: object = None
    try:
        if batch.begun is not None:
            try:
                reply = yield Reply(batch.begun)
            except Unreachable:
                reply = None
            except ReplyLost:
                batch.unsure = True
        if not isinstance(reply, Committed):
            reply, _ = yield from ask_timed(
                core, batch.message, Committed, deadline, batch.grant.ranges, unsure=batch.unsure
            )
        if len(reply.stored) != len(batch.indices):
            raise BadRequest(f"the master answered for {len(reply.stored)} puts, not for {len(batch.indices)}")
        return reply.stored
    except ClientClosed:
        raise
    except HoldfastError as error:
        batch.error = error
        return b""


def _checksum(core: Core, reserved: Reserved, deadline: float) -> int | HoldfastError:
    """The checksum of the whole object: computed while it was written, from mapped memory, or read back from its
    node."""
    if not core.verify:
        return 0
    if reserved.checksum:
        return reserved.checksum
    grant = reserved.share.grant
    try:
        for piece in grant.ranges:
            mapping = core.bytes.writable(piece) if piece.writer else None
            # Checked after the map: memory of another history is mapped only once the grant is marked void.
            if mapping is not None and not grant.void:
                start = piece.offset + reserved.offset
                with mapping.view[start : start + reserved.size] as filled:
                    return xxhash.xxh3_64_intdigest(filled) or 1
        return _read_back(core, reserved, deadline)
    except ValueError:
        return GrantTimedOut(f"the memory of {reserved.key!r} is mapped no more; nothing was stored. Reserve again")
    except HoldfastError as error:
        return error


def _read_back(core: Core, reserved: Reserved, deadline: float) -> int:
    """The checksum including the bytes that were written over TCP out of order, which are read back."""
    digest = reserved.running_checksum()
    at = reserved.hashed_bytes
    grant = reserved.share.grant
    piece = grant.ranges[0]
    place = core.segments.places.get(piece.segment)
    room = memoryview(bytearray(min(READ_BACK, reserved.size - at)))
    while at < reserved.size:
        if place is None:
            raise GrantTimedOut(f"the memory of {reserved.key!r} is mounted no more; nothing was stored. Reserve again")
        part = room[: min(READ_BACK, reserved.size - at)]
        granted = GrantedRange(place.name, grant.id, piece.offset, grant.length, piece.mac)
        core.bytes.read_back(place, granted, reserved.offset + at, part, deadline)
        digest.update(part)
        at += len(part)
    return digest.intdigest() or 1

"""reserve_many and commit_many: one request for a batch of reservations, and one for its commit.

Reservations of several batches are committed by one request per batch, all sent without waiting for replies.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import xxhash

from holdfast.client.arguments import PutOptions
from holdfast.client.operations.puts import take_grant
from holdfast.client.operations.reservations import Reserved, committed, hold
from holdfast.client.state.client import FIRST_PAUSE, KEYS_A_REQUEST, Core, ask_timed
from holdfast.client.state.grants import WriteGrant, lay_out
from holdfast.effects import Ahead, Begun, Operation, Reply, Sleep, Work
from holdfast.errors import (
    BadRequest,
    BadValue,
    ClientClosed,
    GrantRefused,
    GrantTimedOut,
    HoldfastError,
    NotLeader,
    Refused,
    ReplyLost,
    Stopping,
    TooLarge,
    Uncertain,
    Unreachable,
    WindowFull,
)
from holdfast.ids import extent_of
from holdfast.messages.requests import CommitPuts, Committed
from holdfast.messages.rows import PutRow, pack_sizes

READ_BACK = 8 << 20
_OF_THE_CALL = (Unreachable, Uncertain, NotLeader, Stopping)
"""No master could be asked: errors of the whole call, not of one key."""

Outcome: TypeAlias = Reserved | HoldfastError | None


def reserve_many(
    core: Core, keys: list[str], sizes: list[int], options: PutOptions, deadline: float
) -> Operation[list[Outcome]]:
    """Per key: its reservation, None if the key is there already, or its error."""
    core.check_open()
    outcomes: list[Outcome] = [None] * len(keys)
    waiting = _pieces(core, keys, sizes, options, outcomes)
    while waiting:
        some = waiting.popleft()
        try:
            rest = yield from _reserve(core, some, keys, sizes, options, outcomes, deadline)
            if rest:
                waiting.appendleft(rest)
        except (GrantTimedOut, GrantRefused) as error:
            if core.clock() + FIRST_PAUSE >= deadline:
                _refuse(outcomes, some, error)
            else:
                yield Sleep(FIRST_PAUSE)
                waiting.appendleft(some)
        except TooLarge as error:
            if len(some) == 1:
                outcomes[some[0]] = error
            else:
                # Together they fit into no segment; each alone may.
                half = len(some) // 2
                waiting.extendleft((some[half:], some[:half]))
        except HoldfastError as error:
            nothing = not any(isinstance(each, Reserved) for each in outcomes)
            if isinstance(error, ClientClosed) or (nothing and isinstance(error, _OF_THE_CALL)):
                raise
            _refuse(outcomes, some, error)
    return outcomes


def _refuse(outcomes: list[Outcome], some: list[int], error: HoldfastError) -> None:
    for index in some:
        outcomes[index] = error


def _pieces(
    core: Core, keys: list[str], sizes: list[int], options: PutOptions, outcomes: list[Outcome]
) -> deque[list[int]]:
    """The indices of the keys of each grant to ask for. Keys for which this client's window has no room are refused at
    once: only its own commits could make room."""
    window = core.limits.write_window_bytes
    held = core.grants.bytes_in_use()
    seen: set[str] = set()
    pieces: deque[list[int]] = deque()
    for index, (key, size) in enumerate(zip(keys, sizes, strict=True)):
        extent = extent_of(size) * options.replicas
        if key in seen:
            outcomes[index] = BadValue(f"{key!r} is named twice in one batch; it is reserved once")
        elif held and held + extent > window:
            outcomes[index] = WindowFull(
                f"{key!r} was not reserved: with it this client would hold {held + extent:,} bytes that it has not "
                f"committed, and it may hold {window:,}. Commit or abandon some first"
            )
        else:
            seen.add(key)
            held += extent
            if not pieces or len(pieces[-1]) == KEYS_A_REQUEST:
                pieces.append([])
            pieces[-1].append(index)
    return pieces


def _reserve(
    core: Core,
    some: list[int],
    keys: list[str],
    sizes: list[int],
    options: PutOptions,
    outcomes: list[Outcome],
    deadline: float,
) -> Operation[list[int]]:
    """Reserve these. Returns those that the grant had no room for: they are reserved next."""
    wanted = [sizes[index] for index in some]
    packed = pack_sizes(wanted)
    least = extent_of(max(wanted)) if len(some) > 1 else 0
    grant_id = core.grants.next_id()
    held = False
    # An interrupt may come between any two steps, so the id is chosen before the grant exists.
    try:
        taken, grant = yield from take_grant(
            core, grant_id, [keys[index] for index in some], packed, options, None, deadline, least
        )
        if grant is None:
            return []
        if any(taken):
            some = [index for index, is_taken in zip(some, taken, strict=True) if not is_taken]
        fitting, rest = _split_to_fit(grant, some, sizes)
        offsets, _ = lay_out([sizes[index] for index in fitting])
        items = [(keys[index], sizes[index], offset) for index, offset in zip(fitting, offsets, strict=True)]
        made = hold(core, grant, items, options)
        held = True
        for index, reserved in zip(fitting, made, strict=True):
            outcomes[index] = reserved
        return rest
    finally:
        if not held:
            core.grants.done_with(grant_id, core.clock())


def _split_to_fit(grant: WriteGrant, some: list[int], sizes: list[int]) -> tuple[list[int], list[int]]:
    count = len(some)
    while count and lay_out([sizes[index] for index in some[:count]])[1] > grant.length:
        count -= max(1, count // 16)
    if not count:
        raise BadRequest(f"the master granted {grant.length:,} bytes where more are needed; nothing was reserved")
    return some[:count], some[count:]


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
        message = CommitPuts(grant.id, keys, packed, options.upsert, options.soft_pin, options.hard_pin)
        batches.append(Batch(grant, indices, message))
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
    piece = reserved.share.grant.ranges[0]
    place = core.segments.places.get(piece.segment)
    room = memoryview(bytearray(min(READ_BACK, reserved.size - at)))
    while at < reserved.size:
        if place is None:
            raise GrantTimedOut(f"the memory of {reserved.key!r} is mounted no more; nothing was stored. Reserve again")
        part = room[: min(READ_BACK, reserved.size - at)]
        core.bytes.read(place, piece.offset + reserved.offset + at, [(0, part)], False, deadline)
        digest.update(part)
        at += len(part)
    return digest.intdigest() or 1

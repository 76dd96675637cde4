"""put, of one object or of a piece of a batch (batch_puts): write every replica, then commit.

A small put takes room in a grant that is already held, so it is one round trip. A larger one first asks for a grant by
its key, and so learns that the key is taken before any byte moves. In a streak of large puts it is as with small ones:
each commit prefetches the memory for the next puts (ADR 25). If a grant times out or its connection breaks, the put
takes another one, within the deadline: a range is written in one attempt (I2, I11).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence, Sized
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from holdfast.client.arguments import PutOptions, Value
from holdfast.client.bytes.nodes import copy_into
from holdfast.client.operations.places import ready_to_write
from holdfast.client.operations.transfer import WriteFailed, fill
from holdfast.client.state.client import FIRST_PAUSE, LONGEST_PAUSE, Core, ask, ask_timed
from holdfast.client.state.grants import CARRIED_WITHIN_SECONDS, Kind, WriteGrant, lay_out
from holdfast.errors import (
    BadRequest,
    GrantRefused,
    GrantTimedOut,
    HoldfastError,
    NodeAway,
    TooLarge,
    TryAgain,
    Uncertain,
)
from holdfast.ids import GrantId, extent_of
from holdfast.instant import relied_on
from holdfast.messages.requests import CommitPuts, Committed, Done, Granted, GrantRanges, ReturnGrants
from holdfast.messages.rows import PutRow, pack_sizes, unpack_sizes
from holdfast.operations.effects import BULK_FROM, Operation, Sleep

V = TypeVar("V", bound=Sized)
ANOTHER_GRANT = (GrantTimedOut, GrantRefused)
"""Errors after which another grant is asked for."""


@dataclass(slots=True)
class Piece(Generic[V]):
    """Objects that get memory together: one grant."""

    keys: list[str]
    values: Sequence[V]
    """Only their lengths count here."""
    places: Sequence[int]
    """The index of each object in its batch."""
    sizes: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.sizes = [*map(len, self.values)]

    def cut(self, start: int, stop: int | None = None) -> Piece[V]:
        return Piece(self.keys[start:stop], self.values[start:stop], self.places[start:stop])

    def pick(self, chosen: Iterable[int]) -> Piece[V]:
        """These, in this order."""
        rows = [(self.keys[index], self.values[index], self.places[index]) for index in chosen]
        return Piece([key for key, _, _ in rows], [value for _, value, _ in rows], [place for *_, place in rows])


class NotGranted(Exception):
    """No memory was granted for a piece within its share of the time. No byte was written, and there may be time left
    to ask for less."""

    def __init__(self, cause: TryAgain | Uncertain) -> None:
        super().__init__(str(cause))
        self.cause = cause


def not_granted(error: TryAgain | Uncertain, deadline: float, room_by: float) -> Exception:
    """The error of a piece that got no memory: final, unless it asked with less time than is left."""
    if room_by >= deadline or isinstance(error, ANOTHER_GRANT):
        return error
    return NotGranted(error)


class WrittenPiece(NamedTuple):
    """One commit of a piece."""

    piece: Piece[Value]
    """The objects that were written, without those whose keys were taken."""
    stored: bytes
    """Which of these were stored, a byte per object."""
    rest: Piece[Value] | None
    """Objects that the grant had no room for: they are put next."""


def put(core: Core, key: str, value: Value, options: PutOptions, deadline: float) -> Operation[bool]:
    try:
        stored = yield from _put_at_once(core, key, value, options, deadline)
        if stored is None:
            done = yield from Put(core, options, deadline, deadline).piece(Piece([key], [value], (0,)))
            return 1 in done.stored
        return stored
    finally:
        if options.upsert:
            core.leases.drop(key)


def _put_at_once(core: Core, key: str, value: Value, options: PutOptions, deadline: float) -> Operation[bool | None]:
    """Fast path of `Put.piece` in half the time: one small object into a shared grant that is held already, in memory
    that is mapped here. None: the slow path is needed."""
    core.check_open()
    size = len(value)
    if size >= BULK_FROM or size > core.limits.shared_grant_bytes // 8:
        return None
    reserved = core.grants.reserve_one((options.replicas, options.prefer, False), size, core.clock())
    if reserved is None:
        return None
    grant, offset = reserved
    finished: list[GrantId] = []
    try:
        piece = grant.ranges[0]
        mapping = core.bytes.writable(piece) if piece.writer and len(grant.ranges) == 1 else None
        # Checked after the map: memory of another history is mapped only once the grant is marked void.
        if mapping is None or grant.void:
            core.grants.unreserve(grant, offset, size)
            return None
        checksum = copy_into(mapping, piece.offset + offset, value, core.stores_checksums)
        finished = core.grants.take_finished()
        message = commit_of(grant, [key], PutRow.pack(offset, size, checksum), options, finished)
        committed, _ = yield from ask_timed(core, message, Committed, deadline, grant.ranges)
        finished = []
    except ANOTHER_GRANT as error:
        _let_go(core, grant, error)
        return None
    finally:
        if finished:
            core.grants.put_back(core.clock(), finished)
        core.grants.release(grant, core.clock())
    if committed.stored == b"\1":
        return True
    core.grants.unreserve(grant, offset, size)
    return False


def commit_of(
    grant: WriteGrant,
    keys: list[str],
    rows: bytes,
    options: PutOptions,
    finished: list[GrantId],
    ahead: GrantRanges | None = None,
) -> CommitPuts:
    return CommitPuts(
        grant.id, keys, rows, options.upsert, options.soft_pin, options.hard_pin, options.durability, finished, ahead
    )


def put_piece(
    core: Core, piece: Piece[Value], options: PutOptions, deadline: float, room_by: float
) -> Operation[WrittenPiece]:
    """Put these, waiting for memory until `room_by`. If that is before the deadline, NotGranted says that none came."""
    return Put(core, options, deadline, room_by).piece(piece)


class Put:
    """A put in progress, of a piece of a batch or of one object that `_put_at_once` left to it.

    1. Room is taken in a shared grant (small objects, or a streak of large ones) or in a grant of its own.
    2. Every replica is written.
    3. It is committed. If the grant has timed out or its connection broke, it begins again at 1.
    """

    __slots__ = ("core", "deadline", "in_streak", "options", "room_by")

    def __init__(self, core: Core, options: PutOptions, deadline: float, room_by: float) -> None:
        self.core = core
        self.options = options
        self.deadline = deadline
        self.room_by = room_by
        """How long to wait for memory."""
        self.in_streak = False
        """It is one of several large puts that follow each other (ADR 25)."""

    def piece(self, piece: Piece[Value]) -> Operation[WrittenPiece]:
        """Put these together."""
        core, pause = self.core, FIRST_PAUSE
        while True:
            core.check_open()
            failure: HoldfastError
            try:
                return (yield from self._attempt(piece))
            except ANOTHER_GRANT as error:
                failure = error
            except WriteFailed as failed:
                failure = failed.cause
                yield from _give_up_torn(core, self.deadline)
            if core.clock() + pause >= self.deadline:
                raise failure
            yield Sleep(pause)
            if core.clock() >= self.deadline:  # The sleep was longer than asked for.
                raise failure
            pause = min(2 * pause, LONGEST_PAUSE)

    def _attempt(self, piece: Piece[Value]) -> Operation[WrittenPiece]:
        core = self.core
        large = _is_large(core, piece.sizes)
        kind: Kind = (self.options.replicas, self.options.prefer, large)
        self.in_streak = large and core.grants.in_streak(kind, core.clock())
        if large:
            reserved = self._room_in_streak(piece, kind) if self.in_streak else None
        else:
            reserved = yield from self._shared_room(piece.sizes, kind)
        if reserved is None:
            done = yield from self._in_own_grant(piece)
        else:
            done = WrittenPiece(piece, (yield from self._in_shared_grant(piece, *reserved)), None)
        if large and done.stored:
            # If every key was taken, the next ones may be too: they should ask by key first.
            (core.grants.continue_streak if 1 in done.stored else core.grants.end_streak)(kind, core.clock())
        return done

    def _room_in_streak(self, piece: Piece[Value], kind: Kind) -> tuple[WriteGrant, list[int]] | None:
        """Room in the grant that an earlier commit prefetched. None: there is not enough, or asking by key is better:
        that maps new memory of this machine, and does not copy objects that are there already."""
        core = self.core
        if core.segments.stale or (not self.options.upsert and core.any_in_key_table(piece.keys)):
            return None
        return core.grants.reserve(kind, piece.sizes, core.clock())

    def _shared_room(self, sizes: list[int], kind: Kind) -> Operation[tuple[WriteGrant, list[int]] | None]:
        """Room for small objects in a shared grant; None if they must have their own."""
        core = self.core
        reserved = core.grants.reserve(kind, sizes, core.clock())
        if reserved is not None or not core.grants.may_ask(kind):
            return reserved
        try:
            wanted = pack_sizes([core.limits.shared_grant_bytes])
            least = lay_out(sizes)[1]
            grant_id = core.grants.next_id()
            _, grant = yield from take_grant(core, grant_id, [], wanted, self.options, kind, self.room_by, least)
            # Reserved before anyone else can fill it up.
            return None if grant is None else core.grants.reserve(kind, sizes, core.clock())
        except TooLarge:
            # The segments are smaller than a shared grant, and this master gives no shorter ones: each put has its own.
            return None
        except (TryAgain, Uncertain) as error:
            raise not_granted(error, self.deadline, self.room_by) from error
        finally:
            core.grants.asked(kind)

    def _in_shared_grant(self, piece: Piece[Value], grant: WriteGrant, offsets: list[int]) -> Operation[bytes]:
        core = self.core
        try:
            stored = yield from self._write_and_commit(piece, grant, offsets)
        except (*ANOTHER_GRANT, WriteFailed) as error:
            _let_go(core, grant, error)
            raise
        finally:
            core.grants.release(grant, core.clock())
        if stored == b"\0":
            core.grants.unreserve(grant, offsets[0], piece.sizes[0])
        return stored

    def _in_own_grant(self, piece: Piece[Value]) -> Operation[WrittenPiece]:
        core = self.core
        grant_id = core.grants.next_id()
        # An interrupt may come between any two steps, so the id is chosen before the grant exists.
        try:
            taken = take_own_grant(core, grant_id, piece, self.options, self.deadline, self.room_by)
            grant, piece, rest = yield from taken
            if grant is None:
                return WrittenPiece(piece, b"", None)
            offsets, _ = lay_out(piece.sizes)
            return WrittenPiece(piece, (yield from self._write_and_commit(piece, grant, offsets)), rest)
        finally:
            core.grants.done_with(grant_id, core.clock())

    def _write_and_commit(self, piece: Piece[Value], grant: WriteGrant, offsets: list[int]) -> Operation[bytes]:
        """Write and commit these. Returns which of them were stored, a byte per object."""
        checksums = yield from fill(self.core, grant, piece.values, piece.sizes, offsets, self.deadline)
        rows = PutRow.pack_columns(offsets, piece.sizes, checksums)
        ahead = self._prefetch_request(piece.sizes) if self.in_streak else None
        return (yield from self._commit(grant, piece.keys, rows, ahead))

    def _prefetch_request(self, sizes: list[int]) -> GrantRanges | None:
        """The request that prefetches memory for further puts like this one, unless there is some already."""
        core, options = self.core, self.options
        most = core.limits.write_window_bytes // 4 // options.replicas
        length = core.grants.prefetch_bytes(self._streak_kind, _extent_of_all(sizes), most)
        if not length:
            return None
        attached, prefer = core.bytes.attachments(), core.preferred(options.prefer)
        return GrantRanges(core.grants.next_id(), pack_sizes([length]), [], options.replicas, prefer, attached)

    @property
    def _streak_kind(self) -> Kind:
        """The kind of puts in a streak like this one."""
        return self.options.replicas, self.options.prefer, True

    def _commit(self, grant: WriteGrant, keys: list[str], rows: bytes, ahead: GrantRanges | None) -> Operation[bytes]:
        """Commit these, and hold the memory that `ahead` prefetches. Returns which were stored, a byte per object."""
        core = self.core
        history = core.limits.log_id
        finished = core.grants.take_finished()
        message = commit_of(grant, keys, rows, self.options, finished, ahead)
        try:
            committed, sent_at = yield from ask_timed(core, message, Committed, self.deadline, grant.ranges)
        except BaseException:
            # The prefetched memory may have been granted, too.
            core.grants.put_back(core.clock(), finished if ahead is None else [*finished, ahead.grant])
            raise
        finally:
            if ahead is not None:
                core.grants.asked(self._streak_kind)
        if ahead is not None:
            self._hold_prefetched(ahead.grant, committed.ahead, sent_at, history)
        if len(committed.stored) != len(keys):
            raise BadRequest(f"the master answered for {len(committed.stored)} puts, not for {len(keys)}")
        return committed.stored

    def _hold_prefetched(self, grant_id: GrantId, granted: Granted | None, sent_at: float, history: int) -> None:
        core = self.core
        if granted is None:
            core.grants.prefetch_refused()
            return
        core.segments.seen = granted.topology
        _hold(core, grant_id, granted, self._streak_kind, sent_at, history)


def _let_go(core: Core, grant: WriteGrant, error: Exception) -> None:
    """Give up a grant that is no longer of use, and every other one on a node that is away."""
    core.grants.retire(grant, core.clock())
    if isinstance(error, NodeAway):
        core.grants.retire_on({piece.segment for piece in grant.ranges}, core.clock())


def _is_large(core: Core, sizes: list[int]) -> bool:
    """Should these have a grant of their own, rather than share one with other small puts?"""
    shared_bytes = core.limits.shared_grant_bytes
    return max(sizes) > shared_bytes // 8 or (len(sizes) > 1 and sum(sizes) > shared_bytes // 4)


def take_own_grant(
    core: Core, grant_id: GrantId, piece: Piece[V], options: PutOptions, deadline: float, room_by: float
) -> Operation[tuple[WriteGrant | None, Piece[V], Piece[V] | None]]:
    """A grant for these, the objects that it has room for, and the others. Those whose keys are taken are in neither;
    no grant: all are."""
    packed = pack_sizes(piece.sizes)
    least = extent_of(max(piece.sizes)) if len(piece.sizes) > 1 else 0
    try:
        taken, grant = yield from take_grant(core, grant_id, piece.keys, packed, options, None, room_by, least)
    except (TryAgain, Uncertain) as error:
        raise not_granted(error, deadline, room_by) from error
    if grant is None:
        return None, piece.cut(0, 0), None
    if any(taken):
        piece = piece.pick([index for index, is_taken in enumerate(taken) if not is_taken])
    return grant, *_split_to_fit(piece, grant.length)


def _split_to_fit(piece: Piece[V], length: int) -> tuple[Piece[V], Piece[V] | None]:
    """As many of the first objects as a grant of this length holds, and the others."""
    count = len(piece.keys)
    while lay_out(piece.sizes[:count])[1] > length:
        count -= max(1, count // 16)
        if count <= 0:
            needed = lay_out(piece.sizes[:1])[1]
            raise BadRequest(f"the master granted {length:,} bytes where {needed:,} are needed; nothing was stored")
    if count == len(piece.keys):
        return piece, None
    return piece.cut(0, count), piece.cut(count)


def take_grant(
    core: Core,
    grant_id: GrantId,
    keys: list[str],
    sizes: bytes,
    options: PutOptions,
    kind: Kind | None,
    deadline: float,
    least: int = 0,
) -> Operation[tuple[bytes, WriteGrant | None]]:
    """(which keys are taken, the grant). No grant: every key is taken. With `least` it may be as short as that."""
    history = core.limits.log_id
    yield from ready_to_write(core, deadline)
    wanted = _extent_of_all(unpack_sizes(sizes)) * options.replicas
    core.grants.make_way(wanted, core.limits.write_window_bytes, core.clock())
    finished = core.grants.take_finished()
    attached = core.bytes.attachments()
    prefer = core.preferred(options.prefer)
    message = GrantRanges(grant_id, sizes, keys, options.replicas, prefer, attached, options.upsert, finished, least)
    try:
        granted, sent_at = yield from ask_timed(core, message, Granted, deadline, history=history)
    except BaseException:
        # It may have been granted. Returning a grant that does not exist is harmless; keeping one that does is not.
        now = core.clock()
        core.grants.put_back(now, [*finished, grant_id])
        core.keep(now + CARRIED_WITHIN_SECONDS)
        raise
    core.segments.seen = granted.topology
    if not granted.ranges:
        return granted.taken, None
    grant = _hold(core, grant_id, granted, kind, sent_at, history)
    if grant is None:
        raise GrantTimedOut("a master with another history was met meanwhile; nothing was stored")
    return granted.taken, grant


def _hold(
    core: Core, grant_id: GrantId, granted: Granted, kind: Kind | None, sent_at: float, history: int
) -> WriteGrant | None:
    """Hold a new grant. None: the history has changed since the request, and a master of either history may have
    granted it. It is returned, which is harmless where it is unknown (I19)."""
    timeout = granted.timeout_ms / 1000
    grant = WriteGrant(
        grant_id, granted.length, tuple(granted.ranges), timeout, sent_at + relied_on(timeout), 0.0, sent_at, kind
    )
    grant.extended(sent_at)
    if not core.keep_grant(grant, history, core.clock()):
        core.grants.put_back(core.clock(), [grant_id])
        core.keep(core.clock() + CARRIED_WITHIN_SECONDS)
        return None
    core.keep(min(grant.extend_at, sent_at + CARRIED_WITHIN_SECONDS))
    return grant


def _extent_of_all(sizes: Sequence[int]) -> int:
    """The memory that objects of these sizes take. Most batches have one size."""
    return sum(extent_of(size) * count for size, count in Counter(sizes).items())


def _give_up_torn(core: Core, deadline: float) -> Operation[None]:
    torn = core.grants.take_torn()
    if not torn:
        return
    try:
        yield from ask(core, ReturnGrants(torn, settled=False), Done, deadline)
    except BaseException:
        core.grants.put_back(core.clock(), (), torn)
        raise

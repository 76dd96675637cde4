"""put_many: a batch of puts, in pieces of one grant and one commit each.

With outcomes, a piece that finds no room fails alone, and of its keys only those that do not fit. reserve_many has its
memory in the same turns (batch_reservations):

1. asked for in its turn, with an equal share of three quarters of the time to wait for room;
2. refused: no byte was written, and the next piece has its turn;
3. asked for again after every piece's first turn, together with all others that were refused, the smallest objects
   first and fewer at a time. Objects that remain when the time is over, or when the smallest finds no room, fail.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from holdfast.client.arguments import PutItems, PutOptions, Value
from holdfast.client.operations.puts import NotGranted, Piece, V, WrittenPiece, put_piece
from holdfast.client.state.client import KEYS_A_REQUEST, Core
from holdfast.errors import (
    ClientClosed,
    HoldfastError,
    NoRoom,
    NotAuthorized,
    PartlyStored,
    TooLarge,
    Uncertain,
    Unreachable,
    WrongVersion,
)
from holdfast.ids import LARGE_ALIGN, extent_of
from holdfast.operations.effects import Operation

PIECE_BYTES = 32 << 20
FIRST_TURNS_SHARE = 0.75
"""The share of the time in which all pieces' first turns may wait for room. The rest is for refused pieces."""
LAST_TURN_SHARE = 0.9
"""The share of the remaining time to wait for room again. The rest is for the bytes and the commit."""

_OF_THE_CALL = (Unreachable, ClientClosed, NotAuthorized, WrongVersion)
"""Errors of the whole call, as long as no key has had another outcome."""


class PutLedger:
    """The outcome of each object of a batch."""

    __slots__ = ("any_known", "count", "outcomes", "stored")

    def __init__(self, count: int, outcomes: bool) -> None:
        self.count = count
        self.stored = 0
        self.any_known = False
        """The outcome of at least one of them is known."""
        self.outcomes: list[bool | HoldfastError] | None = [False] * count if outcomes else None

    def note(self, done: WrittenPiece) -> None:
        self.any_known = True
        self.stored += done.stored.count(1)
        if self.outcomes is not None:
            for place, stored in zip(done.piece.places, done.stored, strict=True):
                self.outcomes[place] = bool(stored)

    def fail(self, piece: Piece[Value], error: HoldfastError) -> None:
        """Note that these were not stored, or may not be; raises if the error applies to the whole call."""
        if self.outcomes is None:
            if isinstance(error, Uncertain):
                raise error
            raise _as_a_whole(error, self.stored, self.count) from error
        if isinstance(error, _OF_THE_CALL) and not self.any_known:
            raise error
        self.any_known = True
        for place in piece.places:
            self.outcomes[place] = error


def put_many(core: Core, items: PutItems, options: PutOptions, deadline: float) -> Operation[int]:
    """The number of objects that were stored; keys that existed already keep theirs."""
    ledger = PutLedger(items.count, outcomes=False)
    yield from _put_all(core, items, ledger, options, deadline)
    return ledger.stored


def put_each(
    core: Core, items: PutItems, options: PutOptions, deadline: float
) -> Operation[list[bool | HoldfastError]]:
    """For each True if it was stored, False if its key was taken, or its error."""
    ledger = PutLedger(items.count, outcomes=True)
    yield from _put_all(core, items, ledger, options, deadline)
    assert ledger.outcomes is not None
    return ledger.outcomes


def _put_all(core: Core, items: PutItems, ledger: PutLedger, options: PutOptions, deadline: float) -> Operation[None]:
    def attempt(piece: Piece[Value], room_by: float) -> Operation[Piece[Value] | None]:
        done = yield from put_piece(core, piece, options, deadline, room_by)
        ledger.note(done)
        return done.rest

    limit = min(PIECE_BYTES, core.limits.write_window_bytes // 2)
    whole = Piece(items.keys, items.values, items.places)
    # With one key, or where the first failure ends the call, there are no others to leave time for.
    share = 0.0 if ledger.outcomes is None or len(items.keys) == 1 else FIRST_TURNS_SHARE
    try:
        yield from take_turns(core, whole, limit, attempt, ledger.fail, deadline, share)
    finally:
        if options.upsert:
            core.leases.drop_many(items.keys)


def _as_a_whole(error: HoldfastError, stored: int, count: int) -> HoldfastError:
    """A piece's error as the batch's error: "nothing was changed" is not true of it once another piece was stored."""
    if not stored:
        return error
    return PartlyStored(f"{stored:,} of {count:,} objects were stored, then: {error} Put the batch again for the rest")


Attempt: TypeAlias = Callable[[Piece[V], float], Operation[Piece[V] | None]]
"""Has these done, waiting for room until then. Returns the objects that the grant had no room for: they are next."""
Fail: TypeAlias = Callable[[Piece[V], HoldfastError], None]
"""Notes the error of these; raises if it is an error of the whole call."""


def take_turns(
    core: Core, whole: Piece[V], limit: int, attempt: Attempt[V], fail: Fail[V], deadline: float, share: float
) -> Operation[None]:
    """Have all of these done, in pieces of at most `limit` bytes. `share`: that of the time for all first turns; 0 if
    the first one that finds no room may wait until the deadline."""
    waiting = deque(_pieces(whole, limit))
    refused: list[tuple[Piece[V], HoldfastError]] = []
    turns_end = core.clock() + share * (deadline - core.clock())
    while waiting:
        now = core.clock()
        room_by = now + max(0.0, turns_end - now) / len(waiting) if share else deadline
        piece = waiting.popleft()
        try:
            rest = yield from attempt(piece, room_by)
            if rest is not None:
                waiting.appendleft(rest)
        except TooLarge as error:
            # Together they fit into no segment; each alone may.
            if len(piece.keys) == 1:
                fail(piece, error)
            else:
                half = len(piece.keys) // 2
                waiting.extendleft((piece.cut(half), piece.cut(0, half)))
        except NotGranted as error:
            refused.append((piece, error.cause))
        except HoldfastError as error:
            fail(piece, error)
    if refused:
        yield from _take_last_turns(core, refused, limit, attempt, fail, deadline)


def _take_last_turns(
    core: Core,
    refused: list[tuple[Piece[V], HoldfastError]],
    limit: int,
    attempt: Attempt[V],
    fail: Fail[V],
    deadline: float,
) -> Operation[None]:
    """The smallest first: half of them, fewer after a refusal, more after a success. Refusals are counted, so that a
    batch of n keys costs O(log n) requests."""
    left = _smallest_first([piece for piece, _ in refused])
    why = next((error for _, error in refused if isinstance(error, NoRoom)), refused[-1][1])
    count = -(-len(left.keys) // 2)
    refusals_left = 2 * len(left.keys).bit_length()
    while left.keys:
        now = core.clock()
        if now >= deadline or not refusals_left:
            fail(left, why)
            return
        some = left.cut(0, min(count, _end_of_piece(left.sizes, 0, limit)))
        others = left.cut(len(some.keys))
        # If the smallest finds no room alone, the others are not asked for: no time need be kept for them.
        alone = len(some.keys) == 1
        share = LAST_TURN_SHARE if alone else 1 / (refusals_left + 1)
        try:
            rest = yield from attempt(some, now + share * (deadline - now))
        except (NotGranted, TooLarge) as error:
            cause = error.cause if isinstance(error, NotGranted) else error
            # That there was no room says more than that no reply came in a short time.
            why = cause if isinstance(cause, NoRoom | TooLarge) else why
            refusals_left = 0 if alone else refusals_left - 1
            count = len(some.keys) // 2
        except HoldfastError as error:
            fail(some, error)
            left = others
        else:
            left = others if rest is None else _smallest_first([rest, others])
            count = 2 * len(some.keys)


def _smallest_first(pieces: Sequence[Piece[V]]) -> Piece[V]:
    joined = Piece(
        [key for piece in pieces for key in piece.keys],
        [value for piece in pieces for value in piece.values],
        [place for piece in pieces for place in piece.places],
    )
    return joined.pick(sorted(range(len(joined.keys)), key=joined.sizes.__getitem__))


def _pieces(whole: Piece[V], limit: int) -> Iterator[Piece[V]]:
    count = len(whole.keys)
    if not count:
        return
    if count <= KEYS_A_REQUEST and sum(whole.sizes) + LARGE_ALIGN * count <= limit:
        yield whole
        return
    start = 0
    while start < count:
        stop = _end_of_piece(whole.sizes, start, limit)
        yield whole.cut(start, stop)
        start = stop


def _end_of_piece(sizes: Sequence[int], start: int, limit: int) -> int:
    """The end of the piece that begins at `start`. It has at least one object."""
    end = min(len(sizes), start + KEYS_A_REQUEST)
    total = extent_of(sizes[start])
    for index in range(start + 1, end):
        total += extent_of(sizes[index])
        if total > limit:
            return index
    return end

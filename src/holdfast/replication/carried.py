"""A catalogue carried in the log, so that a restored history needs nothing but its log (I13).

A snapshot is cut into records that fit a batch on every backend; `HistoryRestored` after the last piece makes the
state. A restore that breaks off leaves pieces without that record, which change nothing: the history before them
goes on, or there is none.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Sequence

import structlog
import xxhash

from holdfast.coordination.interface import Coordination, CoordinationLost, Term
from holdfast.core.state.apply_restored import begin_history
from holdfast.core.state.state import State
from holdfast.errors import Uncertain
from holdfast.instant import Instant
from holdfast.messages.records import CatalogueCarried, HistoryRestored
from holdfast.messages.shapes import Record
from holdfast.replication.batches import (
    BrokenChain,
    Position,
    UnknownRecord,
    encode_batch,
    encode_record,
    position_after,
)
from holdfast.replication.snapshots import CorruptSnapshot, load, version_in

log = structlog.get_logger("holdfast.master")
AGAIN_SECONDS = 0.2
PIECE_BYTES = 512 << 10
"""Half of what etcd takes in one request, and two thirds of what ZooKeeper does."""


class Carried:
    """The pieces read so far."""

    __slots__ = ("_pieces",)

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    @property
    def begun(self) -> bool:
        return bool(self._pieces)

    def takes(self, record: Record) -> bool:
        """Keep the record if it is a piece; any other record means that the writer of the pieces gave up. BrokenChain
        if the piece does not follow the one before it."""
        if not isinstance(record, CatalogueCarried):
            self._pieces = []
            return False
        if record.number == 0:
            self._pieces = []
        if record.number != len(self._pieces):
            raise BrokenChain(f"piece {record.number} of a catalogue follows {len(self._pieces)} others")
        self._pieces.append(record.content)
        return True

    def restored(self, record: HistoryRestored, index: int, now: Instant) -> State:
        """The first state of the new history, `index` records into its log."""
        content = b"".join(self._pieces)
        if xxhash.xxh3_64_intdigest(content) != record.checksum:
            raise UnknownRecord("the pieces of the catalogue are not those that the restored history names")
        try:
            state = load(content, now).state
        except CorruptSnapshot as error:
            raise UnknownRecord(f"the catalogue of the restored history cannot be read here ({error})") from None
        begin_history(state, record.log_id, record.secret, index, record.replaces)
        self._pieces = []
        return state


def batches_of(
    content: bytes,
    log_id: int,
    secret: bytes,
    after: Position,
    piece_bytes: int = PIECE_BYTES,
    replaces: Sequence[int] = (),
) -> Iterator[tuple[Position, bytes]]:
    """The batches, following `after`, that make this snapshot the catalogue of a new history."""
    version, count = version_in(content), -(-len(content) // piece_bytes)
    records: list[Record] = [
        CatalogueCarried(number, count, content[number * piece_bytes : (number + 1) * piece_bytes])
        for number in range(count)
    ]
    records.append(HistoryRestored(log_id, secret, xxhash.xxh3_64_intdigest(content), [*replaces]))
    for record in records:
        batch, after = encode_batch(after, [encode_record(record)], version)
        yield after, batch


async def append_catalogue(
    coordination: Coordination,
    term: Term,
    content: bytes,
    log_id: int,
    secret: bytes,
    now: Instant,
    piece_bytes: int = PIECE_BYTES,
    replaces: Sequence[int] = (),
) -> tuple[State, Position]:
    """Make this snapshot the catalogue of a new history, at the end of the existing log, if any; durable on return.

    CorruptSnapshot: nothing was written. Deposed: pieces may have been, which change nothing.
    """
    state = load(content, now).state
    position = await _end_of(coordination)
    for after, batch in batches_of(content, log_id, secret, position, piece_bytes, replaces):
        await _append(term, after.batch, batch)
        position = after
    begin_history(state, log_id, secret, position.index, replaces)
    return state, position


async def _end_of(coordination: Coordination) -> Position:
    """The end of the log. Nobody else may write to it now; this master may be unable to read all of it."""
    last = await coordination.last_index()
    if last:
        async with contextlib.aclosing(coordination.follow(last - 1)) as following:
            async for batches in following:
                return position_after(*batches[-1])
    return Position()


async def _append(term: Term, number: int, batch: bytes) -> None:
    """Append the batch; retry until it is written, or the term is over."""
    while True:
        try:
            await term.append(number, batch)
            return
        except (CoordinationLost, Uncertain) as error:
            log.warning("a piece of the catalogue is not written yet; it is sent again", why=str(error))
            await asyncio.sleep(AGAIN_SECONDS)

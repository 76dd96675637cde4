"""The state of a client and its requests to the master, shared by both shells.

Every request goes through `ask`, which retries it (`operations/ask.py`).
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import xxhash

from holdfast.client.bytes.nodes import NodeBytes
from holdfast.client.state.grants import Grants, WriteGrant
from holdfast.client.state.held_leases import HeldLeases
from holdfast.client.state.leases import LeaseColumns, LeaseRow, Leases, ReadLease, lease_until
from holdfast.client.state.own_removals import OwnRemovals
from holdfast.client.state.segments import Segments
from holdfast.errors import (
    ClientClosed,
    GrantTimedOut,
    NodeAway,
    TryAgain,
    Unreachable,
)
from holdfast.instant import Clock
from holdfast.messages.hello import fresh_hello
from holdfast.messages.requests import (
    ChangePins,
    CommitPuts,
    Hello,
    Remove,
    RemoveMatching,
    Welcome,
)
from holdfast.messages.shapes import Message, Range
from holdfast.operations.ask import RetryPolicy, ask_until
from holdfast.operations.effects import Operation
from holdfast.transport.addresses import LOCAL
from holdfast.transport.key_table import KeyTableReader, Line, key_table_of

if TYPE_CHECKING:
    from holdfast.client.operations.reservations import Reserved, Share

T = TypeVar("T", bound=Message)

FIRST_PAUSE = 0.02
LONGEST_PAUSE = 0.5
SMALL_READ = 256 << 10
KEYS_A_REQUEST = 7_500
"""The number of keys of the greatest length that fit into one frame."""

# Not GrantRanges: a grant stores nothing, and one whose reply was lost is given back.
RETRIES = RetryPolicy(
    FIRST_PAUSE, LONGEST_PAUSE, longest_settling_pause=0.1, changes=(CommitPuts, Remove, RemoveMatching, ChangePins)
)
_digest = xxhash.xxh3_64_intdigest


@dataclass(slots=True, eq=False)
class OpenView:
    """A reader of an object in place, whose lease must be kept alive."""

    key: str
    id: int
    segment: int
    offset: int
    history: int
    until: float
    renew_at: float
    window: weakref.ref[object]
    """Dead once neither the view nor anything made from it is left."""
    read_entry: object = None
    """Its entry in `OwnRemovals`."""
    ended: bool = False
    """The block is over, and something made from the view may be alive."""
    lost: bool = False
    revoked: bool = False
    """A node has reported that the object was removed or moved. Until the lease ends, its bytes are right."""

    def lease(self) -> ReadLease:
        return ReadLease(self.until, self.segment, self.offset, self.offset, 0, self.id, (), self.history)


class Core:
    """The state of one client. It reads the clock through `clock` only, and opens no connections or files."""

    def __init__(self, clock: Clock, token: str, verify: bool, node_bytes: NodeBytes | None = None) -> None:
        self.clock = clock
        self.token = token
        self.verify = verify
        self.stores_checksums = verify
        """Puts store a checksum with every object. Separate from `verify`, so that a simulated client may store them
        and not compare them."""
        self._hello = fresh_hello(token, control=True)
        self.leases = Leases()
        self.segments = Segments()
        self.grants = Grants(self._hello.client)
        self.bytes = node_bytes if node_bytes is not None else NodeBytes()
        self.views: dict[OpenView, None] = {}
        self.shares: dict[Share, weakref.ref[Reserved]] = {}
        """Shares of reservations that have not ended."""
        self.own_removals = OwnRemovals()
        self.held_leases = HeldLeases(self.own_removals)
        self.closed = ""
        """Why the client is closed; empty while it is open."""
        self.keep: Callable[[float], None] = lambda due: None
        """Set by the shell, called when something must be kept alive by that time."""
        self.welcome: Welcome | None = None
        self.key_table: KeyTableReader | None = None
        """The key table of the master that we are connected to, if it shows it to us."""
        self._serial = 0
        self._lock = threading.Lock()
        self.bytes.hear(self.revoked)

    def hello(self) -> Hello:
        return self._hello

    def welcomed(self, welcome: Welcome) -> None:
        """Take over the welcome of a master. If its history is another one, forget everything that we remember."""
        before = self.welcome
        self.grants.belong_to(welcome.client or self._hello.client)
        if before is not None and before.log_id != welcome.log_id:
            self.forget_all(welcome.log_id)
            with self._lock:
                self.welcome = welcome
                # Leases that another thread has kept since then are of the old history.
                self.leases.clear()
                self.grants.clear()
        self.bytes.history = welcome.log_id
        self.welcome = welcome
        self.segments.seen = welcome.topology

    def nearer(self, welcome: Welcome) -> str:
        """The address of the same master's Unix socket, if it is on this machine; empty otherwise."""
        return LOCAL + welcome.local if welcome.local and welcome.host and welcome.host == self.bytes.host else ""

    def meet(self, line: Line) -> None:
        """Map the key table of the master that we are connected to now, if it shows it to us."""
        self.key_table = key_table_of(line)
        if self.closed:
            self.key_table = None

    def unreached(self, error: TryAgain) -> Unreachable:
        """To a caller, a master that does not lead is as good as none."""
        return error if isinstance(error, Unreachable) else Unreachable(str(error))

    def revoked(self, ids: list[int] | None, history: int = 0) -> None:
        """Forget the leases on these objects (None: on all), which have left their places, so that the next read asks
        the master. May be called from any thread. With a history: a node's memory belongs to that one now, and a client
        that maps it under an older one keeps its free space from being used."""
        if history and self.bytes.history not in (0, history):
            self.forget_all(history)
            return
        if ids is None:
            self.leases.clear()
            return
        self.leases.revoke(set(ids))
        for view in list(self.views):
            view.revoked = view.revoked or view.id in ids

    def check_nodes(self, written: Sequence[Range]) -> None:
        """Raise unless all nodes are alive into whose mapped memory these ranges were written. All grants on a dead one
        are given up, held and prefetched."""
        for piece in written:
            if piece.writer and self.bytes.ended(piece):
                self.grants.retire_on(self.bytes.lose(piece), self.clock())
                raise NodeAway("the node of the granted memory is dead; nothing was stored. Put again")

    def check_history(self, history: int) -> None:
        """Raise unless the master that we are connected to has this history. Under another one, the segment numbers in
        a request would name other segments (I19)."""
        if self.limits.log_id != history:
            raise GrantTimedOut("a master with another history was met meanwhile; nothing was stored")

    def forget_all(self, history: int) -> None:
        """Forget and unmap everything that was learnt under another history than this one."""
        self.leases.clear()
        self.segments.clear()
        self.grants.clear()
        self.held_leases.history_changed()
        for view in list(self.views):
            view.lost = True
        self.bytes.enter_history(history)

    @property
    def limits(self) -> Welcome:
        if self.welcome is None:
            raise ClientClosed("the client is not connected; connect first")
        return self.welcome

    def keep_leases(self, found: Mapping[str, LeaseRow], history: int) -> None:
        """Keep leases of one history for later reads, if that history is still the master's."""
        with self._lock:
            if self.limits.log_id == history:
                self.leases.keep(found)

    def keep_columns(self, columns: LeaseColumns) -> None:
        """As `keep_leases`."""
        with self._lock:
            if self.limits.log_id == columns.history:
                self.leases.keep_columns(columns)

    def keep_lease(self, key: str, lease: LeaseRow) -> None:
        with self._lock:
            if self.limits.log_id == lease[7]:
                self.leases.keep_one(key, lease)

    def keep_grant(self, grant: WriteGrant, history: int, now: float) -> bool:
        """Keep a grant. False: the history has changed since it was asked for, so it is void."""
        with self._lock:
            if self.limits.log_id != history:
                grant.void = True
                return False
            self.grants.add(grant, now)
            return True

    def attach_tickets_are_old(self) -> bool:
        """May nodes refuse the tickets that came with the list of segments? They are good for as long as a lease."""
        return self.clock() >= lease_until(self.segments.told_at, self.limits.lease_ttl_ms)

    def verifies(self, segment: int, until: float) -> bool:
        """Are copies from this segment, under a lease that ends then, compared with their checksums?"""
        return self.verify or self.segments.doubts(segment, until)

    def next_serial(self) -> int:
        with self._lock:
            self._serial += 1
            return self._serial

    def check_open(self) -> None:
        if self.closed:
            raise ClientClosed(self.closed)

    def tried_again(self) -> None:
        """For those that count it (`client/metered`)."""

    def leave_to_parent(self) -> None:
        """In a forked child, close the client: the memory is not mapped here."""
        self.closed = "this client belongs to the parent process; connect again in the child, after the fork"
        self.leases.clear()
        self.key_table = None
        self.views = {}
        self.shares = {}
        self.own_removals.clear()
        self.held_leases = HeldLeases(self.own_removals)
        self.bytes.leave_to_parent()

    def reachable(self, lease: LeaseRow) -> bool:
        """Is there a replica that is mapped here, or whose node is not failing?"""
        failing, maps = self.bytes.failing, self.bytes.maps
        for segment in (lease[1], *[segment for segment, _ in lease[6]]):
            place = self.segments.places.get(segment)
            if segment in maps or place is None or place.data_address not in failing:
                return True
        return False

    def unreachable_segments(self) -> list[int]:
        """Segments on failing nodes that are not mapped."""
        failing, maps = self.bytes.failing, self.bytes.maps
        if not failing:
            return []
        places = list(self.segments.places.values())
        return [place.handle for place in places if place.data_address in failing and place.handle not in maps]

    def preferred(self, names: Sequence[str]) -> list[str]:
        """The places to ask for memory first: these; while nodes are failing, these and then all others without the
        failing ones."""
        if not self.bytes.failing:
            return list(names)
        away = {*self.unreachable_segments()}
        lending = [place for place in self.segments.places.values() if not place.kind]
        bad = {name for place in lending if place.handle in away for name in (place.name.node, str(place.name))}
        good = [str(place.name) for place in lending if place.handle not in away]
        # Not always the same one first: the master would fill only that one.
        turn = len(self.grants.by_id) % len(good) if good else 0
        return [*(name for name in names if name not in bad), *good[turn:], *good[:turn]]

    def mind_failing(self) -> None:
        """Have failing nodes probed. Must not be called from a thread that works for an operation."""
        if (first := self.bytes.failing.next_probe()) is not None:
            self.keep(first.probe_at)

    def in_key_table(self, key: str) -> bool | None:
        """Is it stored, according to the key table? None: ask. While a node is failing the table is not used, because
        it does not know places (ADR 41)."""
        table = self.key_table
        return table.has(key) if table is not None and not self.bytes.failing.by_address else None

    def each_in_key_table(self, keys: list[str]) -> list[bool] | None:
        """As `in_key_table`, per key."""
        table = self.key_table
        return table.has_each(keys) if table is not None and not self.bytes.failing.by_address else None

    def any_in_key_table(self, keys: list[str]) -> bool:
        """Is one of these known to be stored, without asking?"""
        there = self.key_table.has_each(keys) if self.key_table is not None else None
        return there is not None and any(there)

    def read_leased(self, key: str) -> bytes | None:
        """The bytes of a small object on this machine whose lease is live: no round trip. None: ask."""
        kept = self.leases.by_key.get(key)
        if kept is None:
            return None
        try:
            until, segment, start, stop, checksum, _, _, _, _ = kept  # type: ignore[misc]
        except TypeError:
            # The lease came with a batch, as columns. A look at the type would cost every other read 15 ns of 300.
            assert type(kept) is LeaseColumns, "a lease is a row or came as columns"
            until, segment, start, stop, checksum, _, _, _, _ = kept.rows[key]
        memory = self.bytes.maps.get(segment)
        if memory is None or stop - start > SMALL_READ:
            return None
        try:
            data = memory[start:stop]
        except ValueError:
            # Unmapped by another thread, which closes this client or has learnt that the node is dead.
            return None
        # The clock is read after the last byte: inside the lease all of them were right (I2).
        if self.clock() >= until:
            return None
        if checksum and self.verifies(segment, until) and (_digest(data) or 1) != checksum:
            return None
        # Another thread may have met a master with another history, whose segments have the same numbers.
        return data if self.leases.by_key.get(key) is kept else None


def ask(core: Core, message: Message, kind: type[T], deadline: float) -> Operation[T]:
    """Send until there is a reply, within the deadline."""
    reply, _ = yield from ask_timed(core, message, kind, deadline)
    return reply


def ask_timed(
    core: Core,
    message: Message,
    kind: type[T],
    deadline: float,
    written: Sequence[Range] = (),
    unsure: bool = False,
    history: int = 0,
) -> Operation[tuple[T, float]]:
    """The reply, and the earliest time at which the request may have arrived: durations in the reply count from there.

    `written`: the ranges that a commit makes visible. Their nodes must be alive whenever it is sent.
    `unsure`: it was sent before, and may have taken effect. `history`: the only one that it may be sent under."""
    check: Callable[[], None] | None = None
    if written:
        check = partial(core.check_nodes, written)
    elif history:
        check = partial(core.check_history, history)
    return ask_until(core, RETRIES, message, kind, deadline, check, unsure)

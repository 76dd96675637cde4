"""What a client knows, and how it asks: shared by both shells.

`ask` is where every retry happens. It is safe because every request may be sent again: reads change nothing, grants
and removals carry a number of the client's own, commits are known by (grant, offset).
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
from holdfast.client.state.leases import LeaseRow, Leases
from holdfast.client.state.own_removals import OwnRemovals
from holdfast.client.state.segments import Segments
from holdfast.effects import Checked, LeaveMaster, Operation, Sleep
from holdfast.entropy import fresh_id
from holdfast.errors import (
    Busy,
    ClientClosed,
    DeadlineExceeded,
    GrantTimedOut,
    LogFull,
    LogFullInDoubt,
    NodeAway,
    NotLeader,
    ReplyLost,
    Settling,
    Stopping,
    TryAgain,
    Unreachable,
)
from holdfast.messages.requests import (
    CommitPuts,
    Failed,
    Hello,
    Remove,
    RemoveMatching,
    Welcome,
)
from holdfast.messages.shapes import Message, Range
from holdfast.transport.addresses import LOCAL
from holdfast.transport.key_table import KeyTableReader
from holdfast.wire.codec import expect, raised

if TYPE_CHECKING:
    from holdfast.client.operations.reservations import Reserved, Share

T = TypeVar("T", bound=Message)

FIRST_PAUSE = 0.02
LONGEST_PAUSE = 0.5
LONGEST_SETTLING_PAUSE = 0.1
"""A new primary's doubt about the last one usually ends within a second, when a node has seen that one gone."""
SMALL_READ = 256 << 10
KEYS_A_REQUEST = 7_500
"""So many keys of the greatest length still fit into one frame."""

# Not GrantRanges: a grant stores nothing, and one whose answer was lost is given back.
_CHANGES = (CommitPuts, Remove, RemoveMatching)
_digest = xxhash.xxh3_64_intdigest


@dataclass(slots=True, eq=False)
class OpenView:
    """A reader that looks at an object in place, and needs its lease to go on."""

    key: str
    id: int
    segment: int
    offset: int
    until: float
    renew_at: float
    window: weakref.ref[object]
    """Dead once neither the view nor anything made from it is left."""
    read_entry: object = None
    """Its entry in `OwnRemovals`."""
    ended: bool = False
    """The block is over, and something made from the view may live on."""
    lost: bool = False
    revoked: bool = False
    """The object was removed or moved, as a node has told. Until the lease ends, what is seen is right."""


class Core:
    """The state of one client. It reads the clock through `clock` only and opens nothing by itself."""

    def __init__(
        self, clock: Callable[[], float], token: str, verify: bool, node_bytes: NodeBytes | None = None
    ) -> None:
        self.clock = clock
        self.token = token
        self.verify = verify
        self.stores_checksums = verify
        """Puts keep one with every object. Apart from `verify`, so that a simulated client may keep them unread."""
        self.client = fresh_id()
        self.leases = Leases()
        self.segments = Segments()
        self.grants = Grants(self.client)
        self.bytes = node_bytes if node_bytes is not None else NodeBytes()
        self.views: dict[OpenView, None] = {}
        self.shares: dict[Share, weakref.ref[Reserved]] = {}
        """Of reservations that have not ended."""
        self.own_removals = OwnRemovals()
        self.held_leases = HeldLeases(self.own_removals)
        self.closed = ""
        """Why no more requests are made; empty while they are."""
        self.keep: Callable[[float], None] = lambda due: None
        """Set by the shell: something is held now that needs to be kept alive, by that time."""
        self.welcome: Welcome | None = None
        self.shown: KeyTableReader | None = None
        """The keys of the master that we are connected to, if it shows them to us."""
        self._serial = 0
        self._lock = threading.Lock()
        self.bytes.hear(self.revoked)

    def hello(self) -> Hello:
        return Hello(self.client, self.token, control=True)

    def welcomed(self, welcome: Welcome) -> None:
        """A master took us in. If its history is another one, nothing that we remember is true."""
        before = self.welcome
        if before is not None and before.log_id != welcome.log_id:
            self.forget_all(welcome.log_id)
            with self._lock:
                self.welcome = welcome
                # What another thread kept since then it was told under the old history.
                self.leases.clear()
                self.grants.clear()
        self.bytes.history = welcome.log_id
        self.welcome = welcome
        self.segments.seen = welcome.topology

    def nearer(self, welcome: Welcome) -> str:
        """The address of the same master's Unix socket, if it is on this machine; empty otherwise."""
        return LOCAL + welcome.local if welcome.local and welcome.host and welcome.host == self.bytes.host else ""

    def revoked(self, ids: list[int] | None, history: int = 0) -> None:
        """These objects, or any, have gone from where they were: the next read asks the master. From any thread.
        With a history: a node's memory belongs to that one now, and whoever maps it under an older one keeps its free
        space from everybody."""
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
        """Raise, unless the nodes live into whose mapped memory these ranges were written. Of a dead one all memory is
        let go of: held grants, and what came ahead."""
        for piece in written:
            if piece.writer and self.bytes.ended(piece):
                self.grants.retire_on(self.bytes.lose(piece), self.clock())
                raise NodeAway("the node of the granted memory is dead; nothing was stored. Put again")

    def check_history(self, history: int) -> None:
        """Raise, unless the master that we are connected to has this history. What a request says of segments that are
        mapped here would be taken for others there, which have the same numbers (I19)."""
        if self.limits.log_id != history:
            raise GrantTimedOut("a master with another history was met meanwhile; nothing was stored")

    def forget_all(self, history: int) -> None:
        """Nothing that is known from another history than this one may be used, nor stay mapped."""
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
        """For later reads, if the history is still the one that they were asked for under."""
        with self._lock:
            if self.limits.log_id == history:
                self.leases.keep(found)

    def keep_lease(self, key: str, lease: LeaseRow, history: int) -> None:
        with self._lock:
            if self.limits.log_id == history:
                self.leases.keep_one(key, lease)

    def keep_grant(self, grant: WriteGrant, history: int, now: float) -> bool:
        """False: the history is another one than the grant was asked for under, so it is void."""
        with self._lock:
            if self.limits.log_id != history:
                grant.void = True
                return False
            self.grants.add(grant, now)
            return True

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

    def leave_to_parent(self) -> None:
        """In a forked child nothing of this may be used: the memory is not mapped here."""
        self.closed = "this client belongs to the parent process; connect again in the child, after the fork"
        self.leases.clear()
        self.shown = None
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
        """Those on failing nodes, as far as they are not mapped."""
        failing, maps = self.bytes.failing, self.bytes.maps
        if not failing:
            return []
        places = list(self.segments.places.values())
        return [place.handle for place in places if place.data_address in failing and place.handle not in maps]

    def preferred(self, names: Sequence[str]) -> list[str]:
        """Where memory is asked for first: at these, and, while nodes are failing, anywhere else than on those."""
        if not self.bytes.failing:
            return list(names)
        away = {*self.unreachable_segments()}
        lending = [place for place in self.segments.places.values() if not place.kind]
        bad = {name for place in lending if place.handle in away for name in (place.name.node, str(place.name))}
        good = [str(place.name) for place in lending if place.handle not in away]
        # Not always the same one first, which the master would fill alone.
        turn = len(self.grants.held) % len(good) if good else 0
        return [*(name for name in names if name not in bad), *good[turn:], *good[:turn]]

    def mind_failing(self) -> None:
        """Have failing nodes probed. Not from a thread that works for an operation."""
        if (first := self.bytes.failing.next_probe()) is not None:
            self.keep(first.probe_at)

    def shown_at_once(self, key: str) -> bool | None:
        """Is it stored, by the table of keys? None: ask. While a node fails to answer the table, which knows no places,
        is not used (ADR 41)."""
        shown = self.shown
        return shown.has(key) if shown is not None and not self.bytes.failing.by_address else None

    def any_shown(self, keys: list[str]) -> bool:
        """Is one of these known to be there, without asking?"""
        there = self.shown.has_each(keys) if self.shown is not None else None
        return there is not None and any(there)

    def read_leased(self, key: str) -> bytes | None:
        """The bytes of a small object on this machine whose lease is live: no round trip. None: ask."""
        lease = self.leases.by_key.get(key)
        if lease is None:
            return None
        until, segment, start, stop, checksum, _, _ = lease
        memory = self.bytes.maps.get(segment)
        if memory is None or stop - start > SMALL_READ:
            return None
        try:
            data = memory[start:stop]
        except ValueError:
            # Unmapped by another thread that closes this client or has learnt that the node is gone.
            return None
        # The clock is read after the last byte: inside the lease all of them were right (I2).
        if self.clock() >= until:
            return None
        if checksum and self.verifies(segment, until) and (_digest(data) or 1) != checksum:
            return None
        # Another thread may have met a master with another history, whose segments have the same numbers.
        return data if self.leases.by_key.get(key) is lease else None


def ask(core: Core, message: Message, kind: type[T], deadline: float) -> Operation[T]:
    """Send until there is an answer, within the deadline."""
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
    """Also when the request that was answered may have arrived first: durations in the answer count from there.

    `written`: the ranges that a commit makes visible. Their nodes must live whenever it is sent.
    `unsure`: it was sent before, and may have been done. `history`: the only one that it may be sent under."""
    checked = _checked(core, message, written, history, deadline)
    pause, sent_at = FIRST_PAUSE, core.clock()
    last: TryAgain | ReplyLost | None = None
    while True:
        core.check_open()
        try:
            reply = yield checked
        except Unreachable as error:
            # Why it was not done before says more than that time is up now.
            if last is None or core.clock() < deadline:
                last = error
        except ReplyLost as error:
            last = error
            unsure = True
        except NodeAway as error:
            if unsure:  # It was sent before, and may have been stored while the node lived.
                raise ReplyLost(
                    f"an answer was lost, and the put may have been stored and lost again: {error}"
                ) from None
            raise
        except DeadlineExceeded:
            if isinstance(last, TryAgain) and not isinstance(message, _CHANGES):
                raise last from None
            raise
        else:
            if type(reply) is kind:
                return reply, sent_at
            last = _worth_another_try(reply, kind, unsure and isinstance(message, _CHANGES))
            if isinstance(last, (Stopping, NotLeader)):
                yield LeaveMaster(last.hint)
        if core.clock() + pause >= deadline:
            raise _final(message, last, unsure)
        yield Sleep(pause)
        pause = min(2 * pause, LONGEST_SETTLING_PAUSE if isinstance(last, Settling) else LONGEST_PAUSE)
        if not unsure:
            sent_at = core.clock()


def _checked(
    core: Core, message: Message, written: Sequence[Range], history: int, deadline: float
) -> Message | Checked:
    """The message, with what must hold whenever it is sent."""
    if written:
        return Checked(message, partial(core.check_nodes, written), deadline)
    return Checked(message, partial(core.check_history, history), deadline) if history else message


def _worth_another_try(reply: Message, kind: type[Message], unsure: bool) -> TryAgain:
    """The error that the master reported, if the same request may succeed soon; otherwise it is raised.

    `unsure`: the change may have been made when it was sent before. A refusal now, because its grant has ended since,
    says nothing about that; to begin anew could make it twice, the second time after its removal (I7)."""
    if isinstance(reply, Failed):
        error = raised(reply)
        if isinstance(error, (Stopping, NotLeader, Busy)):
            return error
        if unsure:
            raise ReplyLost(f"an answer was lost, and the change may have been made; asked again: {error}")
        raise error
    expect(reply, kind)
    raise AssertionError("a reply of the right kind is not a failure")


def _final(message: Message, last: TryAgain | ReplyLost, unsure: bool) -> Exception:
    if unsure and isinstance(message, _CHANGES):
        if isinstance(last, LogFull | LogFullInDoubt):
            return LogFullInDoubt(f"no answer before the deadline, and the change may have happened: {last}")
        return DeadlineExceeded(f"no answer before the deadline, and the change may have happened ({last})")
    if isinstance(last, TryAgain):
        return last
    return Unreachable(f"no master answered before the deadline; nothing was changed ({last})")

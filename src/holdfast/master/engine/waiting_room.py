"""Puts that found no room, and the memory that they wait for.

The life of a put here:
1. Parked: it was decided, and there was no room.
2. Decided again, oldest first and those of all clients in turn, whenever memory may have become free; each that still
   finds no room evicts some more.
3. Granted or refused by that decision, and its reply leaves as any other does (I1); or refused at its deadline.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial

from holdfast.core.objects.placement import why_no_room
from holdfast.core.objects.puts import least_wanted_bytes
from holdfast.core.primary.decision import Parked, Unfinished
from holdfast.core.primary.primary import Primary
from holdfast.core.state.applied import Freed
from holdfast.errors import GrantRefused, HoldfastError, TryAgain
from holdfast.ids import GrantId
from holdfast.instant import Instant
from holdfast.master.engine.durability import Durability
from holdfast.messages.of_sessions import KeepAlive
from holdfast.messages.requests import GrantRanges
from holdfast.messages.shapes import Message
from holdfast.wire.codec import failed

MAX_PARKED = 10_000
ROUNDS = 2
"""How often waiting puts are decided again in one step; the next tick continues."""
Answer = Callable[[Message], None]


@dataclass(slots=True)
class Waiting:
    """A request whose reply comes later: a put without room, or a keepalive."""

    request: GrantRanges | KeepAlive
    client: int
    connection: int
    deadline: Instant
    answer: Answer


Decide = Callable[[Waiting, Instant], tuple[Message | Parked | Unfinished, int]]
"""Decide a waiting put again; the reply, and the index that must be durable before it is sent."""


@dataclass(eq=False)
class WaitingRoom:
    _primary: Primary
    _durability: Durability
    _failures: Counter[str]
    _decide: Decide
    waiting: list[Waiting] = field(default_factory=list)
    """In the order in which they came; after a retry, those of all clients in turn."""
    freed: bool = False
    """There may be more room than when the waiting puts were last decided."""

    def note_freed(self) -> None:
        """There may be more room: have the waiting puts decided again."""
        self.freed = True

    def lend_when_durable(self, freed: Freed, index: int) -> None:
        """Lend these ranges again once the record of this index, or the last one before it, is durable (I9)."""
        if self._durability.log is None:
            self._lend(freed)
        else:
            number = self._primary.withhold(freed)
            self._durability.when_durable(index, partial(self._lend_withheld, number))

    def _lend_withheld(self, number: int) -> None:
        self._lend(self._primary.release(number))

    def _lend(self, freed: Freed) -> None:
        self._primary.reclaim(freed)
        self.freed = True

    def park(self, waiting: Waiting, now: Instant) -> None:
        """Keep a put until there is room for it or its deadline passes."""
        if len(self.waiting) >= MAX_PARKED:
            given_up = self._place_for(waiting)
            given_up.answer(failed(TryAgain("too many puts wait for room; nothing was stored. Try again later")))
            if given_up is waiting:
                return
            self._give_up([given_up])
        self.waiting.append(waiting)
        self.retry_if_freed(now)

    def withdraw(self, client: int, grants: Collection[GrantId]) -> None:
        """This client is done with these grants of its own. A put that waits for one of them would be granted memory
        that nobody wants, and ended by its client's next put whenever that is decided, again and again."""
        gone = [
            one
            for one in self.waiting
            if one.client == client and isinstance(one.request, GrantRanges) and one.request.grant in grants
        ]
        if not gone:
            return
        self.waiting = [one for one in self.waiting if one not in gone]
        for one in gone:
            one.answer(failed(GrantRefused("its client is done with this grant; nothing was stored")))
        self._give_up(gone)

    def _place_for(self, waiting: Waiting) -> Waiting:
        """The put that gives way where no more can wait: the newest of the client with the most, or this one if its
        client has as many. So one client cannot keep the others from waiting."""
        counts = Counter(one.client for one in self.waiting)
        client, most = counts.most_common(1)[0]
        if counts[waiting.client] + 1 >= most:
            return waiting
        place = max(at for at, one in enumerate(self.waiting) if one.client == client)
        return self.waiting.pop(place)

    def retry_if_freed(self, now: Instant) -> None:
        """Decide the waiting puts again, oldest first, if there may be more room than the last time."""
        for _ in range(ROUNDS):
            if not (self.freed and self.waiting):
                return
            self.freed = False
            waiting, self.waiting = self.waiting, []
            for one in _by_turns(waiting):
                if not self._is_answered(one, now):
                    self.waiting.append(one)

    def _is_answered(self, one: Waiting, now: Instant) -> bool:
        """Decide it again, and have its reply sent if there is one."""
        reply, after = self._decide(one, now)
        assert not isinstance(reply, Unfinished), "a grant is decided in one step"
        if isinstance(reply, Parked):
            return False
        self._durability.when_durable(after, partial(one.answer, reply))
        return True

    def serve(self, now: Instant) -> None:
        """Decide puts again at a tick."""
        if self.waiting and not self._primary.unlent_bytes:
            self._retry_oldest(now)
        self.retry_if_freed(now)

    def _retry_oldest(self, now: Instant) -> None:
        """Decide the oldest waiting put of each length again, which evicts objects whose leases have ended since: the
        end of a lease frees nothing and wakes no put. If one got its room, others may too."""
        if self.freed:
            return
        oldest: dict[int, Waiting] = {}
        for one in self.waiting:
            assert isinstance(one.request, GrantRanges), "keepalives are held elsewhere"
            oldest.setdefault(least_wanted_bytes(one.request), one)
        for one in oldest.values():
            if self._is_answered(one, now):
                self.waiting.remove(one)
                self.freed = True

    def refuse_late(self, now: Instant) -> None:
        """Refuse the puts whose deadline has passed."""
        late = [one for one in self.waiting if one.deadline <= now]
        if not late:
            return
        self.waiting = [one for one in self.waiting if one.deadline > now]
        for one in late:
            assert isinstance(one.request, GrantRanges), "keepalives are held elsewhere"
            error = why_no_room(self._primary, least_wanted_bytes(one.request), one.request.replicas, now)
            self._failures[error.code] += 1
            one.answer(failed(error))
        self._give_up(late)

    def connection_lost(self, connection: int) -> None:
        """Nobody waits any longer for the puts of this connection."""
        lost = [one for one in self.waiting if one.connection == connection]
        self.waiting = [one for one in self.waiting if one.connection != connection]
        self._give_up(lost)

    def _give_up(self, gone: list[Waiting]) -> None:
        """Lend the memory again that was being emptied for these puts, once its records are durable."""
        for one in gone:
            assert isinstance(one.request, GrantRanges), "keepalives are held elsewhere"
            if freed := self._primary.give_up(one.request.grant):
                self.lend_when_durable(freed, self._durability.index)

    def refuse_all(self, error: HoldfastError) -> None:
        """The term or the process ends."""
        waiting, self.waiting = self.waiting, []
        for one in waiting:
            one.answer(failed(error))


def _by_turns(waiting: list[Waiting]) -> list[Waiting]:
    """Puts of all clients in turn, the oldest of each first: who has many waiting comes no sooner than who has one."""
    if len(waiting) < 3:
        return waiting
    rounds: Counter[int] = Counter()
    placed = []
    for one in waiting:
        placed.append((rounds[one.client], one))
        rounds[one.client] += 1
    if len(rounds) == 1:
        return waiting
    placed.sort(key=lambda found: found[0])
    return [one for _, one in placed]

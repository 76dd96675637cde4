"""Requests to replies: decide, apply and log in one step, so that the order of states is the order of the log.

The engine is given `now` and does no I/O: the server hands it requests and deadlines, and sends what comes back.
A put that found no room is parked; it is decided again whenever something was freed, and refused at its deadline.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from holdfast.core.decide import decide
from holdfast.core.membership import connection_lost
from holdfast.core.placement import why_no_room
from holdfast.core.primary import Parked, Primary
from holdfast.core.puts import wanted_bytes
from holdfast.core.rules import Rules
from holdfast.core.state import State
from holdfast.core.upkeep import evict, upkeep
from holdfast.errors import HoldfastError, TryAgain
from holdfast.instant import Instant
from holdfast.messages.of_nodes import Beat, Leave, RegisterNode
from holdfast.messages.records import EpochStarted, LogStarted, ObjectsEvicted, SettingsChanged
from holdfast.messages.requests import GrantRanges
from holdfast.messages.shapes import Message, Record
from holdfast.wire.codec import failed

MAX_PARKED = 10_000
ROUNDS = 2
"""How often waiting puts are decided again in one step; a tick goes on from there."""
Answer = Callable[[Message], None]
_OF_NODES = frozenset({RegisterNode, Beat, Leave})
"""Whose caller is known by its connection."""


@dataclass(slots=True)
class Waiting:
    request: GrantRanges
    client: int
    connection: int
    deadline: Instant
    answer: Answer


class Engine:
    """One primary over an in-memory log: a record is durable as soon as it is applied."""

    def __init__(self, rules: Rules) -> None:
        self.primary = Primary(State(), rules)
        self.failures: Counter[str] = Counter()
        self.evicted = 0
        self._parked: list[Waiting] = []
        self._freed = False

    @property
    def state(self) -> State:
        return self.primary.state

    @property
    def parked(self) -> int:
        return len(self._parked)

    def start_log(self, log_id: int, cluster: str, secret: bytes, now: Instant) -> None:
        rules = self.primary.rules
        ttls = SettingsChanged(rules.lease_ttl_ms, rules.soft_pin_ttl_ms, rules.grant_timeout_ms)
        self._log([LogStarted(log_id, cluster, secret), EpochStarted(1), ttls], now)

    def handle(self, request: Message, client: int, connection: int, now: Instant) -> Message | Parked:
        """Decide the request. Parked: it is a grant that must wait for room, so hand it to `park`."""
        reply = self._decide(request, connection if type(request) in _OF_NODES else client, now)
        if self._freed and self._parked:
            self._retry_parked(now)
        return reply

    def park(self, waiting: Waiting, now: Instant) -> None:
        """Keep the request until there is room for it, or its deadline."""
        if len(self._parked) >= MAX_PARKED:
            waiting.answer(failed(TryAgain("too many puts wait for room; nothing was stored. Try again later")))
            return
        self._parked.append(waiting)
        if self._freed:
            self._retry_parked(now)

    def _decide(self, request: Message, caller: int, now: Instant) -> Message | Parked:
        try:
            reply, records = decide(self.primary, request, caller, now)
        except HoldfastError as error:
            self.failures[error.code] += 1
            return failed(error)
        if records:
            self._log(records, now)
        return reply

    def _log(self, records: list[Record], now: Instant) -> None:
        for record in records:
            freed = self.primary.absorb(record, now)
            if freed:
                self.primary.reclaim(freed)
                self._freed = True
            if isinstance(record, ObjectsEvicted):
                self.evicted += len(record.ids) // 8

    def _retry_parked(self, now: Instant) -> None:
        """Decide waiting puts again, oldest first; each that still finds no room evicts some more."""
        for _ in range(ROUNDS):
            self._freed = False
            waiting, self._parked = self._parked, []
            for one in waiting:
                reply = self._decide(one.request, one.client, now)
                if isinstance(reply, Parked):
                    self._parked.append(one)
                else:
                    one.answer(reply)
            if not (self._parked and self._freed):
                return

    def tick(self, now: Instant) -> bool:
        """What time brings. True: there is more to do, so tick again soon."""
        self._log(upkeep(self.primary, now), now)
        victims = evict(self.primary, now)
        self._log(victims, now)
        if self._parked and self._freed:
            self._retry_parked(now)
        self._refuse_late(now)
        return bool(victims) or (bool(self._parked) and self._freed)

    def _refuse_late(self, now: Instant) -> None:
        late = [one for one in self._parked if one.deadline <= now]
        if not late:
            return
        self._parked = [one for one in self._parked if one.deadline > now]
        for one in late:
            error = why_no_room(self.primary, wanted_bytes(one.request), one.request.replicas, now)
            self.failures[error.code] += 1
            one.answer(failed(error))

    def connection_lost(self, connection: int) -> None:
        """Nobody waits for its answers any more; a node behind it is silent from now on."""
        connection_lost(self.primary, connection)
        self._parked = [one for one in self._parked if one.connection != connection]

    def refuse_parked(self, error: HoldfastError) -> None:
        """The process stops: whoever waits is told so."""
        parked, self._parked = self._parked, []
        for one in parked:
            one.answer(failed(error))

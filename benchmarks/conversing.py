"""A cache that serves conversations under a clock of its own, with a standby that may take over at any moment."""

from __future__ import annotations

import struct
from functools import partial
from itertools import chain
from typing import NamedTuple

from holdfast.core.primary.decision import Parked
from holdfast.core.primary.primary import Primary
from holdfast.core.promotion import promote
from holdfast.core.rules import Rules
from holdfast.core.state.state import State
from holdfast.ids import GrantId
from holdfast.master.engine.engine import Engine
from holdfast.master.engine.waiting_room import Waiting
from holdfast.messages.of_nodes import RegisterNode
from holdfast.messages.of_sessions import OpenSession
from holdfast.messages.requests import CommitPuts, Exists, Failed, Granted, GrantRanges, Locate, Presence
from holdfast.messages.shapes import Message
from holdfast.replication.batches import Position
from holdfast.replication.log_writer import PendingLog
from holdfast.replication.renewals import RenewalReceiver, RenewalSender
from holdfast.replication.standby import Standby

BLOCK = 64 << 10
MEMORY_SHARE = 0.3
CLIENT, CONNECTION = 7, 1
MINUTE_MS = 60_000
MIB = 1 << 20
RULES = Rules(session_lease_ms=10**9, write_window_bytes=1 << 40)
"""Nobody keeps the node's session here, and puts that wait for room are not held against their client."""


class Turn(NamedTuple):
    at_ms: int
    blocks: tuple[int, ...]


class Cache:
    def __init__(self, turns: list[Turn]) -> None:
        distinct = len(set(chain.from_iterable(turn.blocks for turn in turns)))
        self.now = 0
        self._serial = 0
        self._open(Engine(Primary(State(), RULES), PendingLog(Position())), 1)
        self.standby: Standby | None = Standby()
        self.engine.start_log(1, "bench", bytes(32), 0)
        self.engine.start_epoch(1, 0)
        size = int(distinct * BLOCK * MEMORY_SHARE) // BLOCK * BLOCK
        self._ask(OpenSession(1, "n"))
        self._ask(RegisterNode(1, 1, 0, "h", "h:1", "", [size]))
        self._settle()

    def _open(self, engine: Engine, epoch: int) -> None:
        self.engine = engine
        self.sender = RenewalSender(engine.state, RULES, epoch, self.now, MIB)
        self.receiver = RenewalReceiver()

    def _ask(self, request: Message) -> Message | Parked:
        reply, _ = self.engine.handle(request, CLIENT, CONNECTION, self.now)
        if isinstance(reply, Failed):
            raise SystemExit(f"{type(request).__name__} was answered by {reply}")
        return reply

    def _settle(self) -> None:
        """The log is written, and the standby has it."""
        log = self.engine.log
        assert log is not None
        while (cut := log.cut(MIB)) is not None:
            batch, position = cut
            if self.standby is not None:
                self.standby.take(position.batch, batch, self.now)
            log.is_durable(position, batch)
            self.engine.after_durable(self.now)

    def pass_time(self, until: int) -> None:
        """A second at a time: what time brings, and the renewals."""
        while self.now < until:
            self.now = min(until, self.now + 1_000)
            while self.engine.tick(self.now):
                self._settle()
            self._settle()
            values = {name: value for name, value, _ in self.sender.take(self.now)}
            if self.standby is not None:
                self.receiver.take(self.standby.state, values, self.now)

    def serve(self, turn: Turn) -> int:
        """How many blocks of it were there."""
        keys = [f"block/{block}" for block in turn.blocks]
        reply = self._ask(Exists(keys))
        assert isinstance(reply, Presence)
        leading = reply.found.index(0) if 0 in reply.found else len(keys)
        if leading:
            self._ask(Locate(keys[:leading]))
        if leading < len(keys):
            self._put(keys[leading:])
        self._settle()
        return leading

    def _put(self, keys: list[str]) -> None:
        self._serial += 1
        grant = GrantId(CLIENT, self._serial)
        request = GrantRanges(grant, struct.pack(f"<{len(keys)}Q", *[BLOCK] * len(keys)), keys)
        reply = self._ask(request)
        commit = partial(self._commit, grant, keys)
        if isinstance(reply, Parked):
            self.engine.park(Waiting(request, CLIENT, CONNECTION, self.now + 30_000, commit), self.now)
        else:
            commit(reply)

    def _commit(self, grant: GrantId, keys: list[str], granted: Message) -> None:
        """A put that waited in vain, or whose keys another has put meanwhile, stores nothing."""
        if not isinstance(granted, Granted):
            return
        wanted = [key for key, taken in zip(keys, granted.taken, strict=True) if not taken]
        rows = [word for i in range(len(wanted)) for word in (i * BLOCK, BLOCK, 1)]
        if wanted:
            self._ask(CommitPuts(grant, wanted, struct.pack(f"<{len(rows)}Q", *rows), finished=[grant]))

    def fail_over(self) -> None:
        """The primary is gone without a word, and its last second of renewals with it; nobody follows the next one."""
        assert self.standby is not None
        primary = promote(self.standby.state, RULES, 5_000, proven=True, now=self.now)
        self._open(Engine(primary, PendingLog(self.standby.position)), 2)
        self.standby = None
        self.engine.start_epoch(2, self.now)


def hit_rates(cache: Cache, turns: list[Turn], fails_at: int | None, measured_from: int) -> float:
    """Of the minute that begins there."""
    hits = looked = 0
    for turn in turns:
        cache.pass_time(turn.at_ms)
        if fails_at is not None and turn.at_ms >= fails_at:
            fails_at = None
            cache.fail_over()
        found = cache.serve(turn)
        if measured_from <= turn.at_ms < measured_from + MINUTE_MS:
            hits += found
            looked += len(turn.blocks)
    return hits / max(1, looked)

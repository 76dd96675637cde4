"""The follower's side of a session: a loop that opens it, keeps it alive, and opens another when it is over.

It is a generator of effects, run by a thread or by asyncio (`operations`), and reads no clock but the
one it is given. Each round: check the session's standing; after a failure back off, longer each time, and find the
master again; send a keepalive, which the master holds, and which never waits past the lease (in jeopardy: past the
window). There is no other waiting: the master sets the pace. Commands are performed in the order of their numbers, each
once; replies of an epoch older than the highest seen are not obeyed (I3, I6).
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass

from holdfast.entropy import fresh_id
from holdfast.errors import HoldfastError, NameTaken, NotLeader, Refused, SessionExpired, TryAgain
from holdfast.instant import Instant, now_ms
from holdfast.messages.of_sessions import CloseSession, EpochDiffers, KeepAlive, KeptAlive, Opened, OpenSession
from holdfast.operations.effects import Call, LeaveMaster, Operation, Pause
from holdfast.session.lease import Lease, Standing
from holdfast.wire.codec import expect

OPEN_SECONDS = 5.0
GOODBYE_SECONDS = 1.0
FIRST_OPEN_PAUSE_SECONDS = 0.2
LONGEST_OPEN_PAUSE_SECONDS = 2.0
HURRY_MS = 100
MOST_HURRIED = 50
"""Retries at intervals of `HURRY_MS`: five seconds in all, in which another master should have taken over."""
MOST_REFUSALS = 64
"""The most refusals reported at once; further ones of the same reply are reported as handled."""


class Happening(enum.Enum):
    OPENED = "opened"
    JEOPARDY = "jeopardy"
    SAFE_AGAIN = "safe_again"
    EXPIRED = "expired"
    MASTER_CHANGED = "master_changed"
    COMMAND = "command"
    ANSWERED = "answered"


@dataclass(frozen=True, slots=True)
class Event:
    """Something that the follower's user may want to know. `text` gives the reason, or names the command."""

    kind: Happening
    session: int
    epoch: int
    text: str = ""
    body: bytes = b""


Perform = Callable[[str, bytes], None]
"""Performs a command soon, or passes it on to be performed; raises HoldfastError if it cannot be done."""


def no_preparation(follower: Follower) -> Operation[None]:
    """Send nothing to a master before the first keepalive."""
    yield from ()


class Follower:
    def __init__(
        self,
        name: str,
        perform: Perform,
        on_event: Callable[[Event], None] = lambda event: None,
        prepare: Callable[[Follower], Operation[None]] = no_preparation,
        clock: Callable[[], Instant] = now_ms,
        master_is_gone: Callable[[], bool] = lambda: False,
    ) -> None:
        self.name = name
        self.session = 0
        """Its number while there is one, otherwise 0."""
        self.history = 0
        self.continues: list[int] = []
        """The older histories that this one was restored from."""
        self.epoch = 0
        """The master's: the highest seen in this history."""
        self.lease: Lease | None = None
        self.heard: tuple[int, int] = (0, 0)
        """The last durable record that a master reported: (the master's epoch, index)."""
        self.stopping = False
        self.renewals = 0
        self._perform = perform
        self._on_event = on_event
        self._prepare = prepare
        self._clock = clock
        self._master_is_gone = master_is_gone
        """Is the former master's process known to have ended? Then the follower looks for the next one soon."""
        self._serial = 0
        self._handled = 0
        self._refused: list[tuple[int, str]] = []
        self._seen = Standing.SAFE
        self._failures = 0
        self._was_sent_away = False
        """A master replied that it is not the primary; reset when the next one has replied."""
        self._has_followed = False

    def standing(self) -> Standing:
        return self.lease.standing(self._clock()) if self.lease is not None else Standing.EXPIRED

    def _is_stopping(self) -> bool:
        return self.stopping

    def _tell(self, kind: Happening, text: str = "", body: bytes = b"") -> None:
        self._on_event(Event(kind, self.session, self.epoch, text, body))

    def live(self) -> Operation[None]:
        """Run until `stopping`. Raises errors that no retry can fix: the name is taken, the first opening refused."""
        while not self.stopping:
            yield from self._open()
            if not self.stopping:
                yield from self._keep()

    def farewell(self) -> Operation[None]:
        """Say goodbye, if there is a master. Run it concurrently with `live`, which it ends."""
        if self.session:
            deadline = self._clock() / 1000 + GOODBYE_SECONDS
            yield Call(CloseSession(self.session), deadline, dial=False)

    # Opening.

    def _open(self) -> Operation[None]:
        session, tries = fresh_id(), 0
        while not self.stopping:
            sent_at = self._clock()
            try:
                reply = yield Call(OpenSession(session, self.name), sent_at / 1000 + OPEN_SECONDS)
                self._begin(expect(reply, Opened), sent_at)
                return
            except NameTaken:
                raise
            except Refused:
                if not self._has_followed:
                    raise
                yield LeaveMaster()
            except HoldfastError as error:
                yield LeaveMaster(error.hint)
            pause = min(FIRST_OPEN_PAUSE_SECONDS * 2**tries, LONGEST_OPEN_PAUSE_SECONDS)
            tries = min(tries + 1, 10)
            yield Pause(pause, self._is_stopping)

    def _begin(self, opened: Opened, sent_at: Instant) -> None:
        if opened.history != self.history:
            self.history, self.epoch, self.heard = opened.history, 0, (0, 0)
        self.continues = opened.continues
        self._check_epoch(opened.epoch)
        self.session, self.epoch = opened.session, opened.epoch
        self.lease = Lease(sent_at, 0, opened.lease_ms, opened.jeopardy_ms)
        self._serial = self._handled = self._failures = 0
        self._refused = []
        self._seen = Standing.SAFE
        self._has_followed = True
        self._tell(Happening.OPENED)

    def _check_epoch(self, epoch: int) -> None:
        if epoch < self.epoch:
            raise TryAgain(f"the master is of epoch {epoch}, and {self.epoch} has begun; it is not obeyed")

    # Keeping.

    def _keep(self) -> Operation[None]:
        """Keep the session alive until it is over, or `stopping`."""
        assert self.lease is not None, "it was opened"
        retry_at = hurry_at = self._clock()
        while not self.stopping:
            now = self._clock()
            if self._look(now) is Standing.EXPIRED:
                self._end("no master answered in time")
                return
            if now < retry_at and not (now >= hurry_at and self._hurries()):
                look_at = hurry_at if now < hurry_at else now + HURRY_MS
                until = min(retry_at, self.lease.changes_at(now), look_at)
                yield Pause((until - now) / 1000, self._is_stopping)
                continue
            try:
                yield from self._prepare(self)
                yield from self._round()
                self._failures = 0
                self._was_sent_away = False
            except SessionExpired as error:
                self._end(str(error))
                return
            except HoldfastError as error:
                self._failures += 1
                self._was_sent_away = self._was_sent_away or isinstance(error, NotLeader)
                hurry_at = self._clock() + HURRY_MS
                retry_at = self._clock() + self._back_off_ms(self.lease.lease_ms)
                yield LeaveMaster(error.hint if isinstance(error, NotLeader) else "")

    def _look(self, now: Instant) -> Standing:
        assert self.lease is not None, "it was opened"
        standing = self.lease.standing(now)
        if standing is Standing.JEOPARDY and self._seen is Standing.SAFE:
            self._tell(Happening.JEOPARDY, f"no answer came within the lease of {self.lease.lease_ms} ms")
        elif standing is Standing.SAFE and self._seen is Standing.JEOPARDY:
            self._tell(Happening.SAFE_AGAIN)
        self._seen = standing
        return standing

    def _back_off_ms(self, lease_ms: int) -> int:
        """The back-off: an eighth of the lease, growing with each failure to a half of it: 1.5 s to 6 s of the usual
        12 s. Shorter at first, 0.1 s and doubling, after a master replied that it no longer leads: the next one serves
        within a fraction of a second, and may need reports from the nodes on its machine."""
        patient_ms = min(lease_ms // 8 * self._failures, lease_ms // 2)
        return min(HURRY_MS << min(self._failures - 1, 10), patient_ms) if self._was_sent_away else patient_ms

    def _hurries(self) -> bool:
        """Retry quickly? Only the few followers on the machine of a master that has ended: another master is taking
        over, and they know, where others only guess, and can testify to it."""
        return self._failures <= MOST_HURRIED and self._master_is_gone()

    def _round(self) -> Operation[None]:
        lease = self.lease
        assert lease is not None, "it was opened"
        sent_at = self._clock()
        self._serial += 1
        keepalive = KeepAlive(self.session, self._serial, self.epoch, self._handled, self._refused)
        # In jeopardy a master replies at once, so waiting for the whole window would only delay finding a better one.
        reply = yield Call(keepalive, min(lease.changes_at(sent_at), sent_at + lease.lease_ms) / 1000)
        if isinstance(reply, EpochDiffers | KeptAlive) and reply.epoch != self.epoch:
            self._check_epoch(reply.epoch)
            self.epoch, self._handled, self._refused = reply.epoch, 0, []
            self._tell(Happening.MASTER_CHANGED, f"epoch {reply.epoch} has begun")
            return
        answer = expect(reply, KeptAlive)
        self.lease = Lease(sent_at, answer.held_ms, answer.lease_ms, answer.jeopardy_ms)
        self.heard = (answer.epoch, answer.log_index)
        self.renewals += 1
        self._refused = []
        for command in answer.commands:
            # The others come again: an order that was refused must not count as done.
            if command.number > self._handled and len(self._refused) < MOST_REFUSALS:
                self._obey(command.name, command.body, command.number)
        self._tell(Happening.ANSWERED, body=answer.body)

    def _obey(self, name: str, body: bytes, number: int) -> None:
        try:
            self._perform(name, body)
        except HoldfastError as error:
            # Reported with the next keepalive, so that the sender of the command learns why.
            self._refused = [*self._refused, (number, f"{error.code}: {error}")]
        self._handled = number
        self._tell(Happening.COMMAND, name, body)

    def _end(self, why: str) -> None:
        if not self.stopping:  # Otherwise it is over because we said goodbye.
            self._tell(Happening.EXPIRED, why)
        self.session = 0
        self.lease = None

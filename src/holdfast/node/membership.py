"""How a node belongs to a cluster: it registers its memory with the master and says that it lives.

This is the simple form, a heartbeat over one connection, behind `start`, `stop` and `failure`. A master that cannot be
reached changes nothing: the node goes on serving and keeps trying. A master with another history does not know the
memory, nor what may be read from it: the node takes new memory under a new boot id (I14). Commands of an epoch
older than the highest seen are not obeyed (I3).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import structlog

from holdfast.coordination.whereabouts import Masters
from holdfast.entropy import fresh_id
from holdfast.errors import HoldfastError, MemoryVoid, NameTaken, Refused, TryAgain, UnknownNode
from holdfast.ids import GrantId
from holdfast.instant import now_seconds
from holdfast.messages.of_nodes import Beaten, Leave, Registered, RegisterNode
from holdfast.messages.requests import Hello
from holdfast.messages.shapes import Message
from holdfast.node.report import Report
from holdfast.transport.channel import Channel
from holdfast.wire.codec import expect

CONNECT_SECONDS = 5.0
CALL_SECONDS = 5.0
CLEAN_SECONDS = 5.0
LEAVE_SECONDS = 1.0
STOP_SECONDS = 5.0
FIRST_PAUSE_SECONDS = 0.2
LONGEST_PAUSE_SECONDS = 2.0
SHORTEST_GAP_SECONDS = 0.005
"""Between two beats, even when the master answers each with the same command."""

log = structlog.get_logger("holdfast.node")


class Lender(Protocol):
    """What membership needs of the node."""

    @property
    def boot(self) -> int: ...

    @property
    def sizes(self) -> list[int]: ...

    def renew_memory(self) -> None:
        """Drop the memory, if any, and have new memory under a new boot id. May take seconds."""

    def trust(self, secret: bytes) -> None:
        """Take writes whose grants are vouched for with this secret."""

    def clean(self, grants: list[GrantId], deadline: float) -> list[GrantId]: ...


@dataclass(frozen=True, slots=True)
class NodeCard:
    """Who the node is and where its bytes are reached."""

    name: str
    host: str
    data_address: str
    socket_path: str


class Membership:
    """One thread that registers and beats."""

    def __init__(
        self,
        card: NodeCard,
        masters: Masters,
        token: str,
        lender: Lender,
        report: Report,
        when_registered: Callable[[], None],
    ) -> None:
        self.failure: HoldfastError | None = None
        """Why the node cannot go on, once it cannot."""
        self._card = card
        self._masters = masters
        self._hello = Hello(fresh_id(), token, control=True)
        self._lender = lender
        self._report = report
        self._when_registered = when_registered
        self._mounted_under = 0
        self._offered_under = 0
        self._highest_epoch = 0
        self._tries = 0
        self._has_been_member = False
        self._said_lost = False
        self._stopping = threading.Event()
        self._channel: Channel | None = None
        self._thread = threading.Thread(target=self._run, name="membership", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Say goodbye, if there is anybody to say it to."""
        self._stopping.set()
        self._report.stop()
        if self._thread.ident is None:
            return
        self._thread.join(STOP_SECONDS)
        channel = self._channel
        if self._thread.is_alive() and channel is not None:
            channel.close()
            self._thread.join(STOP_SECONDS)

    def _run(self) -> None:
        try:
            self._lender.renew_memory()
            while not self._stopping.is_set():
                self._belong_once()
                self._stopping.wait(min(FIRST_PAUSE_SECONDS * 2**self._tries, LONGEST_PAUSE_SECONDS))
                self._tries = min(self._tries + 1, 10)
        except HoldfastError as error:
            log.error("the node cannot go on", reason=str(error), code=error.code)
            self.failure = error
        except Exception as error:
            # A thread that died unseen would leave a node that looks alive and belongs nowhere.
            self.failure = HoldfastError(f"the node cannot go on ({error!r}); its memory is given up")
            raise

    def _belong_once(self) -> None:
        """For as long as one connection lasts. Raises only what ends the node."""
        # Standbys and dead masters are passed over: the next try is for the next address, or the one they name.
        try:
            channel = Channel.open(self._masters.candidates()[0], self._hello, now_seconds() + CONNECT_SECONDS)
        except HoldfastError as error:
            self._masters.failed()
            self._masters.hinted(error.hint)
            self._lost(error)
            return
        self._channel = channel
        try:
            self._stay(channel)
        except HoldfastError as error:
            self._masters.hinted(error.hint)
            self._lost(error)
        finally:
            self._channel = None
            channel.close()

    def _stay(self, channel: Channel) -> None:
        # Offered is enough: the answer may have been lost, and clients of that history may hold the memory mapped.
        if self._offered_under not in (0, channel.welcome.log_id):
            self._renew_memory("the master has another history")
        while not self._stopping.is_set():
            try:
                beat_ms = self._register(channel)
                while not self._stopping.is_set():
                    self._beat(channel)
                    self._report.wait(beat_ms / 1000)
            except MemoryVoid as error:
                self._renew_memory(str(error))
                self._stopping.wait(SHORTEST_GAP_SECONDS)
            except UnknownNode as error:
                log.info("the master does not know this node, registering again", reason=str(error))
                self._stopping.wait(SHORTEST_GAP_SECONDS)
        self._call(channel, Leave(self._card.name, self._lender.boot), LEAVE_SECONDS)

    def _register(self, channel: Channel) -> int:
        card = self._card
        request = RegisterNode(
            card.name,
            self._lender.boot,
            self._mounted_under,
            card.host,
            card.data_address,
            card.socket_path,
            self._lender.sizes,
            self._report.writers_for_registration(),
        )
        self._offered_under = channel.welcome.log_id
        registered = expect(self._call(channel, request), Registered)
        if registered.log_id != self._mounted_under:
            self._mounted_under = self._offered_under = registered.log_id
            self._highest_epoch = 0
        self._highest_epoch = max(self._highest_epoch, registered.epoch)
        self._lender.trust(registered.secret)
        self._report.registered()
        log.info("registered", master=channel.address, epoch=registered.epoch, boot=f"{self._lender.boot:016x}")
        self._tries = 0
        self._said_lost = False
        if not self._has_been_member:
            self._has_been_member = True
            self._when_registered()
        return registered.beat_ms

    def _beat(self, channel: Channel) -> None:
        beat = self._report.beat(self._card.name, self._lender.boot)
        answer = expect(self._call(channel, beat), Beaten)
        if answer.epoch < self._highest_epoch:
            raise TryAgain(f"the master is of epoch {answer.epoch}, and {self._highest_epoch} has begun; not obeyed")
        self._highest_epoch = answer.epoch
        self._report.acknowledged(beat)
        if answer.clean:
            # Those that are not clean in time are not confirmed, and the master asks again.
            self._report.grants_cleaned(self._lender.clean(answer.clean, now_seconds() + CLEAN_SECONDS))
        self._stopping.wait(SHORTEST_GAP_SECONDS)

    def _renew_memory(self, reason: str) -> None:
        log.warning("the node's memory is void, taking new memory", reason=reason)
        self._mounted_under = self._offered_under = 0
        self._lender.renew_memory()

    def _lost(self, error: HoldfastError) -> None:
        """The master is not there or refuses: try again, unless that is no use."""
        if isinstance(error, NameTaken) or (isinstance(error, Refused) and not self._has_been_member):
            raise error
        if not self._said_lost and not self._stopping.is_set():
            self._said_lost = True
            log.warning("no master; serving on and trying again", reason=str(error))

    def _call(self, channel: Channel, message: Message, seconds: float = CALL_SECONDS) -> Message:
        return channel.call(message, now_seconds() + seconds)

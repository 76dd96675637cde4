"""The tasks that write and follow lease renewals, which pass from a primary to its standbys beside the log.

`replication.renewals` decides what is written, when, and how it is applied; this module does the I/O and the waiting.
A write that fails is ignored: its renewals go with the next one. A standby watches, and reads everything again from
time to time.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

import structlog

from holdfast.coordination.interface import Coordination
from holdfast.core.objects.standby_eviction import evict_alone
from holdfast.core.rules import Rules
from holdfast.core.state.state import State
from holdfast.errors import HoldfastError
from holdfast.instant import now_ms
from holdfast.replication.renewals import KEPT_MS, PREFIX, READ_ALL_MS, RenewalReceiver, RenewalSender
from holdfast.replication.standby import Standby

log = structlog.get_logger("holdfast.renewals")
EVICT_EVERY_S = 0.5
CurrentStandby = Callable[[], Standby]
"""Gives the standby, which is another one after a new start from a snapshot."""


class RenewalWriter:
    def __init__(self, sender: RenewalSender, coordination: Coordination) -> None:
        self.sender = sender
        self._coordination = coordination
        self._wake = asyncio.Event()
        self._failing = False

    def urge(self) -> None:
        """Write soon: a lease that was about to end was renewed."""
        if self.sender.urge(now_ms()):
            self._wake.set()

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            left_ms = self.sender.due_at() - now_ms()
            if left_ms <= 0:
                await self._write()
                continue
            self._wake.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left_ms / 1000):  # `wait_for` may lose a cancellation.
                    await self._wake.wait()

    async def _write(self) -> None:
        for name, value, part in self.sender.take(now_ms()):
            began = now_ms()
            try:
                await self._coordination.publish(name, value, KEPT_MS)
            except HoldfastError as error:
                self.sender.lost(part)
                if not self._failing:
                    log.warning("renewals could not be written; they go with the next ones", why=str(error))
                self._failing = True
            else:
                self._failing = False
                self.sender.wrote(value, part, now_ms() - began)


class RenewalFollower:
    """Applies the primary's renewals to the standby's columns."""

    def __init__(self, coordination: Coordination, standby: CurrentStandby) -> None:
        self.receiver = RenewalReceiver()
        self._coordination = coordination
        self._standby = standby
        self._told: State | None = None
        """The state that renewals were last applied to. Not the standby: a restored history gives it another state."""

    async def run(self) -> None:
        """Run until cancelled."""
        async with asyncio.TaskGroup() as both:
            both.create_task(self._read_all())
            both.create_task(self._watch())

    async def _watch(self) -> None:
        async with contextlib.aclosing(self._coordination.watch(PREFIX)) as news:
            async for values in news:
                self._take(values)

    async def _read_all(self) -> None:
        """Read all renewals: a safety net under the watch, and the start for a standby that started over."""
        since_ms = 0
        read: State | None = None
        while True:
            await asyncio.sleep(1.0)
            since_ms += 1_000
            # The watch may have given it some already, but not all.
            state = self._standby().state
            if since_ms < READ_ALL_MS and read is state:
                continue
            since_ms = 0
            try:
                self._take(await self._coordination.list(PREFIX))
                read = state
            except HoldfastError as error:
                log.debug("renewals could not be read; they are again soon", why=str(error))

    def _take(self, values: dict[str, bytes]) -> None:
        state = self._standby().state
        if state is not self._told:
            self._told = state
            self.receiver.forget()
        for fault in self.receiver.take(state, values, now_ms()):
            log.warning("renewals were passed over", why=str(fault))


async def keep_evicting_alone(standby: CurrentStandby, rules: Rules) -> None:
    """Run a standby's own evictions until cancelled, in steps between which the log gets its turn."""
    while True:
        gone = evict_alone(standby().state, rules, now_ms())
        await asyncio.sleep(0 if gone else EVICT_EVERY_S)

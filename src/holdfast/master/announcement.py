"""A master's announcement in coordination: its address, for the other masters and for status requests, and the log
version that it reads, so that no primary writes what another master could not read (ADR 64)."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter

import msgspec

from holdfast import __version__
from holdfast.coordination.interface import Coordination
from holdfast.errors import HoldfastError
from holdfast.instant import Instant, now_ms
from holdfast.messages.log_versions import LOG_VERSION, OLDEST_LOG_VERSION
from holdfast.outage import Outage

MASTERS = "masters/"
VERSIONS = "versions/"
ANNOUNCED_MS = 15_000
AWAY_MS = 600_000
"""How long a master that is away still counts: longer than its machine takes to start again."""


class AnnouncedVersion(msgspec.Struct):
    """The value under `versions/NAME`. Masters of release 0.2.0 write none."""

    log: int
    release: str


class LogVersions:
    """The log versions that masters read, as each has said.

    A master counts from when it was first seen until it has been away for `AWAY_MS`. One that is started later and does
    not read what was written meanwhile stops there (I13), and says that it is to be upgraded.
    """

    def __init__(self, name: str, own: int = LOG_VERSION) -> None:
        self._name = name
        self._own = own
        self._read: dict[str, int] = {}
        self._seen_at: dict[str, Instant] = {}

    def observe(self, masters: set[str], announced: dict[str, int], now: Instant) -> None:
        """These masters are announced now, these of them with a version."""
        for name in masters | {self._name}:
            self._seen_at[name] = now
            self._read[name] = self._own if name == self._name else announced.get(name, OLDEST_LOG_VERSION)
        for name in [name for name, seen_at in self._seen_at.items() if now - seen_at > AWAY_MS]:
            del self._seen_at[name], self._read[name]

    @property
    def common(self) -> int:
        """The newest version that all of them read; 0 before the first look."""
        return min(self._read.values(), default=0)

    @property
    def held_back_by(self) -> list[str]:
        """The masters for whose sake this one may not write all that it could, each with the version that it reads."""
        return [f"{name} (reads {read})" for name, read in sorted(self._read.items()) if read < self._own]


class Announcement:
    """Renewed every few seconds, in either role; so its failure also shows that coordination does not answer."""

    def __init__(self, name: str, address: str, errors: Counter[str]) -> None:
        """`errors`: where failures are counted."""
        self._name = name
        self._address = address
        self._errors = errors
        self.known: list[str] = [address]
        """Addresses of the running masters, as far as known."""
        self.versions = LogVersions(name)
        self.outage = Outage(logging.getLogger("holdfast.master"), "coordination does not answer")

    async def renew(self, coordination: Coordination) -> None:
        """Renew it until cancelled."""
        while True:
            try:
                await self._renew(coordination)
            except HoldfastError as error:
                self._errors["announce"] += 1
                self.outage.seen(error)
            else:
                self.outage.over()
            await asyncio.sleep(ANNOUNCED_MS / 5000)

    async def _renew(self, coordination: Coordination) -> None:
        # The version first, and for longer: a master with an address alone counts as one of the oldest version.
        own = msgspec.json.encode(AnnouncedVersion(LOG_VERSION, __version__))
        await coordination.publish(VERSIONS + self._name, own, 2 * ANNOUNCED_MS)
        await coordination.publish(MASTERS + self._name, self._address.encode(), ANNOUNCED_MS)
        masters = await coordination.list(MASTERS)
        versions = await coordination.list(VERSIONS)
        self.known = sorted(address.decode(errors="replace") for address in masters.values())
        read = {name.removeprefix(VERSIONS): _log_version(value) for name, value in versions.items()}
        self.versions.observe({name.removeprefix(MASTERS) for name in masters}, read, now_ms())


def _log_version(value: bytes) -> int:
    """The oldest one for what is no announcement."""
    try:
        return msgspec.json.decode(value, type=AnnouncedVersion).log
    except (msgspec.DecodeError, UnicodeDecodeError):
        return OLDEST_LOG_VERSION

"""A master's announcement in coordination: its address, for the other masters and for status requests, and the log
version that it reads, so that no primary writes what another master could not read (ADR 64)."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter

import msgspec

from holdfast import __version__
from holdfast.coordination.interface import Coordination
from holdfast.instant import Instant, now_ms
from holdfast.messages.log_versions import LOG_VERSION, OLDEST_LOG_VERSION
from holdfast.outage import Outage

MASTERS = "masters/"
VERSIONS = "versions/"
ANNOUNCED_MS = 15_000
RENEWED_MS = ANNOUNCED_MS // 5
AWAY_MS = 600_000
"""How long a master that is away still counts: longer than its machine takes to start again."""
UNKNOWN = 0


class AnnouncedVersion(msgspec.Struct):
    """The value under `versions/NAME`. Masters of release 0.2.0 write none."""

    log: int
    release: str


class LogVersions:
    """The log versions that masters read, as each has said.

    A master counts from when it was first seen until it has been away for `AWAY_MS`. One that is started later and does
    not read what was written meanwhile stops there (I13), and says that it is to be upgraded.

    An address alone is that of a master of 0.2.0, or of one whose version was lost: with the store, between its two
    announcements. It is the former once the address has been renewed, because a version is announced before it. Until
    then what was known of that master stays, or nothing is known.
    """

    def __init__(self, name: str, own: int = LOG_VERSION) -> None:
        self._name = name
        self._own = own
        self._read: dict[str, int] = {}
        self._seen_at: dict[str, Instant] = {}
        self._alone_since: dict[str, Instant] = {}
        """Masters whose address is announced without a version."""

    def observe(self, masters: set[str], announced: dict[str, int], now: Instant) -> None:
        """These masters are announced now, these of them with a version."""
        for name in masters | {self._name}:
            self._seen_at[name] = now
            if name == self._name or name in announced:
                self._alone_since.pop(name, None)
                self._read[name] = self._own if name == self._name else announced[name]
            elif now - self._alone_since.setdefault(name, now) > ANNOUNCED_MS:
                self._read[name] = OLDEST_LOG_VERSION
            else:
                self._read.setdefault(name, UNKNOWN)
        for name, seen_at in list(self._seen_at.items()):
            if now - seen_at > AWAY_MS or (seen_at != now and self._read[name] == UNKNOWN):
                del self._seen_at[name], self._read[name]
                self._alone_since.pop(name, None)

    @property
    def common(self) -> int:
        """The newest version that all of them read; 0 while that is not known, as before the first look."""
        return min(self._read.values(), default=UNKNOWN)

    @property
    def held_back_by(self) -> list[str]:
        """The masters for whose sake this one may not write all that it could, each with the version that it reads."""
        return [
            f"{name} (reads {read})" if read != UNKNOWN else f"{name} (which has not said yet what it reads)"
            for name, read in sorted(self._read.items())
            if read < self._own
        ]


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
            with self.outage.one_try(self._errors, "announce"):
                await self._renew(coordination)
            await asyncio.sleep(RENEWED_MS / 1000)

    async def _renew(self, coordination: Coordination) -> None:
        # The version first, and for longer: an address alone will be taken for a master of the oldest version.
        own = msgspec.json.encode(AnnouncedVersion(LOG_VERSION, __version__))
        await coordination.publish(VERSIONS + self._name, own, ANNOUNCED_MS + RENEWED_MS)
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

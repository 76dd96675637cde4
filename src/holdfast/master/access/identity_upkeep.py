"""Keeps the identities of a master as the file says, and closes connections whose identity ends.

The file is looked at twice a second. A new content is read in a thread, because a large file takes a tenth of a second.
One that is wrong changes nothing: it is logged once, and status and metrics name the fault until it is mended.
"""

from __future__ import annotations

import asyncio
from collections import Counter

import structlog

from holdfast.errors import BadValue
from holdfast.identity.identities_file import IdentitiesFile
from holdfast.instant import calendar_seconds
from holdfast.master.server import RpcServer

LOOK_SECONDS = 0.5
log = structlog.get_logger("holdfast.master")


class IdentityUpkeep:
    def __init__(self, file: IdentitiesFile, server: RpcServer) -> None:
        self._file = file
        self._server = server
        self._next_end = file.identities.next_end(calendar_seconds())

    async def run(self) -> None:
        while True:
            await self.look(calendar_seconds())
            await asyncio.sleep(LOOK_SECONDS)

    async def look(self, now: float) -> None:
        """Take over a new content of the file, and part from whom it no longer lists or whose time is over."""
        changed = self._file.is_changed() and await self._read_again()
        if changed or now >= self._next_end:
            self._next_end = self._file.identities.next_end(now)
            gone = Counter(self._server.part_from_withdrawn(now))
            if gone:
                log.warning("closed connections of identities that ended or were changed", connections=dict(gone))

    async def _read_again(self) -> bool:
        try:
            await asyncio.to_thread(self._file.read_again)
        except BadValue as error:
            log.error("the new file of identities cannot be used; the former identities stay in force", why=str(error))
            return False
        names = {entry.identity.name for entry in self._file.identities.entries}
        log.info("the identities were read again", path=str(self._file.path), identities=len(names))
        return True

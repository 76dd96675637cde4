"""A master's announcement in coordination: where it is, for the other masters and for whoever asks for the status."""

from __future__ import annotations

import asyncio
import logging

from holdfast.coordination.interface import Coordination
from holdfast.errors import HoldfastError
from holdfast.outage import Outage

MASTERS = "masters/"
ANNOUNCED_MS = 15_000


class Announcement:
    """Renewed every few seconds, in either role; so it is also what notices that coordination does not answer."""

    def __init__(self, name: str, address: str) -> None:
        self._name = MASTERS + name
        self._address = address
        self.known: list[str] = [address]
        """Addresses of the masters that run, as far as is known."""
        self.outage = Outage(logging.getLogger("holdfast.master"), "coordination does not answer")

    async def renew(self, coordination: Coordination) -> None:
        """Until it is cancelled."""
        while True:
            try:
                await coordination.publish(self._name, self._address.encode(), ANNOUNCED_MS)
                self.known = sorted(address.decode() for address in (await coordination.list(MASTERS)).values())
            except HoldfastError as error:
                self.outage.seen(error)
            else:
                self.outage.over()
            await asyncio.sleep(ANNOUNCED_MS / 5000)

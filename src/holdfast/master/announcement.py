"""A master's announcement in coordination: its address, for the other masters and for status requests."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter

from holdfast.coordination.interface import Coordination
from holdfast.errors import HoldfastError
from holdfast.outage import Outage

MASTERS = "masters/"
ANNOUNCED_MS = 15_000


class Announcement:
    """Renewed every few seconds, in either role; so its failure also shows that coordination does not answer."""

    def __init__(self, name: str, address: str, errors: Counter[str]) -> None:
        """`errors`: where failures are counted."""
        self._name = MASTERS + name
        self._address = address
        self._errors = errors
        self.known: list[str] = [address]
        """Addresses of the running masters, as far as known."""
        self.outage = Outage(logging.getLogger("holdfast.master"), "coordination does not answer")

    async def renew(self, coordination: Coordination) -> None:
        """Renew it until cancelled."""
        while True:
            try:
                await coordination.publish(self._name, self._address.encode(), ANNOUNCED_MS)
                self.known = sorted(
                    address.decode(errors="replace") for address in (await coordination.list(MASTERS)).values()
                )
            except HoldfastError as error:
                self._errors["announce"] += 1
                self.outage.seen(error)
            else:
                self.outage.over()
            await asyncio.sleep(ANNOUNCED_MS / 5000)

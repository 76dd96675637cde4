"""How every master of the cluster stands, as each says of itself in coordination.

The dashboard of any master shows all of them. A master that has ended is gone from here after `STANDING_MS`. Nothing is
decided by it: elections look at the log and at the term.
"""

from __future__ import annotations

import asyncio
import logging

import msgspec

from holdfast.addresses import join_address, split_address
from holdfast.coordination.interface import Coordination
from holdfast.master.roles.master import Master
from holdfast.outage import Outage

STANDINGS = "standings/"
STANDING_MS = 10_000
RENEWED_SECONDS = 3.0
MOST_BYTES = 4_096
"""Of one entry: a longer one is none of ours."""
ANY_HOST = frozenset({"0.0.0.0", "::", ""})


class MasterStanding(msgspec.Struct):
    name: str
    address: str
    url: str
    """Of its dashboard."""
    role: str
    epoch: int
    index: int
    """Records that it has applied."""
    promotable: bool
    reason: str
    """Why it could take over, or why it could not."""
    lag_batches: int = 0
    """Batches of the log, as far as it knows, that it has not applied."""


def url_of(http: str, address: str, encrypted: bool) -> str:
    """The URL of a dashboard that listens at `http`, of a master that others reach at `address`."""
    host, port = split_address(http)
    reached = split_address(address)[0] if host in ANY_HOST else host
    return f"{'https' if encrypted else 'http'}://{join_address(reached, port)}/"


class Standings:
    """Publishes this master's standing, and knows the others'."""

    def __init__(self, master: Master) -> None:
        self._master = master
        self._url = ""
        self._others: list[MasterStanding] = []
        self._outage = Outage(logging.getLogger("holdfast.master"), "the masters' standings are not known")

    def own(self) -> MasterStanding:
        master = self._master
        state = (master.server.engine or master.standby).state
        promotable, reason = master.promotable()
        return MasterStanding(
            name=master.server.name,
            address=master.plan.address,
            url=self._url,
            role=master.role,
            epoch=state.epoch,
            index=state.index,
            promotable=promotable,
            reason=reason,
            lag_batches=master.lag_batches,
        )

    def all(self) -> list[MasterStanding]:
        """This one's as it is now, the others' as they were a few seconds ago; by name."""
        own = self.own()
        found = sorted([own, *[one for one in self._others if one.name != own.name]], key=lambda one: one.name)
        latest = max(one.epoch for one in found)
        return [one if one.role != "primary" or one.epoch == latest else _deposed(one) for one in found]

    async def run(self, url: str) -> None:
        """Keep them until cancelled. `url`: of this master's dashboard."""
        self._url = url
        coordination = self._master.coordination
        while coordination is not None:
            with self._outage.one_try(self._master.figures.coordination_errors, "standings"):
                await self._renew(coordination)
            await asyncio.sleep(RENEWED_SECONDS)
        await asyncio.Event().wait()  # It is alone.

    async def _renew(self, coordination: Coordination) -> None:
        own = self.own()
        await coordination.publish(STANDINGS + own.name, msgspec.json.encode(own), STANDING_MS)
        found = (await coordination.list(STANDINGS)).values()
        self._others = [standing for content in found if (standing := _decoded(content)) is not None]


def _deposed(standing: MasterStanding) -> MasterStanding:
    """Of a master that led in an earlier epoch, and has said nothing since."""
    return msgspec.structs.replace(standing, role="was primary", reason="it has said nothing since a later epoch began")


def _decoded(content: bytes) -> MasterStanding | None:
    """None for what is no standing: a master of another version may write other ones."""
    if len(content) > MOST_BYTES:
        return None
    try:
        return msgspec.json.decode(content, type=MasterStanding)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None

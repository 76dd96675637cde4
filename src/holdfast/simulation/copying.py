"""Copies between simulated nodes: the production order of a copy, its bytes read in one step if the network lets it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from holdfast.coordination.whereabouts import Masters
from holdfast.effects import Call, Operation, Pause, Sleep
from holdfast.entropy import fresh_id
from holdfast.errors import HoldfastError, Refused, Unreachable
from holdfast.ids import GrantId, SegmentName
from holdfast.instant import now_seconds
from holdfast.messages import commands as c
from holdfast.messages.requests import Failed, Hello
from holdfast.messages.shapes import Message
from holdfast.node.copying import Copier
from holdfast.node.lent_memory import Lending
from holdfast.node.pace import Pace
from holdfast.node.performing import Commands
from holdfast.node.refused_grants import RefusedGrants
from holdfast.session.task_line import TaskLine
from holdfast.simulation.process import ProcessLoop
from holdfast.wire.codec import raised

SAY_SECONDS = 20.0
AGAIN_SECONDS = 0.2


class Served(Protocol):
    def read(self, segment: SegmentName, offset: int, target: memoryview) -> None: ...


class Peer(Protocol):
    """Another node, as far as its bytes can be reached."""

    name: str
    process: ProcessLoop | None

    @property
    def alive(self) -> Served | None: ...


class SimulatedCopies:
    """The orders that a node has to copy, one after the other."""

    def __init__(
        self, node: str, lending: Lending, peers: Mapping[str, Peer], process: ProcessLoop, commands: Commands
    ) -> None:
        self.refused = RefusedGrants()
        self._lending = lending
        self._peers = peers
        self._process = process
        self._orders: asyncio.Queue[c.CopyObjects] = asyncio.Queue(1_024)
        self._copier = Copier(node, self, self, None, Pace(), now_seconds)
        for name in (c.RECOVER, c.MIGRATE, c.OFFLOAD, c.BRING_BACK):
            commands.on(name, lambda body: self._orders.put_nowait(c.decode_body(c.CopyObjects, body)))

    async def run(self, masters: str) -> None:
        line = TaskLine(Masters(masters), Hello(fresh_id()))
        try:
            while True:
                await line.run(_as_calls(self._copier.carry_out(await self._orders.get())))
        finally:
            line.close()

    def lends(self, name: SegmentName) -> bool:
        return self._lending.lends(name)

    def range_of(self, name: SegmentName, offset: int, length: int) -> memoryview:
        return self._lending.range_of(name, offset, length)

    def fetch(self, address: str, ranges: Sequence[tuple[SegmentName, int, memoryview]]) -> None:
        peer = self._peers[address.partition(":")[0]]
        network, me = self._process.network, self._process.name
        served = peer.alive
        paused = peer.process is not None and peer.process.paused
        if served is None or paused or network.is_cut(me, peer.name) or network.is_cut(peer.name, me):
            raise Unreachable(f"{peer.name} does not answer")
        for segment, offset, target in ranges:
            served.read(segment, offset, target)

    def check_file(self, address: str, name: SegmentName, offset: int) -> None:
        """No node of these worlds has a disk."""

    def begin_copy(self, grant: GrantId) -> None:
        self.refused.check(grant)

    def end_copy(self, grant: GrantId) -> None:
        """A piece is copied in one step, so that `clean` never finds one half done."""

    def is_refused(self, grant: GrantId) -> bool:
        return grant in self.refused


def _as_calls(order: Operation[int]) -> Operation[int]:
    """As a line wants it: what is said is said again until it is answered, as production's errands do."""
    result: Any = None
    error: HoldfastError | None = None
    try:
        while True:
            effect = order.send(result) if error is None else order.throw(error)
            result, error = None, None
            try:
                if isinstance(effect, Message):
                    result = yield from _said(effect)
                elif isinstance(effect, Sleep):
                    yield Pause(effect.seconds, lambda: False)
                else:
                    result = yield effect
            except HoldfastError as thrown:
                error = thrown
    except StopIteration as stop:
        return int(stop.value)
    except HoldfastError:
        return 0  # Nobody heard of it: the grant ends by its time.


def _said(message: Message) -> Operation[Message]:
    deadline = now_seconds() + SAY_SECONDS
    while True:
        try:
            reply = yield Call(message, deadline)
            if not isinstance(reply, Failed):
                return reply  # type: ignore[no-any-return]
            raise raised(reply)
        except Refused:
            raise
        except HoldfastError:
            if now_seconds() + AGAIN_SECONDS >= deadline:
                raise
        yield Pause(AGAIN_SECONDS, lambda: False)

"""A simulated node: production memory, report and refusals; attaching and TCP are calls at the moment of arrival.

Its memory is real shared memory, mapped by the clients of the same machine as in production, so that a late write
changes the bytes that somebody else reads. A write over TCP is checked and done in one step, when its last byte
arrives; `clean` confirms at once, since no write is ever half done.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from holdfast.entropy import fresh_id
from holdfast.errors import HoldfastError, MemoryVoid, UnknownNode, Unreachable
from holdfast.ids import GrantId, SegmentName
from holdfast.instant import now_seconds
from holdfast.messages.of_nodes import Beaten, Registered, RegisterNode, WriteRange
from holdfast.messages.requests import Hello
from holdfast.node.lent_memory import Lending, LentMemory
from holdfast.node.refused_grants import RefusedGrants, check_write
from holdfast.node.report import Report
from holdfast.simulation.process import ProcessLoop
from holdfast.transport.async_channel import AsyncChannel
from holdfast.wire.codec import expect


@dataclass(slots=True)
class NodeMachine:
    """One node through all its lives."""

    name: str
    masters: list[str]
    size_bytes: int
    process: ProcessLoop | None = None
    life: NodeLife | None = None

    def start(self, process: ProcessLoop) -> None:
        self.process = process
        self.life = NodeLife(self)
        process.spawn(self.life.run)

    @property
    def alive(self) -> NodeLife | None:
        return self.life if self.process is not None and not self.process.dead else None

    def end(self) -> None:
        """The world is over: give the memory back."""
        if self.life is not None:
            self.life.lending.withdraw()


@dataclass(slots=True)
class NodeLife:
    machine: NodeMachine
    lending: Lending = field(default_factory=Lending)
    report: Report = field(default_factory=Report)
    refused: RefusedGrants = field(default_factory=RefusedGrants)
    secret: bytes = b""
    memory: LentMemory | None = None
    mounted_under: int = 0
    highest_epoch: int = 0

    def renew_memory(self) -> None:
        self.lending.withdraw()
        self.report.memory_voided()
        self.refused = RefusedGrants()
        self.memory = LentMemory.create(self.machine.name, self.machine.size_bytes, 1)
        self.lending.lend(self.memory)

    def write(self, request: WriteRange, source: memoryview) -> None:
        target = self.lending.range_of(request.segment, request.range_offset + request.offset, request.length)
        check_write(self.secret, request)
        self.refused.check(request.grant)
        target[:] = source
        target.release()

    def read(self, segment: SegmentName, offset: int, target: memoryview) -> None:
        source = self.lending.range_of(segment, offset, target.nbytes)
        target[:] = source
        source.release()

    def clean(self, grants: list[GrantId]) -> list[GrantId]:
        for grant in grants:
            self.refused.add(grant)
        return grants

    async def run(self) -> None:
        self.renew_memory()
        hello = Hello(fresh_id(), "", control=True)
        turn = 0
        while True:
            address = self.machine.masters[turn % len(self.machine.masters)]
            try:
                channel = await AsyncChannel.open(address, hello, now_seconds() + 1)
            except HoldfastError:
                turn += 1
                await asyncio.sleep(0.2)
                continue
            try:
                await self._stay(channel)
            except HoldfastError:
                turn += 1
            finally:
                channel.close()
            await asyncio.sleep(0.2)

    async def _stay(self, channel: AsyncChannel) -> None:
        if self.mounted_under not in (0, channel.welcome.log_id):
            self.renew_memory()
            self.mounted_under = 0
        while True:
            try:
                await self._register(channel)
                while True:
                    await self._beat(channel)
                    await asyncio.sleep(0.2)
            except MemoryVoid:
                self.mounted_under = 0
                self.renew_memory()
            except UnknownNode:
                pass
            await asyncio.sleep(0.05)

    async def _register(self, channel: AsyncChannel) -> None:
        assert self.memory is not None
        name = self.machine.name
        request = RegisterNode(
            name,
            self.memory.boot,
            self.mounted_under,
            name,
            f"{name}:7071",
            f"/{name}",
            self.memory.sizes,
            self.report.writers_for_registration(),
        )
        registered = expect(await channel.call(request, now_seconds() + 2), Registered)
        self.mounted_under = registered.log_id
        self.secret = registered.secret
        self.report.registered()

    async def _beat(self, channel: AsyncChannel) -> None:
        assert self.memory is not None
        beat = self.report.beat(self.machine.name, self.memory.boot)
        answer = expect(await channel.call(beat, now_seconds() + 2), Beaten)
        if answer.epoch < self.highest_epoch:
            raise Unreachable("an older epoch")
        self.highest_epoch = answer.epoch
        self.report.acknowledged(beat)
        if answer.clean:
            self.report.grants_cleaned(self.clean(answer.clean))

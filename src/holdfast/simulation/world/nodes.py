"""A simulated node: production life, memory, report and refusals; attaching and TCP are calls at the moment of arrival.

Its memory is real shared memory, mapped by the clients of the same machine as in production, so that a late write
changes the bytes that another client reads. A write over TCP is checked and done in one step, when its last byte
arrives; `clean` confirms at once, since no write is ever half done. If a node is refused its name, because the master
has not noticed the death of its predecessor, it ends and is restarted, as by a supervisor.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from holdfast.errors import NameTaken
from holdfast.ids import GrantId, SegmentName
from holdfast.instant import Instant
from holdfast.messages.commands import Clear, TicketTerms
from holdfast.messages.hello import fresh_hello
from holdfast.messages.of_nodes import AttachSegment, ReadBack, ReadRanges, WriteRange
from holdfast.messages.rows import TicketRow
from holdfast.messages.shapes import Ticket
from holdfast.node.commands.handlers import Commands
from holdfast.node.memory.lent_memory import Lending, LentMemory, wipe
from holdfast.node.memory.proofs import RefusedGrants, TicketBook
from holdfast.node.memory.verification import mismatched
from holdfast.node.session.life import NodeCard, NodeLife
from holdfast.node.session.report import Report
from holdfast.operations.link import LinkOptions, PlainCaller
from holdfast.operations.masters import Masters
from holdfast.operations.tasks import TaskRunner
from holdfast.session.followers import CLOSED_TEXT, CONNECT_SECONDS
from holdfast.simulation.kernel.process import ProcessLoop
from holdfast.simulation.world.copies import SimulatedCopies
from holdfast.simulation.world.node_disks import SimulatedDisk
from holdfast.transport.data_tcp import WantedRange

MARK = "mark"
"""A command that is only counted."""
STARTED_AGAIN_SECONDS = 0.5
REFUSED_KEPT = 3
"""Refused grants kept one by one: few, so that a run has more of them and folds them into one number per client."""


@dataclass(slots=True)
class NodeMachine:
    """One node through all its lives."""

    name: str
    masters: str
    size_bytes: int
    process: ProcessLoop | None = None
    served: ServedNode | None = None
    marks: Counter[bytes] = field(default_factory=Counter)
    """How often each mark was taken."""
    peers: Mapping[str, NodeMachine] = field(default_factory=dict)
    """All nodes, to copy from."""
    died_ns: dict[int, int] = field(default_factory=dict)
    """Boot id -> when its process was killed."""
    stale: list[bytes] = field(default_factory=list)
    """Marks of an epoch that the node knew to be over."""
    disk: SimulatedDisk | None = None

    def start(self, process: ProcessLoop) -> None:
        self.end()
        self.served = None  # Or the old memory would be alive until this process has taken its first step.
        self.process = process
        process.spawn(self._main)

    async def _main(self) -> None:
        while True:
            self.served = ServedNode(self)
            try:
                await self.served.run(self.masters)
            except NameTaken:
                await asyncio.sleep(STARTED_AGAIN_SECONDS)

    @property
    def alive(self) -> ServedNode | None:
        return self.served if self.process is not None and not self.process.dead else None

    def died(self) -> None:
        """Note that its process was killed."""
        if self.served is not None and self.process is not None:
            self.died_ns[self.served.boot] = self.process.scheduler.now_ns

    def end(self) -> None:
        """Give its memory back; clients that have mapped it keep it."""
        if self.served is not None:
            self.served.lending.withdraw()


class NodeListener(Protocol):
    """A client of this machine that has the memory mapped."""

    def told_of(self, history: int) -> None:
        """Learn that the memory belongs to this history now."""


class ServedNode:
    """The `Lender` of a node's life."""

    def __init__(self, machine: NodeMachine) -> None:
        name = self.name = machine.name
        self.lending = Lending()
        caller = PlainCaller(fresh_hello(control=True))
        self._runner = TaskRunner(Masters(machine.masters), caller, LinkOptions(CONNECT_SECONDS))
        self.report = Report(self._runner.rouse)
        self._machine = machine
        self._refused = RefusedGrants(REFUSED_KEPT)
        self._tickets = TicketBook()
        self._history = 0
        self._older: list[int] = []
        self.known_from: dict[int, int] = {}
        """By writer: the history under which it knew the memory."""
        self.listeners: dict[NodeListener, None] = {}
        self._memory: LentMemory | None = None
        assert machine.process is not None, "it is started by its process"
        if machine.disk is not None:
            self.lending.disk = machine.disk.opened(name, self.report.lost_files)
        self._copies = copies = SimulatedCopies(
            name, self.lending, machine.peers, machine.process, self._tickets, machine.disk
        )
        self._commands = Commands(name, self.lending, self.report, self, self, copies.memory, copies.disk)
        self._card = NodeCard(name, name, f"{name}:7071", f"/{name}")
        self.life = NodeLife(self._card, self, self.report, self._perform, lambda: None)

    def _perform(self, name: str, body: bytes) -> None:
        if name == MARK:
            self._mark(body)
        else:
            self._commands.perform(name, body)

    def _mark(self, body: bytes) -> None:
        """The body is the epoch of the master that sent it, and a number."""
        self._machine.marks[body] += 1
        if int(body.split()[0]) < self.life.follower.epoch:
            self._machine.stale.append(body)

    async def run(self, masters: str) -> None:
        runner = self._runner
        telling = asyncio.create_task(runner.run(self.life.tell()))
        copying = [asyncio.create_task(lane.run(masters)) for lane in self._copies.workers]
        try:
            await runner.run(self.life.belong())
        finally:
            self.life.stop()
            runner.hang_up(CLOSED_TEXT)
            telling.cancel()
            for lane in copying:
                lane.cancel()
            self.lending.withdraw()

    @property
    def boot(self) -> int:
        return self._memory.boot if self._memory is not None else 0

    @property
    def sizes(self) -> list[int]:
        return self._memory.sizes if self._memory is not None else []

    def renew_memory(self) -> None:
        self.lending.withdraw()
        self.report.memory_voided()
        self._refused = self._copies.refused = RefusedGrants(REFUSED_KEPT)
        self._memory = LentMemory.create(self.name, self._machine.size_bytes, 1)
        self.lending.lend(self._memory)

    def trust(self, key: bytes, terms: TicketTerms | None) -> None:
        self._tickets.trust(key, terms, self._now())
        self._commands.mount_disk(self.boot, self._card.data_address, self._card.host)

    def ticket_terms(self, terms: TicketTerms) -> None:
        self._tickets.told(terms, self._now())

    def _now(self) -> Instant:
        """On the node's own clock, whoever's step this is."""
        assert self._machine.process is not None, "it is started by its process"
        return self._machine.process.now_ns() // 1_000_000

    def check_attach(self, request: AttachSegment) -> None:
        self._tickets.check_attach(request.segment, request.ticket, request.write, self._now())

    def enter_history(self, history: int, older: list[int], epoch: int) -> None:
        """Enter a history. Writes and copies take one step, so none is under way; the new secret refuses older ones."""
        changed = self._history != history
        self._history, self._older = history, older
        if changed and older:
            for listener in self.listeners:
                listener.told_of(history)

    @property
    def history(self) -> int:
        """The history that its memory belongs to."""
        return self._history

    def is_older(self, history: int) -> bool:
        """Is this an older history, whose clients may no longer have the memory?"""
        return history in self._older

    def older_writers(self) -> int:
        if not self._older:
            return 0
        return sum(self.known_from.get(number) != self._history for number in self.report.attendance()[0])

    def mismatched(self, rows: bytes) -> bytes:
        return mismatched(self.lending, self.name, self.boot, rows)

    def clean(self, grants: list[GrantId], deadline: float) -> list[GrantId]:
        for grant in grants:
            self._refused.add(grant)
        return grants

    def refuses(self, grant: GrantId) -> bool:
        return grant in self._refused

    @property
    def refused_kept(self) -> int:
        return len(self._refused)

    def refuse_client(self, client: int) -> None:
        self._tickets.refuse_client(client)
        self._refused.add_client(client)

    def clear(self, order: Clear) -> None:
        """Reads and writes take one step, so none is under way."""
        where = (order.segment, order.offset, order.length)
        with self.lending.range_of(*where) as room:
            self._tickets.fences.put_up(*where, order.issued)
            wipe(room)

    def revoke(self, ids: bytes | None) -> None:
        """Does nothing: simulated clients ask the master, or read under the leases that they have."""

    def figures(self) -> dict[str, int]:
        return {"lent_bytes": sum(self.sizes), "writers": self.report.writers}

    def write(self, request: WriteRange, source: memoryview) -> None:
        target = self.lending.range_of(request.segment, request.range_offset + request.offset, request.length)
        self._tickets.check_write(request)
        self._refused.check(request.grant)
        target[:] = source
        target.release()

    def check_file(self, segment: SegmentName, ticket: Ticket, offset: int) -> None:
        self._tickets.check_file(segment, ticket, offset, self._now())
        disk = self.lending.disk
        if disk is not None and disk.is_mine(segment):
            disk.check(offset)

    def read(self, wanted: WantedRange) -> None:
        segment, ticket, offset, target = wanted
        request = ReadRanges(segment, ticket, TicketRow.pack(offset, target.nbytes))
        self._tickets.pieces(request, self._now())
        disk = self.lending.disk
        if disk is not None and disk.is_mine(segment):
            disk.read_into(offset, target)
        else:
            self._copy_out(segment, offset, target)

    def read_back(self, request: ReadBack, target: memoryview) -> None:
        self._tickets.check_write(request)
        self._refused.check(request.grant)
        self._copy_out(request.segment, request.range_offset + request.offset, target)

    def _copy_out(self, segment: SegmentName, offset: int, target: memoryview) -> None:
        source = self.lending.range_of(segment, offset, target.nbytes)
        target[:] = source
        source.release()

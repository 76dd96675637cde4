"""How a simulated client reaches a node's bytes: production maps and bookkeeping, simulated links and connections."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Mapping as Map
from collections.abc import Sequence
from functools import partial
from typing import cast

import xxhash

from holdfast.client.bytes.nodes import NodeBytes
from holdfast.client.bytes.revocations import OnRevoked
from holdfast.errors import DeadlineExceeded, HoldfastError, UnknownSegment, Unreachable
from holdfast.ids import SegmentName
from holdfast.messages.of_nodes import AttachSegment, ReadBack, WriteRange
from holdfast.messages.shapes import SegmentPlace, Ticket
from holdfast.simulation.kernel.process import ProcessLoop
from holdfast.simulation.kernel.scheduler import SECOND
from holdfast.simulation.world.nodes import NodeMachine, ServedNode
from holdfast.transport.attach import NodeLink
from holdfast.transport.data_tcp import DataConnection, GrantedRange, WantedRange
from holdfast.transport.shared_memory import Mapping

STALL_NS = 2 * SECOND
SEND_AGAIN_NS = SECOND // 5


class SimulatedLink:
    """A Unix connection to a node: its end tells the node that this writer can no longer write."""

    def __init__(self, client: ProcessLoop, node: NodeMachine) -> None:
        self.writer = 0
        self._client = client
        self._node = node
        self._life = _awake(node)
        self._mappings: list[Mapping] = []
        self._closed = False

    def attach(self, request: AttachSegment, deadline: float) -> Mapping:
        if self._closed or _awake(self._node) is not self._life:
            raise Unreachable("the node is gone; nothing was mapped")
        segment, write = request.segment, request.write
        self._life.check_attach(request)
        if self._life.is_older(request.history):
            raise UnknownSegment(f"segment {segment} belongs to a later history now; ask the master")
        lending = self._life.lending
        with lending.lock:
            found = lending.segment(segment)
            descriptor = os.dup(found.descriptor if write else found.read_descriptor)
        try:
            if write and not self.writer:
                self.writer = self._life.report.writer_came()
                self._life.known_from[self.writer] = request.history or self._life.history
            mapping = Mapping(descriptor, found.size_bytes, write, populate=False)
        finally:
            os.close(descriptor)
        if write:
            self._mappings.append(mapping)
        return mapping

    def ended(self) -> bool:
        """As the kernel shows it: once the process is dead, and not while it is only stopped."""
        return self._closed or self._node.alive is not self._life

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        for mapping in self._mappings:
            mapping.close()
        self.hang_up()

    def writes_to(self, node: str, writer: int) -> bool:
        return self._node.name == node and self.writer == writer and not self._closed

    def hang_up(self) -> None:
        """As the kernel does it when the process is dead."""
        process = self._node.process
        if self.writer and process is not None and self._node.alive is self._life:
            went = partial(self._life.report.writer_went, self.writer)
            self._client.scheduler.after(self._client.network.delay_ns(), went, process)


class SimulatedConnection:
    """A TCP connection to a node's data port; each call takes place in one step.

    Bytes of a write that a cut or a stopped node holds back arrive later, as TCP sends again: also when the client has
    given up, or is dead."""

    def __init__(self, client: ProcessLoop, node: NodeMachine) -> None:
        self.closed = False
        self.silence_seconds = math.inf
        self._client = client
        self._node = node

    def _reach(self) -> ServedNode:
        network, name = self._client.network, self._node.name
        if network.is_cut(self._client.name, name) or network.is_cut(name, self._client.name):
            network.stall(self._stall_ns())
            raise DeadlineExceeded(f"{name} does not answer")
        try:
            return _awake(self._node)
        except Unreachable:
            if self._node.process is not None and self._node.process.paused:
                network.stall(self._stall_ns())
                raise DeadlineExceeded(f"{name} does not answer") from None
            raise

    def _stall_ns(self) -> int:
        return min(STALL_NS, int(min(self.silence_seconds, 1e3) * SECOND))

    def read_into(self, wanted: WantedRange, deadline: float, digest: xxhash.xxh3_64 | None = None) -> None:
        self._reach().read(wanted)
        if digest is not None:
            digest.update(wanted.target)

    def read_many(self, wanted: Sequence[WantedRange], deadline: float) -> None:
        life = self._reach()
        for each in wanted:
            life.read(each)

    def read_back(self, granted: GrantedRange, offset: int, target: memoryview, deadline: float) -> None:
        self._reach().read_back(ReadBack(*granted, offset, target.nbytes), target)

    def check_file(self, segment: SegmentName, ticket: Ticket, offset: int, deadline: float) -> None:
        self._reach().check_file(segment, ticket, offset)

    def write(
        self,
        granted: GrantedRange,
        offset: int,
        source: memoryview,
        deadline: float,
        digest: xxhash.xxh3_64 | None = None,
    ) -> None:
        request = WriteRange(*granted, offset, len(source))
        network, client, node = self._client.network, self._client.name, self._node
        life, process = node.alive, node.process
        if life is not None and process is not None and (process.paused or network.is_cut(client, node.name)):
            self._send_again(life, process, request, bytes(source))
        elif life is not None and network.is_cut(node.name, client):
            life.write(request, source)  # It arrives, but no reply comes back.
        self._reach().write(request, source)
        if digest is not None:
            digest.update(source)

    def write_many(
        self,
        granted: GrantedRange,
        sources: Sequence[tuple[int, memoryview, xxhash.xxh3_64 | None]],
        deadline: float,
    ) -> None:
        for offset, source, digest in sources:
            self.write(granted, offset, source, deadline, digest)

    def _send_again(self, life: ServedNode, process: ProcessLoop, request: WriteRange, source: bytes) -> None:
        def arrive() -> None:
            if self._client.network.is_cut(self._client.name, self._node.name):
                self._send_again(life, process, request, source)
            elif self._node.alive is life:
                # For the client the connection is closed by now: a refusal would reach nobody.
                with contextlib.suppress(HoldfastError):
                    life.write(request, memoryview(source))

        self._client.scheduler.after(SEND_AGAIN_NS, arrive, process)

    def close(self) -> None:
        self.closed = True


def _awake(node: NodeMachine) -> ServedNode:
    life = node.alive
    if life is None or (node.process is not None and node.process.paused):
        raise Unreachable(f"{node.name} does not answer")
    return life


class SimulatedBytes(NodeBytes):
    def __init__(self, client: ProcessLoop, host: str, nodes: Map[str, NodeMachine]) -> None:
        super().__init__(shared_memory=False)
        self.host = host
        self._client = client
        self._nodes = nodes

    def _open_link(self, socket_path: str, deadline: float) -> NodeLink:
        link = SimulatedLink(self._client, self._nodes[socket_path.removeprefix("/")])
        return cast("NodeLink", link)

    def hear(self, on_revoked: OnRevoked) -> None:
        self._on_revoked = on_revoked

    def _listen(self, place: SegmentPlace) -> None:
        """Listen for another history only. Revoked leases are not simulated: they are a hint."""
        node = self._nodes[place.socket_path.removeprefix("/")]
        if node.alive is not None:
            node.alive.listeners[self] = None

    def told_of(self, history: int) -> None:
        """A node of this machine announces a history, as the listening thread would receive it."""
        if not self._client.dead:
            delay_ns = self._client.network.delay_ns()
            self._client.scheduler.after(delay_ns, partial(self._on_revoked, [], history), self._client)

    def _dial(self, address: str, deadline: float) -> DataConnection:
        node = self._nodes[address.partition(":")[0]]
        return cast("DataConnection", SimulatedConnection(self._client, node))

    def is_writer(self, node: str, writer: int) -> bool:
        """Is this process, by this number, one of those that can write to the node's memory?"""
        links = [*self._links.values(), *self._doomed]
        return any(cast("SimulatedLink", link).writes_to(node, writer) for link in links)

    def process_died(self) -> None:
        """As the kernel does it: free the memory, then close the sockets."""
        for link in [*self._links.values(), *self._doomed]:
            cast("SimulatedLink", link).hang_up()

"""Connections between simulated processes: ordered streams that are late, cut off, broken, and never garbled.

Bytes that a cut holds back arrive when it is healed, as TCP sends again; bytes that a reset takes never do. A cut has a
direction. When a process dies, its connection ends at the peer a moment later; while one is stopped, its connections
stay open and silent.
"""

from __future__ import annotations

import asyncio
import os
import random
import socket
import struct
from collections.abc import Callable
from functools import partial
from typing import Any

from holdfast.simulation.kernel.process import ProcessLoop
from holdfast.simulation.kernel.scheduler import MS, Scheduler

SYN_AGAIN_NS = 200 * MS


class _UnixLike:
    """A socket of which production code reads the family, because this one takes no TCP options, and the user of the
    other end, which is always this one."""

    family = socket.AF_UNIX

    @staticmethod
    def getsockopt(level: int, option: int, length: int) -> bytes:
        assert (level, option) == (socket.SOL_SOCKET, socket.SO_PEERCRED), "nothing else is asked of it"
        return struct.pack("3i", os.getpid(), os.geteuid(), os.getegid())


class Endpoint(asyncio.Transport):
    """One end of a connection."""

    peer: Endpoint

    def __init__(self, network: Network, owner: ProcessLoop, peer_name: str) -> None:
        super().__init__()
        self.network = network
        self.owner = owner
        self.peer_name = peer_name
        self.protocol: asyncio.BaseProtocol | None = None
        self.closed = False
        self.arrives_ns = 0
        """When the last bytes sent from here arrive, at the earliest."""
        self.waiting: list[bytes | None] = []
        """Bytes that arrived here and cannot be delivered yet; None is the end of the stream."""
        self.reading = True

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return _UnixLike if name == "socket" else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert self.protocol is not None
        return self.protocol

    def is_closing(self) -> bool:
        return self.closed

    def write(self, data: Any) -> None:
        if not self.closed:
            self.network.send(self, bytes(data))

    def write_eof(self) -> None:
        if not self.closed:
            self.network.send(self, None)

    def can_write_eof(self) -> bool:
        return True

    def close(self) -> None:
        if not self.closed:
            self.network.send(self, None)
            self.lose(None)

    abort = close

    def begin(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol
        protocol.connection_made(self)
        self.resume_reading()
        if self.closed:  # It broke before its owner had it.
            self.owner.call_soon(protocol.connection_lost, ConnectionResetError("reset"))

    def lose(self, error: Exception | None) -> None:
        """End the connection on this side."""
        if self.closed:
            return
        self.closed = True
        self.network.forget(self)
        if self.protocol is not None and not self.owner.dead:
            self.owner.call_soon(self.protocol.connection_lost, error)

    def pause_reading(self) -> None:
        self.reading = False

    def is_reading(self) -> bool:
        return self.reading

    def resume_reading(self) -> None:
        self.reading = True
        waiting, self.waiting = self.waiting, []
        for data in waiting:
            self.owner.call_soon(self.arrived, data)

    def arrived(self, data: bytes | None) -> None:
        """Deliver bytes, in the owner's turn."""
        if self.closed:
            return
        if self.protocol is None or not self.reading:
            self.waiting.append(data)
        elif data is None:
            self._ended()
        elif isinstance(self.protocol, asyncio.BufferedProtocol):
            self._fill(self.protocol, data)
        else:
            assert isinstance(self.protocol, asyncio.Protocol)
            self.protocol.data_received(data)

    def _ended(self) -> None:
        assert isinstance(self.protocol, asyncio.BufferedProtocol | asyncio.Protocol)
        self.protocol.eof_received()
        self.close()

    def _fill(self, protocol: asyncio.BufferedProtocol, data: bytes) -> None:
        done = 0
        while done < len(data) and not self.closed:
            buffer = memoryview(protocol.get_buffer(len(data) - done))
            count = min(len(buffer), len(data) - done)
            buffer[:count] = data[done : done + count]
            protocol.buffer_updated(count)
            done += count


class Listener:
    def __init__(self, network: Network, address: tuple[str, int]) -> None:
        self._network = network
        self._address = address

    @property
    def sockets(self) -> list[Any]:
        return [self]

    def getsockname(self) -> tuple[str, int]:
        return self._address

    def close(self) -> None:
        self._network.listeners.pop(self._address, None)


class Network:
    def __init__(self, scheduler: Scheduler, chance: random.Random) -> None:
        self.scheduler = scheduler
        self.listeners: dict[tuple[str, int], tuple[ProcessLoop, Callable[[], asyncio.BaseProtocol]]] = {}
        self.fastest_ns = MS // 10
        self.slowest_ns = MS
        self.cuts: dict[tuple[str, str], int] = {}
        """(from, to): how many cuts there are in that direction now."""
        self.late_ns: dict[str, int] = {}
        """By process: the extra delay of all traffic to and from it."""
        self.refused: list[tuple[str, str]] = []
        """(from, to): connections that are refused now."""
        self._chance = chance
        self._open: dict[Endpoint, None] = {}
        self._blocked: dict[tuple[str, str], list[tuple[Endpoint, bytes | None]]] = {}
        self._stall_ns = 0

    def delay_ns(self) -> int:
        # As `randint` would, four times as quickly.
        return self.fastest_ns + int(self._chance.random() * (self.slowest_ns - self.fastest_ns))

    def stall(self, delay_ns: int) -> None:
        """Delay the current work by this much: its peer does not answer."""
        self._stall_ns = delay_ns

    def take_stall_ns(self) -> int:
        stall_ns, self._stall_ns = self._stall_ns, 0
        return stall_ns

    # Faults.

    def cut(self, sender: str, receiver: str) -> None:
        self.cuts[sender, receiver] = self.cuts.get((sender, receiver), 0) + 1

    def heal(self, sender: str, receiver: str) -> None:
        way = (sender, receiver)
        self.cuts[way] -= 1
        if self.cuts[way]:
            return
        del self.cuts[way]
        for endpoint, data in self._blocked.pop(way, []):
            self._carry(endpoint, data)

    def is_cut(self, sender: str, receiver: str) -> bool:
        return (sender, receiver) in self.cuts

    def reset(self, one: str, other: str) -> None:
        """Break every connection between the two; bytes under way are lost."""
        for endpoint in [e for e in self._open if {e.owner.name, e.peer_name} == {one, other}]:
            self.scheduler.after(self.delay_ns(), partial(endpoint.lose, ConnectionResetError("reset")), endpoint.owner)
            endpoint.peer.arrives_ns = 1 << 62

    def process_died(self, process: ProcessLoop) -> None:
        for address in [a for a, (owner, _) in self.listeners.items() if owner is process]:
            del self.listeners[address]
        for endpoint in [e for e in self._open if e.owner is process]:
            self.send(endpoint, None)
            endpoint.closed = True
            del self._open[endpoint]

    # Traffic.

    def listen(self, owner: ProcessLoop, host: str, port: int, factory: Callable[[], asyncio.BaseProtocol]) -> Listener:
        address = (host, port)
        self.listeners[address] = (owner, factory)
        return Listener(self, address)

    async def connect(
        self, owner: ProcessLoop, host: str, port: int, factory: Callable[[], asyncio.BaseProtocol]
    ) -> tuple[Endpoint, asyncio.BaseProtocol]:
        connected: asyncio.Future[Endpoint] = owner.create_future()
        self.scheduler.after(self.delay_ns(), partial(self._knock, connected, owner, host, port))
        endpoint = await connected
        protocol = factory()
        endpoint.begin(protocol)
        return endpoint, protocol

    def _knock(self, connected: asyncio.Future[Endpoint], owner: ProcessLoop, host: str, port: int) -> None:
        if connected.done() or owner.dead:
            return
        if self.is_cut(owner.name, host) or self.is_cut(host, owner.name):
            self.scheduler.after(SYN_AGAIN_NS, partial(self._knock, connected, owner, host, port))
            return
        answered_ns = self.delay_ns()
        found = self.listeners.get((host, port))
        if found is None or (owner.name, host) in self.refused:
            refusal = ConnectionRefusedError(f"nobody listens at {host}:{port}")
            self.scheduler.after(answered_ns, partial(_refused, connected, refusal), owner)
            return
        server, factory = found
        here, there = Endpoint(self, owner, server.name), Endpoint(self, server, owner.name)
        here.peer, there.peer = there, here
        self._open[here] = self._open[there] = None
        self.scheduler.after(0, partial(_accept, there, factory), server)
        self.scheduler.after(answered_ns, partial(_established, connected, here), owner)

    def send(self, sender: Endpoint, data: bytes | None) -> None:
        if sender.peer.closed:
            return
        way = (sender.owner.name, sender.peer_name)
        if way in self._blocked or way in self.cuts:
            self._blocked.setdefault(way, []).append((sender, data))
        else:
            self._carry(sender, data)

    def _carry(self, sender: Endpoint, data: bytes | None) -> None:
        late_ns = self.late_ns.get(sender.owner.name, 0) + self.late_ns.get(sender.peer_name, 0) if self.late_ns else 0
        arrives_ns = max(sender.arrives_ns, self.scheduler.now_ns + self.delay_ns() + late_ns)
        if arrives_ns >= 1 << 62:  # Reset: it is lost.
            return
        sender.arrives_ns = arrives_ns
        self.scheduler.at(arrives_ns, partial(self._deliver, sender, data), sender.peer.owner)

    def _deliver(self, sender: Endpoint, data: bytes | None) -> None:
        if sender.arrives_ns < 1 << 62:
            sender.peer.arrived(data)

    def forget(self, endpoint: Endpoint) -> None:
        self._open.pop(endpoint, None)


def _accept(endpoint: Endpoint, factory: Callable[[], asyncio.BaseProtocol]) -> None:
    endpoint.begin(factory())


def _refused(connected: asyncio.Future[Endpoint], refusal: Exception) -> None:
    if not connected.done():
        connected.set_exception(refusal)


def _established(connected: asyncio.Future[Endpoint], endpoint: Endpoint) -> None:
    if connected.done():
        endpoint.close()
    else:
        connected.set_result(endpoint)

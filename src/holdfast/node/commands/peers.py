"""Reads bytes of other nodes for a node that copies: one connection per node, kept while it works."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from holdfast.errors import HoldfastError
from holdfast.ids import SLOWEST_BYTES_PER_SECOND, SegmentName
from holdfast.instant import now_seconds
from holdfast.messages.shapes import Ticket
from holdfast.node.memory.lent_memory import Lending
from holdfast.transport.data_tcp import DataConnection, WantedRange

CONNECT_SECONDS = 2.0
STALLED_SECONDS = 5.0
MOST_CONNECTIONS = 64


class PeerBytes:
    """The connections to other nodes, for one thread."""

    def __init__(self, lending: Lending) -> None:
        self._lending = lending
        self._connections: dict[str, DataConnection] = {}

    def lends(self, name: SegmentName) -> bool:
        return self._lending.lends(name)

    def range_of(self, name: SegmentName, offset: int, length: int) -> memoryview:
        return self._lending.range_of(name, offset, length)

    def fetch(self, address: str, ranges: Sequence[WantedRange]) -> None:
        size = sum(len(each.target) for each in ranges)
        deadline = now_seconds() + STALLED_SECONDS + size / SLOWEST_BYTES_PER_SECOND
        connection = self._connections.pop(address, None)
        if connection is None or connection.closed:
            connection = DataConnection.open(address, min(deadline, now_seconds() + CONNECT_SECONDS))
        try:
            connection.read_many(ranges, deadline)
        finally:
            if not connection.closed:
                self._keep(address, connection)

    def check_file(self, address: str, name: SegmentName, ticket: Ticket, offset: int) -> None:
        """Have another node check a file of its disk, from which wrong bytes came."""
        deadline = now_seconds() + STALLED_SECONDS
        with contextlib.suppress(HoldfastError):  # That node reports damage itself; nothing here depends on it.
            connection = DataConnection.open(address, min(deadline, now_seconds() + CONNECT_SECONDS))
            with contextlib.closing(connection):
                connection.check_file(name, ticket, offset, deadline)

    def _keep(self, address: str, connection: DataConnection) -> None:
        self._connections[address] = connection
        while len(self._connections) > MOST_CONNECTIONS:
            oldest = next(iter(self._connections))
            self._connections.pop(oldest).close()

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

"""Publishes a primary's key table to clients of its machine, in memory that they map (wire.key_table_layout).

Clients may rely on the table only while it equals what this master would answer to any client: everything in it
durable, and nothing hidden for other reasons. After a change that holds again once the change is durable and written to
the table, which waits until the replies have been sent.
"""

from __future__ import annotations

import asyncio
import hmac
import os
import platform
import socket

import numpy as np

from holdfast.core.catalogue.key_table import KeyTable
from holdfast.entropy import fresh_bytes
from holdfast.instant import Instant
from holdfast.master.engine.engine import Engine
from holdfast.supervisor import Supervisor
from holdfast.transport.peer_user import is_own_user
from holdfast.transport.shared_memory import map_alone
from holdfast.wire.key_table_layout import MOST_BYTES, SECRET_BYTES

LONGEST_GOOD_MS = 60_000
ASKING_SECONDS = 1.0
MOST_ASKING = 1_000
IN_ORDER = ("x86_64", "AMD64")
"""Architectures on which other cores see a core's writes in the order in which they were made, as the table needs."""


def may_show() -> bool:
    """Can this machine publish a key table at all?"""
    return hasattr(os, "memfd_create") and platform.machine() in IN_ORDER


class KeyTablePublisher:
    """The table's memory in one master process, and the socket that hands it to clients."""

    def __init__(self, supervisor: Supervisor, any_user: bool = False) -> None:
        """`any_user`: the secret is told only to those who have shown an identity, whichever users they are."""
        self._supervisor = supervisor
        self._any_user = any_user
        self.name = f"holdfast-{fresh_bytes(12).hex()}"
        self.secret = fresh_bytes(SECRET_BYTES)
        self._descriptor, memory = map_alone("holdfast-keys", MOST_BYTES)
        self._words = np.frombuffer(memory, np.uint64)
        self._engine: Engine | None = None
        self._table: KeyTable | None = None
        self._catching_up = False
        self._loop = asyncio.get_running_loop()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.setblocking(False)
        self._listener.bind("\0" + self.name)
        self._listener.listen(128)
        self._accepting = asyncio.create_task(supervisor.keep("key table", self._accept))
        self._asking: set[asyncio.Task[None]] = set()

    def close(self) -> None:
        self.follow()
        self._accepting.cancel()
        for asking in self._asking:
            asking.cancel()
        self._listener.close()
        os.close(self._descriptor)

    def lead(self, engine: Engine) -> None:
        """Show the keys of this engine from now on."""
        catalogue = engine.state.catalogue
        self._engine = engine
        self._table = catalogue.key_table = KeyTable(catalogue, self._words)
        self.changed()

    def follow(self) -> None:
        """Show no keys from now on."""
        if self._engine is not None and self._table is not None:
            self._table.turn_off()
            self._engine.state.catalogue.key_table = None
        self._engine = self._table = None

    def changed(self) -> None:
        """Update the table in the next turn of the loop: something has changed or become durable."""
        if self._engine is None or self._table is None:
            return
        if self._engine.state.away:
            # Objects on those disks alone are in the catalogue, but no reader can get them.
            self._table.turn_off()
        if self._table.is_off and not self._catching_up:
            self._catching_up = True
            self._loop.call_soon(self._catch_up)

    def tick(self, now: Instant) -> None:
        if self._engine is None or self._table is None:
            return
        self._table.beat(min(LONGEST_GOOD_MS, max(0, self._engine.leads_until() - now)))
        self.changed()

    def _catch_up(self) -> None:
        self._catching_up = False
        if self._engine is None or self._table is None:
            return
        if self._table.catch_up():
            self.changed()  # One slice at a time, so that requests get their turn.
        elif not (self._engine.waits_for_log or self._engine.state.away):
            self._table.mark_right()

    async def _accept(self) -> None:
        while True:
            try:
                connection, _ = await self._loop.sock_accept(self._listener)
            except OSError:  # No descriptor is left: the client must wait, or ask the master about keys.
                await asyncio.sleep(ASKING_SECONDS)
                continue
            if len(self._asking) >= MOST_ASKING or not (self._any_user or is_own_user(connection)):
                connection.close()
                continue
            asking = asyncio.create_task(self._hand_out(connection))
            self._asking.add(asking)
            asking.add_done_callback(self._asking.discard)
            self._supervisor.watch("handing out the key table", asking)

    async def _hand_out(self, connection: socket.socket) -> None:
        """Send the memory, which it cannot write to, to a client that presents the secret; others get no reply."""
        said = b""
        try:
            async with asyncio.timeout(ASKING_SECONDS):
                while len(said) < SECRET_BYTES and (more := await self._loop.sock_recv(connection, SECRET_BYTES)):
                    said += more
            if hmac.compare_digest(said, self.secret):
                socket.send_fds(connection, [b"\1"], [self._descriptor])
        except (OSError, TimeoutError):
            pass  # It has gone or sends nothing: then it needs nothing.
        finally:
            connection.close()

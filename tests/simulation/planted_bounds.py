"""Bugs planted on purpose in what must be bounded (I17) and in what crosses processes (I16)."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

from holdfast.coordination.interface import Landmark
from holdfast.coordination.memory import MemoryCoordination
from holdfast.core.objects import puts
from holdfast.core.primary.session_book import Book
from holdfast.replication import renewals, snapshot_store
from holdfast.simulation.world import disks
from holdfast.transport.async_channel import AsyncChannel
from tests.simulation.planted import Patch, Planted, both


def never_trim_the_log() -> Patch:
    async def trim(self: MemoryCoordination, through_index: int, landmark: Landmark | None = None) -> bool:
        await self._link.arrive()
        return True

    return patch.object(MemoryCoordination, "trim", trim)


def forget_the_write_window() -> Patch:
    return patch.object(puts, "_beyond_window", lambda primary, client, length, ending: "")


def keep_sessions_that_are_over() -> Patch:
    real = Book.close

    def close(self: Book, session: Any, why: str) -> None:
        real(self, session, why)
        self._sessions[session.id] = session

    return patch.object(Book, "close", close)


def write_urgent_renewals_at_once() -> Patch:
    """However many there are."""
    real = renewals.RenewalSender.due_at

    def due_at(self: renewals.RenewalSender) -> int:
        return real(self) if self._urgent_at is None else self._urgent_at

    return patch.object(renewals.RenewalSender, "due_at", due_at)


def leave_connections_open() -> Patch:
    return patch.object(AsyncChannel, "close", lambda self: None)


def keep_instants_in_snapshots() -> Patch:
    """Instead of how long a lease has left and how long ago an object was used."""
    dump, load = snapshot_store.dump, snapshot_store.load

    def dump_as_it_is(state: Any, position: Any, now: int) -> Any:
        return dump(state, position, 0)

    def load_as_it_is(content: Any, now: int) -> Any:
        return load(content, 0)

    written = patch.multiple(snapshot_store, dump=dump_as_it_is, load=load_as_it_is)
    return both(written, patch.object(disks, "dump", dump_as_it_is))


def publish_when_leases_end() -> Patch:
    """Instead of how long they have left."""
    real = renewals.take_renewed
    return patch.object(renewals, "take_renewed", lambda state, now: real(state, 0))


PLANTED_IN_BOUNDS = (
    Planted("never trim the log", never_trim_the_log, ("I17",), 60),
    Planted("forget the write window", forget_the_write_window, ("I17",), 60),
    Planted("keep sessions that are over", keep_sessions_that_are_over, ("I17",), 60),
    Planted("write urgent renewals at once", write_urgent_renewals_at_once, ("I17",), 60),
    Planted("leave connections open", leave_connections_open, ("I17",), 60),
    Planted("keep instants in snapshots", keep_instants_in_snapshots, ("I16",), 60),
    Planted("publish when leases end", publish_when_leases_end, ("I16",), 60),
)

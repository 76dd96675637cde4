"""A primary shows its keys to clients of its machine: only what it would answer, and only to who may ask."""

from __future__ import annotations

import asyncio
import mmap
import os
import socket
from collections.abc import AsyncIterator

import numpy as np
import pytest

from holdfast.errors import Unreachable
from holdfast.master.connection import Connection
from holdfast.master.key_table import KeyTablePublisher
from holdfast.master.server import RpcServer
from holdfast.messages import requests as q
from holdfast.supervisor import Supervisor
from holdfast.transport.key_table import fetch
from holdfast.wire.key_table_layout import ASKED, CONFIRMED, GOOD_MS, MOST_BYTES, SEQUENCE
from tests.core.key_table import fingerprints_in
from tests.master.engine.test_durability import Writer
from tests.other_user import as_other_user, needs_root

TURNS = 50


@pytest.fixture
async def showing() -> AsyncIterator[KeyTablePublisher]:
    made = KeyTablePublisher(Supervisor())
    try:
        yield made
    finally:
        made.close()


async def seen(showing: KeyTablePublisher) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    """The memory, as a client maps it."""
    descriptor = await asyncio.to_thread(fetch, showing.name, showing.secret)
    try:
        with pytest.raises(OSError, match=r"denied|permitted"):
            mmap.mmap(descriptor, mmap.PAGESIZE, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        return np.frombuffer(mmap.mmap(descriptor, MOST_BYTES, mmap.MAP_SHARED, mmap.PROT_READ), np.uint64)
    finally:
        os.close(descriptor)


async def turn() -> None:
    for _ in range(TURNS):
        await asyncio.sleep(0)


def is_right(words: np.ndarray[tuple[int], np.dtype[np.uint64]]) -> bool:
    return not int(words[SEQUENCE]) & 1


async def leading(showing: KeyTablePublisher) -> tuple[Writer, np.ndarray[tuple[int], np.dtype[np.uint64]]]:
    """A primary whose keys are shown, and the memory that they are shown in."""
    writer = Writer()
    writer.on_durable = showing.changed
    showing.lead(writer.engine)
    words = await seen(showing)
    await turn()
    assert is_right(words)
    return writer, words


def granted_and_committed(writer: Writer, key: str) -> None:
    """The object is committed; that is not durable yet."""
    writer.grant(1, 64)
    writer.write()
    writer.commit(1, key)


async def test_a_change_is_shown_when_it_is_durable(showing: KeyTablePublisher) -> None:
    """Nobody sees what may be lost yet (I1), nor that something is gone that may come back (I7)."""
    writer, words = await leading(showing)
    assert not fingerprints_in(words)
    for change, left in (
        (lambda: granted_and_committed(writer, "key"), 1),
        (lambda: writer.ask(q.Remove(["key"], 1, True)), 0),
    ):
        change()
        showing.changed()
        await turn()
        assert not is_right(words)
        writer.write()
        await turn()
        assert is_right(words)
        assert len(fingerprints_in(words)) == left


async def test_what_is_on_disks_that_are_away_is_not_shown(showing: KeyTablePublisher) -> None:
    writer, words = await leading(showing)
    writer.engine.state.away.add(99)
    showing.changed()
    assert not is_right(words), "at once: the next reply may tell that something cannot be read"
    await turn()
    assert not is_right(words)
    granted_and_committed(writer, "meanwhile")
    writer.write()
    await turn()
    assert not is_right(words)
    assert len(fingerprints_in(words)) == 1, "what changes is carried out all the same: nothing piles up"
    writer.engine.state.away.clear()
    showing.tick(writer.now)
    await turn()
    assert is_right(words)


async def test_a_master_that_leads_no_more_shows_nothing(showing: KeyTablePublisher) -> None:
    """I12."""
    writer, words = await leading(showing)
    showing.follow()
    assert not is_right(words)
    showing.changed()
    showing.tick(writer.now)
    await turn()
    assert not is_right(words)
    assert writer.engine.state.catalogue.key_table is None


async def test_it_says_for_how_long_it_leads(showing: KeyTablePublisher) -> None:
    """I12, I16: a duration, and for a number that was there before it was reckoned."""
    writer = Writer()
    writer.leads_until = writer.now + 700
    showing.lead(writer.engine)
    words = await seen(showing)
    asked = int(words[ASKED])
    showing.tick(writer.now)
    assert (int(words[CONFIRMED]), int(words[ASKED]), int(words[GOOD_MS])) == (asked, asked + 1, 700)
    writer.leads_until = writer.now - 5
    showing.tick(writer.now)
    assert (int(words[CONFIRMED]), int(words[GOOD_MS])) == (asked + 1, 0)


@pytest.mark.parametrize("said", [b"", b"\0" * 16, b"\0" * 15])
async def test_who_does_not_know_the_secret_is_shown_nothing(showing: KeyTablePublisher, said: bytes) -> None:
    def ask() -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
            asking.settimeout(20)
            asking.connect("\0" + showing.name)
            asking.sendall(said)
            asking.shutdown(socket.SHUT_WR)
            assert socket.recv_fds(asking, 1, 1)[:2] == (b"", [])

    await asyncio.to_thread(ask)
    with pytest.raises(Unreachable, match="does not show"):
        await asyncio.to_thread(fetch, showing.name, b"x" * 16)
    os.close(await asyncio.to_thread(fetch, showing.name, showing.secret))


async def test_where_no_memory_is_to_be_had_the_master_serves_without(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(name: str, size_bytes: int) -> tuple[int, mmap.mmap]:
        raise OSError("no memory left")

    monkeypatch.setattr("holdfast.master.key_table.map_alone", none_left)
    server = RpcServer("here", "", shows=True)
    await server.start("127.0.0.1", 0)
    try:
        server.lead(Writer().engine)
        assert server.greet(Connection(server), q.Hello(5)).key_table == ""
    finally:
        await server.stop()


async def test_whoever_is_welcomed_is_told_where_the_keys_are_shown() -> None:
    server = RpcServer("here", "", shows=True)
    await server.start("127.0.0.1", 0)
    try:
        server.lead(Writer().engine)
        welcome = server.greet(Connection(server), q.Hello(5))
        os.close(await asyncio.to_thread(fetch, welcome.key_table, welcome.key_table_secret))
    finally:
        await server.stop()
    with pytest.raises(Unreachable):
        await asyncio.to_thread(fetch, welcome.key_table, welcome.key_table_secret)


async def test_no_reader_can_write_to_the_table(showing: KeyTablePublisher) -> None:
    """Not by the descriptor, not by opening it anew, and not by changing its mode: the memory is sealed."""
    descriptor = await asyncio.to_thread(fetch, showing.name, showing.secret)
    try:
        with pytest.raises(PermissionError):
            os.write(descriptor, b"x")
        with pytest.raises(PermissionError):
            os.ftruncate(descriptor, 0)
        os.fchmod(descriptor, 0o777)
        again = os.open(f"/proc/self/fd/{descriptor}", os.O_RDWR)
        try:
            with pytest.raises(PermissionError):
                mmap.mmap(again, mmap.PAGESIZE, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
            readable = mmap.mmap(again, mmap.PAGESIZE, mmap.MAP_SHARED, mmap.PROT_READ)
        finally:
            os.close(again)
        with readable, pytest.raises(OSError, match="ermi"):
            readable.madvise(mmap.MADV_REMOVE)
    finally:
        os.close(descriptor)
    writer, words = await leading(showing)
    writer.grant(1, 64)
    writer.write()
    writer.commit(1, "key")
    writer.write()
    await turn()
    assert len(fingerprints_in(words)) == 1, "the master itself goes on writing"


@needs_root
@pytest.mark.parametrize("any_user", [False, True], ids=["open cluster", "cluster with a token"])
async def test_another_user_of_the_machine_is_shown_the_keys_only_if_it_had_to_show_a_token(any_user: bool) -> None:
    showing = KeyTablePublisher(Supervisor(), any_user)

    def ask() -> str:
        try:
            os.close(fetch(showing.name, showing.secret))
        except Unreachable as error:
            return str(error)
        return "shown"

    try:
        told = await asyncio.to_thread(as_other_user, ask)
        assert told == "shown" if any_user else "does not show" in told or "Broken" in told or "reset" in told
        os.close(await asyncio.to_thread(fetch, showing.name, showing.secret))
    finally:
        showing.close()

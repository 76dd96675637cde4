"""Many operations over one connection: one that leaves a master, or comes too late, ends nothing of the others."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

import holdfast
from holdfast import errors
from holdfast.instant import now_seconds
from holdfast.messages import requests as m
from holdfast.messages.shapes import Message
from holdfast.operations import masters
from holdfast.operations.effects import LeaveMaster, Operation, Sleep
from holdfast.operations.link import LinkOptions
from tests.client.fake_master import Act, FakeMaster, first
from tests.client.inside import connection_of, runner_of
from tests.node.rig import Served
from tests.waiting import wait_until


def leaves_late(gone_on: Callable[[], bool]) -> Operation[bool]:
    """It has asked over a connection, and leaves that one when others have gone on to the next."""
    yield m.Exists(["key"], False)
    while not gone_on():
        yield Sleep(0.01)
    yield LeaveMaster("")
    return True


def test_an_operation_leaves_the_connection_that_it_used_and_no_other(master: FakeMaster) -> None:
    """I10: otherwise what others have under way on the new one would be in doubt."""
    with holdfast.connect(master.address) as cache:
        runner = runner_of(cache)
        old = connection_of(cache)
        assert old is not None

        def gone_on() -> bool:
            old.close()
            assert cache.exists("key") is False
            return connection_of(cache) is not old

        assert runner.run(leaves_late(gone_on), now_seconds() + 20)
        assert connection_of(cache) is not None
        assert not connection_of(cache).closed


async def test_a_task_leaves_the_connection_that_it_used_and_no_other(master: FakeMaster) -> None:
    """I10."""
    async with await holdfast.connect_async(master.address) as cache:
        runner = runner_of(cache)
        old = connection_of(cache)
        assert old is not None
        leaving = asyncio.create_task(
            runner.run(leaves_late(lambda: connection_of(cache) is not old), now_seconds() + 20)
        )
        async with asyncio.timeout(20):
            await asyncio.to_thread(wait_until, lambda: master.asked(m.Exists))
            old.close()
            assert await cache.exists("key") is False
            assert await leaving
        assert connection_of(cache) is not None
        assert not connection_of(cache).closed


def hold_the_next_welcome(master: FakeMaster) -> tuple[threading.Event, threading.Event]:
    """The next Hello is answered only when the second event is set; the first says that it has come."""
    came, answer = threading.Event(), threading.Event()

    def judge(request: Message) -> Act:
        if isinstance(request, m.Hello) and not came.is_set():
            came.set()
            assert answer.wait(20)
        return Act.USUAL

    master.judge = judge
    return came, answer


def test_a_client_that_is_closed_while_it_dials_keeps_no_connection(remote_master: FakeMaster) -> None:
    """I17."""
    cache = holdfast.connect(remote_master.address)
    assert connection_of(cache) is not None
    connection_of(cache).close()
    came, answer = hold_the_next_welcome(remote_master)
    said: list[BaseException] = []

    def ask() -> None:
        try:
            cache.exists("key")
        except errors.HoldfastError as error:
            said.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    wait_until(came.is_set)
    cache.close()
    answer.set()
    asking.join(20)
    assert not asking.is_alive()
    assert [type(error) for error in said] == [errors.ClientClosed]
    assert connection_of(cache).closed


async def test_a_task_that_dials_while_its_client_is_closed_keeps_no_connection(remote_master: FakeMaster) -> None:
    """I17."""
    cache = await holdfast.connect_async(remote_master.address)
    assert connection_of(cache) is not None
    connection_of(cache).close()
    came, answer = hold_the_next_welcome(remote_master)
    asking = asyncio.create_task(cache.exists("key"))
    await asyncio.to_thread(wait_until, came.is_set)
    await cache.close()
    answer.set()
    with pytest.raises(errors.ClientClosed):
        async with asyncio.timeout(20):
            await asking
    assert connection_of(cache).closed


async def test_a_call_ends_at_its_own_deadline_while_another_one_dials(
    remote_master: FakeMaster,
) -> None:
    """I10: whoever dials may have much more time."""
    cache = await holdfast.connect_async(remote_master.address, timeout=60)
    runner_of(cache)._options = LinkOptions(connect_seconds=60.0)
    assert connection_of(cache) is not None
    connection_of(cache).close()
    came, answer = hold_the_next_welcome(remote_master)
    try:
        dialing = asyncio.create_task(cache.exists("key"))
        await asyncio.to_thread(wait_until, came.is_set)
        cache.timeout = 0.3
        async with asyncio.timeout(15):
            # If it had waited for its turn to dial, it would say that no time was left to connect.
            with pytest.raises(errors.Unreachable, match="no master could be reached before the deadline"):
                await cache.exists("key")
        assert not dialing.done()
        answer.set()
        assert await dialing is False
    finally:
        answer.set()
        await cache.close()


def test_a_standby_that_names_a_stopped_primary_is_asked_again_soon(
    master: FakeMaster, node: Served, connect: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """I10: until it takes over itself. The stopped one takes connections, and would be waited for each time."""
    with FakeMaster(node) as standby:
        # To wait a second for the stopped one each time would take longer than the whole call may.
        cache = connect(f"{master.address},{standby.address}", timeout=6)
        standby.judge = first(m.Hello, *[m.Failed("not_leader", "not yet", hint=master.address)] * 6)
        master.judge = lambda request: Act.SILENCE
        monkeypatch.setattr(masters, "LOST_SHARE", 0.005)
        master.cut()
        assert cache.exists("key") is False
        assert len(standby.asked(m.Hello)) == 7

"""Puts and their grants: ended, torn, idle, extended, interrupted, cancelled."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import Mock

import pytest

import holdfast
from holdfast.client.arguments import PLAIN_PUT
from holdfast.client.bytes import nodes
from holdfast.client.operations import puts
from holdfast.client.state import grants
from holdfast.messages import requests as m
from holdfast.messages.shapes import Message
from holdfast.operations.effects import Call
from holdfast.transport.shared_memory import Mapping
from tests.client.fake_master import Act, FakeMaster, first
from tests.client.inside import connection_of, core_of, runner_of
from tests.node.rig import Served
from tests.waiting import wait_until

Connect = Callable[..., Any]


@pytest.fixture(params=["mapped", "tcp"])
def store(request: pytest.FixtureRequest, node: Served) -> Iterator[FakeMaster]:
    with FakeMaster(node, local=request.param == "mapped") as master:
        yield master


@pytest.mark.parametrize("code", ["grant_timed_out", "grant_refused"])
@pytest.mark.parametrize("size", [10, 100_000])
def test_a_grant_that_ended_is_replaced(master: FakeMaster, connect: Connect, code: str, size: int) -> None:
    """I11: and given back, once nobody writes to it."""
    cache = connect(master.address)
    master.judge = first(m.CommitPuts, m.Failed(code, "it ended"))
    assert cache.put("key", b"x" * size) is True
    assert cache.get("key") == b"x" * size
    old, new = [request.grant for request in master.asked(m.GrantRanges)]
    assert old != new
    assert (old, True) in master.returned


def test_a_write_that_broke_off_takes_another_grant_and_leaves_the_old_one_unsettled(
    remote_master: FakeMaster, connect: Connect
) -> None:
    """I11: bytes may still be under way, so the node must close the connection before anyone gets the range."""
    cache = connect(remote_master.address)
    node = remote_master.node
    assert node is not None
    secret, node.tickets.key = node.tickets.key, b"another, so that the MAC is refused"

    def judge(request: Message) -> Act:
        if isinstance(request, m.ReturnGrants):
            node.tickets.key = secret
        return Act.USUAL

    remote_master.judge = judge
    assert cache.put("key", b"x" * 100_000) is True
    assert cache.get("key") == b"x" * 100_000
    old = remote_master.asked(m.GrantRanges)[0].grant
    assert (old, False) in remote_master.returned
    assert (old, True) not in remote_master.returned


def test_an_idle_grant_is_given_back_in_the_background(master: FakeMaster, monkeypatch: pytest.MonkeyPatch) -> None:
    """I11."""
    monkeypatch.setattr(grants, "IDLE_SECONDS", 0.05)
    monkeypatch.setattr(grants, "CARRIED_WITHIN_SECONDS", 0.05)
    with holdfast.connect(master.address) as cache:
        cache.put("small", b"x")
        cache.put("large", b"x" * 100_000)
        wait_until(lambda: {grant for grant, settled in master.returned if settled} == set(master.grants))
        assert cache.put("again", b"x") is True


def test_puts_one_after_another_do_not_wake_the_keeper_each(
    master: FakeMaster, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    master.grants_ahead = False
    cache = connect(master.address)
    runner = runner_of(cache)
    event = runner._keeper_roused if hasattr(runner, "_keeper_roused") else runner._keeper._roused
    value = b"x" * 33_000
    cache.put("first", value)
    woken = Mock(wraps=event.set)
    monkeypatch.setattr(event, "set", woken)
    for number in range(60):
        assert cache.put(f"key {number}", value) is True
    assert len(master.asked(m.GrantRanges)) == 61
    assert woken.call_count < 30


def test_a_grant_in_use_is_extended(master: FakeMaster, connect: Connect) -> None:
    """I11: while a slow commit is under way."""
    master.grant_timeout_ms = 600
    master.judge = first(m.CommitPuts, *[m.Failed("no_room", "wait")] * 6)
    with holdfast.connect(master.address) as cache:
        assert cache.put("key", b"x" * 100_000) is True
        assert master.asked(m.ExtendGrants)


@pytest.mark.parametrize("size", [10, 100_000])
def test_a_put_that_is_interrupted_anywhere_holds_nothing(store: FakeMaster, size: int) -> None:
    """I11: whatever step it had come to, its grant is given back or is there for the next put."""
    for steps in range(12):
        with holdfast.connect(store.address) as cache:
            core, runner = core_of(cache), runner_of(cache)
            deadline = core.clock() + 20
            put = puts.put(core, f"key {steps}", memoryview(b"x" * size), PLAIN_PUT, deadline)
            effect = next(put)
            with contextlib.suppress(StopIteration):
                for _ in range(steps):
                    assert connection_of(cache) is not None
                    if isinstance(effect, Message | Call):
                        message = effect.message if isinstance(effect, Call) else effect
                        effect = put.send(connection_of(cache).call(message, deadline))
                    else:
                        effect = put.send(runner._do(effect))
            put.close()
            assert all(grant.users == 0 and grant.kind is not None for grant in core.grants.by_id.values())
    assert {grant for grant, _ in store.returned} >= set(store.grants)


async def test_a_cancelled_put_gives_its_grant_back_when_its_thread_has_stopped(
    master: FakeMaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I11."""
    copying, go_on = threading.Event(), threading.Event()
    copy_in = nodes.copy_in

    def slow_copy(*given: Any) -> int:
        copying.set()
        assert go_on.wait(20)
        return int(copy_in(*given))

    monkeypatch.setattr("holdfast.client.bytes.nodes.copy_in", slow_copy)
    async with holdfast.connect_async(master.address) as cache:
        put = asyncio.create_task(cache.put("key", b"x" * 300_000))
        await asyncio.to_thread(copying.wait, 20)
        put.cancel()
        with pytest.raises(asyncio.CancelledError):
            await put
        (held,) = core_of(cache).grants.by_id.values()
        assert held.users == 1
        go_on.set()
        await asyncio.to_thread(wait_until, lambda: not core_of(cache).grants.by_id)
        assert core_of(cache).grants.finished == [held.id]
    assert (held.id, True) in master.returned
    assert not master.objects


@pytest.mark.parametrize("size", [10, 100_000])
def test_memory_unmapped_under_a_put_takes_it_elsewhere(
    master: FakeMaster, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """I2: another thread learns that the node's memory is void while this one is about to copy."""
    copy_in = nodes.copy_in
    closed: list[Mapping] = []

    def copy_after_unmapping(mapping: Mapping, *given: Any) -> int:
        if not closed:
            closed.append(mapping)
            mapping.close()
            core_of(cache).bytes._writing.clear()
        return copy_in(mapping, *given)

    monkeypatch.setattr("holdfast.client.bytes.nodes.copy_in", copy_after_unmapping)
    with holdfast.connect(master.address) as cache:
        assert cache.put("key", b"x" * size) is True
        assert cache.get("key") == b"x" * size
    assert closed


@pytest.mark.parametrize("size", [10, 100_000])
def test_a_put_sends_no_commit_when_the_nodes_life_line_has_ended(master: FakeMaster, size: int) -> None:
    """The bytes are copied, the node hangs up before the commit: another grant, and none of the old memory."""
    hung_up: list[int] = []
    node = master.node
    assert node is not None

    def hang_up() -> None:
        for attachment in list(node.attach.attachments):
            hung_up.append(attachment.writer)
            attachment.socket.shutdown(socket.SHUT_RDWR)

    with holdfast.connect(master.address) as cache:
        assert cache.put("before", b"x" * 10) is True
        [before] = core_of(cache).grants.by_id
        core = core_of(cache)
        check_nodes = core.check_nodes

        def hang_up_first(written: Any) -> None:
            if not hung_up:
                hang_up()
            check_nodes(written)

        core.check_nodes = hang_up_first  # type: ignore[method-assign]
        commits = len(master.asked(m.CommitPuts))
        assert cache.put("key", b"x" * size) is True
        assert cache.get("key") == b"x" * size
        [commit] = master.asked(m.CommitPuts)[commits:]
        assert commit.grant != before
        assert before not in core_of(cache).grants.by_id, "what was held there is let go of"
        assert hung_up

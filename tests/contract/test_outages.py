"""Coordination that stops answering and comes back: no answer past a deadline, nothing lost (I1, I10, I12)."""

from __future__ import annotations

import asyncio
import signal
from contextlib import aclosing

import pytest

from holdfast.coordination.backends import open_coordination
from holdfast.coordination.interface import CoordinationLost, Deposed, Term
from holdfast.coordination.leader_lookup import find_leader
from holdfast.errors import ReplyLost
from tests.contract.places import Place
from tests.contract.servers import leader_process, term_after
from tests.contract.stories import append_all, has_passed, is_valid, read_log, soon, until
from tests.ports import free_ports


async def append_at_last(term: Term, index: int, batch: bytes) -> bool:
    """Append as the log's writer does: the same bytes again while the outcome is unknown. False: deposed."""
    async with asyncio.timeout(30):
        while True:
            try:
                await term.append(index, batch)
            except (CoordinationLost, ReplyLost):
                await asyncio.sleep(0.05)
            except Deposed:
                return False
            else:
                return True


async def test_an_outage_ends_validity_and_appends_fail_and_afterwards_things_go_on(place: Place) -> None:
    one, two = await place.open(leader_ttl_ms=1500), await place.open(leader_ttl_ms=1500)
    term = await soon(one.campaign("one:7070"))
    await append_all(term, 1, [b"a", b"b"])
    async with aclosing(two.follow(0)) as batches:
        got = await soon(anext(batches))
        place.stop_answering()
        with pytest.raises((CoordinationLost, ReplyLost)):
            await soon(term.append(3, b"c"))
        await until(lambda: has_passed(term), "I12: validity passes while nothing can be renewed")
        place.answer_again()
        if await append_at_last(term, 3, b"c"):
            await until(lambda: is_valid(term), "the same term goes on")
        else:
            # The server had counted the leader out. Then it was told so, and the next term goes on.
            await soon(term.ended())
            after = await soon(one.campaign("one:7070"))
            index = await one.last_index() + 1
            assert await append_at_last(after, index, b"c")
        async with asyncio.timeout(20):
            while got[-1][1] != b"c":
                got += await anext(batches)
    assert [batch for _, batch in got][:2] == [b"a", b"b"]
    assert got == await read_log(two, 0, got[-1][0])


async def test_a_campaign_outlasts_an_outage_and_does_not_take_it_for_a_death(place: Place) -> None:
    one, two = await place.open(leader_ttl_ms=1500), await place.open(leader_ttl_ms=1500)
    term = await soon(one.campaign("one:7070"))
    waiting = asyncio.create_task(two.campaign("two:7070"))
    await append_all(term, 1, [b"a"])
    place.stop_answering()
    with pytest.raises((CoordinationLost, ReplyLost)):
        await soon(term.append(2, b"b"))
    place.answer_again()
    await until(lambda: is_valid(term), "the leader is valid again")
    assert not waiting.done()
    await term.resign()
    assert (await soon(waiting)).epoch == term.epoch + 1


@pytest.mark.parametrize("kind", ["etcd", "zookeeper"])
async def test_a_stopped_leader_is_replaced_for_its_silence_and_finds_itself_deposed(place: Place) -> None:
    """I12, I3: it is not dead, whoever sees it, so its whole time must pass."""
    coordination = await place.open(leader_ttl_ms=1500)
    with leader_process(place.url()) as process:
        term = await term_after(coordination, process, signal.SIGSTOP)
        assert (term.epoch, term.previous_address) == (2, "process:7070")
        # A guess: ZooKeeper dropped it so near the end of its time that it may have been renewed just before.
        assert term.proof in ("silence", "expired", "guess")
        await append_all(term, 2, [b"after"])
        process.send_signal(signal.SIGCONT)
        await until(lambda: asyncio.to_thread(lambda: process.poll() is not None), "the deposed process ends")
    assert await read_log(coordination, 0, 2) == [(1, b"from the process"), (2, b"after")]


@pytest.mark.parametrize("kind", ["sqlite", "etcd", "zookeeper"])
async def test_what_cannot_be_reached_says_so(kind: str) -> None:
    """I10."""
    (port,) = free_ports(1)
    url = "sqlite:///nowhere/at/all.db" if kind == "sqlite" else f"{kind}://127.0.0.1:{port}/CLUSTER"
    with pytest.raises(CoordinationLost):
        await soon(open_coordination(url))
    with pytest.raises(CoordinationLost):
        await soon(asyncio.to_thread(find_leader, url, 2.0))

"""The watch of etcd ends whenever it is told to, so that it can be made again at another member; what follows it reads
once for each change, and not once more to find nothing."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest

from holdfast.coordination.etcd import rpc
from holdfast.coordination.etcd.backend import EtcdCoordination
from holdfast.coordination.etcd.channel import EtcdChannel
from holdfast.coordination.etcd.log_watch import FOLLOW_EVERY_S
from holdfast.coordination.urls import parse_location
from tests.contract.servers import Server
from tests.contract.stories import append_all, read_log, soon, until_true


@pytest.mark.parametrize("turns", [1, 2, 5, 20])
async def test_a_watch_at_a_member_that_says_nothing_ends_when_another_is_turned_to(turns: int) -> None:
    """I10: otherwise nobody would be told of a change any more, only find it by looking now and then."""
    with socket.create_server(("127.0.0.1", 0)) as silent, socket.create_server(("127.0.0.1", 0)) as other:
        hosts = ",".join(f"127.0.0.1:{one.getsockname()[1]}" for one in (silent, other))
        channel = EtcdChannel(parse_location(f"etcd://{hosts}/c", "c"), 1.0)

        async def watch() -> None:
            async for _ in channel.watch([rpc.WatchCreateRequest(key=b"leader")]):
                raise AssertionError("nobody says anything")

        watching = asyncio.create_task(watch())
        for _ in range(turns):
            await asyncio.sleep(0)
        channel._next_member(0)
        with pytest.raises(asyncio.CancelledError):  # That of the call, which whoever watches takes for its end.
            await soon(watching)
        await channel.close()


async def test_a_follower_of_a_busy_log_reads_several_batches_at_once(etcd_server: Server) -> None:
    place = parse_location(f"etcd://127.0.0.1:{etcd_server.port}/busy", "busy")
    one, two = EtcdCoordination(place, 5000), EtcdCoordination(place, 5000)
    await one.open()
    await two.open()
    term = await soon(one.campaign("one:7070"))
    reads, read = 0, two.channel.read

    async def counted(method: Any, request: Any) -> Any:
        nonlocal reads
        reads += 1
        return await read(method, request)

    two.channel.read = counted  # type: ignore[method-assign]
    following = asyncio.create_task(read_log(two, 0, 100))
    began = two.timing.clock()
    await append_all(term, 1, [b"batch"] * 100)
    assert await soon(following) == [(number, b"batch") for number in range(1, 101)]
    # One each 20 ms; the leader is not looked for here, and the place of the log's end is asked for once.
    assert reads <= (two.timing.clock() - began) / FOLLOW_EVERY_S + 4
    await one.close()
    await two.close()


async def test_a_busy_log_is_not_watched_and_one_that_has_become_quiet_is_again(etcd_server: Server) -> None:
    place = parse_location(f"etcd://127.0.0.1:{etcd_server.port}/quiet", "quiet")
    one, two = EtcdCoordination(place, 5000), EtcdCoordination(place, 5000)
    two.look_every_s = 600.0  # So that only the watch can tell.
    await one.open()
    await two.open()
    told, watch = 0, two.channel.watch

    async def counted(wanted: list[Any]) -> AsyncIterator[Any]:
        nonlocal told
        async with aclosing(watch(wanted)) as answers:  # type: ignore[type-var]
            async for answer in answers:
                told += any(event.kv.key == two.keys.tail for event in answer.events)
                yield answer

    two.channel.watch = counted  # type: ignore[method-assign, assignment]
    term = await soon(one.campaign("one:7070"))
    got: list[int] = []

    async def follow() -> None:
        async for batches in two.follow(0):
            got.extend(index for index, _ in batches)

    following = asyncio.create_task(follow())
    for burst in range(3):
        await append_all(term, 100 * burst + 1, [b"batch"] * 100)
        await until_true(lambda last=100 * (burst + 1): got and got[-1] == last, "the follower has it all")  # type: ignore[misc]
    assert got == list(range(1, 301))
    following.cancel()
    await asyncio.wait([following])
    assert told < 150, "of 300 batches"
    await one.close()
    await two.close()

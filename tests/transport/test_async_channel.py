"""Many coroutines on one connection: what they ask for goes out together, and each has its own deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from holdfast.errors import DeadlineExceeded, ReplyLost
from holdfast.instant import now_seconds
from holdfast.messages.requests import Exists, Hello, Presence
from holdfast.transport.async_channel import AsyncChannel
from tests.transport.scripted import Peer, Serve, soon


async def test_what_is_asked_in_one_turn_of_the_loop_is_written_at_once(scripted: Callable[[Serve], str]) -> None:
    def serve(peer: Peer) -> None:
        peer.welcome()
        peer.answer_until_the_end()

    channel = await AsyncChannel.open(scripted(serve), Hello(5), soon())
    written: list[bytes] = []
    assert channel._transport is not None
    write = channel._transport.write

    def counted(data: bytes) -> None:
        written.append(data)
        write(data)

    channel._transport.write = counted  # type: ignore[assignment, method-assign]
    try:
        for _ in range(3):
            replies = await asyncio.gather(*(channel.call(Exists([f"{each}"]), soon()) for each in range(64)))
            assert replies == [Presence(b"%d" % each) for each in range(64)]
    finally:
        channel.close()
    # The first of each turn finds nobody to go with.
    assert len(written) <= 3 * 2


async def test_each_call_has_its_own_deadline_whatever_the_order(scripted: Callable[[Serve], str]) -> None:
    """I10."""

    def serve(peer: Peer) -> None:
        peer.welcome()
        silent = 4
        for _ in range(silent):
            peer.request()
        peer.answer_until_the_end()

    channel = await AsyncChannel.open(scripted(serve), Hello(5), soon(), silence_seconds=60)

    async def one(seconds: float) -> None:
        deadline = soon(seconds)
        with pytest.raises(DeadlineExceeded, match="may have been done"):
            await channel.call(Exists(["key"]), deadline)
        assert now_seconds() >= deadline

    try:
        async with asyncio.timeout(20):
            await asyncio.gather(one(0.6), one(0.1), one(0.3), one(0.2))
        # The connection is as good as before, and so is its timer.
        assert await channel.call(Exists(["key"]), soon()) == Presence(b"key")
    finally:
        channel.close()


async def test_what_was_gathered_when_the_connection_ended_is_told_as_uncertain(
    scripted: Callable[[Serve], str],
) -> None:
    def serve(peer: Peer) -> None:
        peer.welcome()
        peer.answer_until_the_end()

    channel = await AsyncChannel.open(scripted(serve), Hello(5), soon())
    calls = [asyncio.ensure_future(channel.call(Exists(["key"]), soon())) for _ in range(3)]
    await asyncio.sleep(0)
    channel.close()
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [ReplyLost] * 3

"""The watch of etcd ends whenever it is told to, so that it can be made again at another member."""

from __future__ import annotations

import asyncio
import socket

import pytest

from holdfast.coordination.etcd_channel import EtcdChannel
from holdfast.coordination.locations import parse_location
from tests.contract.stories import soon


@pytest.mark.parametrize("turns", [1, 2, 5, 20])
async def test_a_watch_at_a_member_that_says_nothing_ends_when_another_is_turned_to(turns: int) -> None:
    """I10: otherwise nobody would be told of a change any more, only find it by looking now and then."""
    with socket.create_server(("127.0.0.1", 0)) as silent, socket.create_server(("127.0.0.1", 0)) as other:
        hosts = ",".join(f"127.0.0.1:{one.getsockname()[1]}" for one in (silent, other))
        channel = EtcdChannel(parse_location(f"etcd://{hosts}/c", "c"), 1.0)

        async def watch() -> None:
            async for _ in channel.watch([b"leader", b"tail"], b"published/"):
                raise AssertionError("nobody says anything")

        watching = asyncio.create_task(watch())
        for _ in range(turns):
            await asyncio.sleep(0)
        channel._next_member(0)
        with pytest.raises(asyncio.CancelledError):  # That of the call, which whoever watches takes for its end.
            await soon(watching)
        await channel.close()

"""What is published in ZooKeeper, when another process comes in between: nothing fails, and nothing stays for ever."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from holdfast.coordination.backends import open_coordination
from holdfast.coordination.interface import CoordinationLost
from holdfast.coordination.zookeeper.backend import ZooKeeperCoordination
from tests.contract.places import Place
from tests.contract.servers import Server
from tests.contract.stories import until

Pair = tuple[ZooKeeperCoordination, ZooKeeperCoordination]


@pytest_asyncio.fixture
async def pair(zookeeper_server: Server) -> AsyncIterator[Pair]:
    place = Place("zookeeper", f"zookeeper://127.0.0.1:{zookeeper_server.port}/CLUSTER")
    one, two = [await open_coordination(place.url()) for _ in range(2)]
    assert isinstance(one, ZooKeeperCoordination)
    assert isinstance(two, ZooKeeperCoordination)
    yield one, two
    await one.close()
    await two.close()


async def test_a_value_that_is_published_anew_while_a_reader_takes_it_away_stays(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I10: the master that was away for a while comes back in that moment."""
    writer, reader = pair
    await writer.publish("masters/a", b"before", 50)
    assert await reader.read("masters/a") == b"before"
    content, _ = writer.client.get(writer.paths.of_published("masters/a"))
    delete = reader.client.delete_async

    def deleting(path: str, version: int) -> Any:
        writer.client.set(path, content.replace(b"before", b"after!"))
        return delete(path, version)

    monkeypatch.setattr(reader.client, "delete_async", deleting)

    async def is_past() -> bool:
        return await reader.read("masters/a") is None

    await until(is_past, "its time has passed for this reader")
    monkeypatch.undo()
    assert await reader.read("masters/a") == b"after!"


async def test_a_name_that_another_makes_in_between_is_published_all_the_same(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = pair
    create = one.client.create_async

    def creating(path: str, *given: Any, **more: Any) -> Any:
        if not two.client.exists(path):
            two.client.create(path, bytes(8) + b"the other's")
        return create(path, *given, **more)

    monkeypatch.setattr(one.client, "create_async", creating)
    await one.publish("service/cache", b"ours", None)
    assert await two.read("service/cache") == b"ours"


async def test_what_is_past_is_swept_after_an_outage_too(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """I17: a sweep that ZooKeeper does not answer is made again, or the value would stay for ever."""
    one, two = pair
    await one.publish("renewals/1", b"for a moment", 1)

    async def no_answer(name: str) -> bytes | None:
        raise CoordinationLost("ZooKeeper does not answer; nothing was changed")

    async def fails() -> bool:
        try:
            await one.publish("renewals/2", b"more", None)
        except CoordinationLost:
            return True
        return False

    monkeypatch.setattr(one, "read", no_answer)
    await until(fails, "the sweep comes to it")
    monkeypatch.undo()
    await one.publish("renewals/2", b"more", None)
    children = await two.session.read(two.client.get_children_async(two.paths.published))
    assert [two.paths.published_name(child) for child in children] == ["renewals/2"]

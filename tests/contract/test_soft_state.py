"""Names published for others on every backend, and finding the leader from outside."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.coordination.interface import Leader
from holdfast.coordination.leader_lookup import find_leader
from tests.contract.places import Place
from tests.contract.stories import soon, until


async def test_what_is_published_can_be_read_listed_and_taken_back(place: Place) -> None:
    one, two = await place.open(), await place.open()
    await one.publish("snapshots/1", b"first", None)
    await one.publish("snapshots/2", b"second", None)
    await one.publish("service/cache", b"here:7070", None)
    await one.publish("snapshots/2", b"second again", None)
    assert await two.read("snapshots/1") == b"first"
    assert await two.read("snapshots/3") is None
    assert await two.list("snapshots/") == {"snapshots/1": b"first", "snapshots/2": b"second again"}
    assert await two.list("") == {
        "service/cache": b"here:7070",
        "snapshots/1": b"first",
        "snapshots/2": b"second again",
    }
    await two.unpublish("snapshots/1")
    await two.unpublish("snapshots/1")
    assert await one.list("snapshots/") == {"snapshots/2": b"second again"}


async def test_what_is_published_for_a_time_goes_away_and_the_rest_stays(place: Place) -> None:
    """I17: soft state does not pile up."""
    one, two = await place.open(), await place.open()
    await one.publish("renewals/1", b"for a while", 400)
    await one.publish("renewals/2", b"for ever", None)
    assert await one.read("renewals/1") == b"for a while"

    async def is_gone() -> bool:
        return list(await one.list("renewals/")) == list(await two.list("renewals/")) == ["renewals/2"]

    await until(is_gone, "the value with a time to live is gone")


async def test_the_leader_is_found_from_outside_and_so_is_a_service(place: Place) -> None:
    coordination = await place.open()

    async def found(url: str) -> Leader | None:
        if place.kind == "memory":
            return await asyncio.to_thread(find_leader, url, 5.0)
        return await soon(asyncio.to_thread(find_leader, url, 5.0))

    assert await found(place.url()) is None
    term = await soon(coordination.campaign("one:7070"))
    assert await found(place.url()) == Leader(1, "one:7070")
    assert await found(place.url(service="cache")) is None
    await coordination.publish("service/cache", b"two:7070", None)
    assert await found(place.url(service="cache")) == Leader(0, "two:7070")
    await term.resign()
    assert await found(place.url()) is None


@pytest.mark.parametrize("name", ["with space", "a/b/c", "Ümlaut-%2F", "."])
async def test_any_name_can_be_published(place: Place, name: str) -> None:
    coordination = await place.open()
    await coordination.publish(name, b"value", None)
    assert await coordination.list("") == {name: b"value"}
    assert await coordination.read(name) == b"value"

"""Where clients and nodes look for the primary."""

from __future__ import annotations

import socket

import pytest

import holdfast
from holdfast.coordination import leader_lookup
from holdfast.coordination.interface import Leader
from holdfast.coordination.leader_lookup import find_leader
from holdfast.coordination.memory import MemoryCoordination, named_store
from holdfast.errors import BadValue, Unreachable
from holdfast.operations.masters import LOST_SHARE, ONE_MASTER_SECONDS, Masters, Round


def test_given_addresses_are_tried_in_turn_and_a_hint_goes_first() -> None:
    masters = Masters("a:1,b:2,c:3")
    assert masters.candidates() == ["a:1", "b:2", "c:3"]
    masters.failed()
    assert masters.candidates() == ["b:2", "c:3", "a:1"]
    masters.hinted("c:3")
    assert masters.candidates() == ["c:3", "b:2", "a:1"]
    assert masters.candidates() == ["b:2", "c:3", "a:1"], "a hint is good once"
    masters.hinted("elsewhere:9")
    assert masters.candidates()[0] == "elsewhere:9"
    assert not masters.looks_up


def test_a_master_whose_connection_ended_is_tried_last_however_it_was_found() -> None:
    masters = Masters("a:1,b:2,c:3")
    masters.hinted("b:2")
    assert masters.candidates() == ["b:2", "a:1", "c:3"]
    for _ in range(2):
        masters.lost("b:2")
        assert masters.candidates() == ["c:3", "a:1", "b:2"]
    masters.lost("unix:@somewhere")
    assert masters.candidates() == ["c:3", "a:1", "b:2"]


def test_a_master_whose_connection_ended_is_waited_for_briefly_and_longer_each_time() -> None:
    masters = Masters("a:1,b:2")
    assert masters.patience("a:1") == ONE_MASTER_SECONDS
    patience = []
    for _ in range(5):
        masters.lost("a:1")
        patience.append(masters.patience("a:1"))
        assert masters.patience("b:2") == ONE_MASTER_SECONDS
    assert patience == [*(LOST_SHARE * times * ONE_MASTER_SECONDS for times in (1, 2, 4)), *[ONE_MASTER_SECONDS] * 2]
    masters.found()
    assert masters.patience("a:1") == ONE_MASTER_SECONDS
    masters.lost("a:1")
    assert masters.patience("a:1", 10.0) == 10.0 * LOST_SHARE


def test_the_only_master_is_given_all_the_time_after_it_was_lost() -> None:
    """There is nobody else to ask meanwhile."""
    masters = Masters("a:1")
    masters.lost("a:1")
    assert masters.patience("a:1") == ONE_MASTER_SECONDS


async def test_coordination_is_asked_each_time_the_primary_is_lost() -> None:
    masters = Masters("memory://whereabouts?cluster=prod")
    assert masters.looks_up
    with pytest.raises(Unreachable, match="no primary"):
        masters.candidates()
    coordination = MemoryCoordination(named_store("whereabouts"), "prod", 5_000)
    term = await coordination.campaign("first:1")
    assert masters.candidates() == ["first:1"]
    await term.resign()
    await coordination.campaign("second:2")
    assert masters.candidates() == ["second:2"]
    await coordination.close()


async def test_silent_coordination_is_waited_for_no_longer_than_the_call_may_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: list[float] = []

    def find(url: str, timeout: float) -> Leader | None:
        given.append(timeout)
        return find_leader(url, timeout)

    monkeypatch.setattr(leader_lookup, "find_leader", find)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"etcd://127.0.0.1:{silent.getsockname()[1]}/prod"
        with pytest.raises(Unreachable):
            holdfast.connect(url, timeout=0.3)
        with pytest.raises(Unreachable):
            await holdfast.connect_async(url, timeout=0.3)
        assert len(given) >= 2
        assert max(given) <= 0.3
        with pytest.raises(Unreachable, match="deadline passed"):
            Masters(url).candidates(0.0)


async def test_a_service_name_is_looked_up_once() -> None:
    coordination = MemoryCoordination(named_store("services"), "prod", 5_000)
    await coordination.publish("service/cache", b"one:1", None)
    masters = Masters("memory://services?cluster=prod&service=cache")
    assert masters.candidates() == ["one:1"]
    await coordination.publish("service/cache", b"two:2", None)
    assert masters.candidates() == ["one:1"]
    await coordination.close()


def test_an_address_that_is_none_is_refused() -> None:
    for text in ("", "carrier-pigeon://x/y", "host:port"):
        with pytest.raises(BadValue):
            Masters(text)


def test_a_round_of_knocking_follows_each_hint_once_and_ends() -> None:
    """I10: two standbys that name each other do not keep anybody going around."""
    masters = Round(["one", "two"])
    knocked = []
    while (address := masters.next()) is not None:
        knocked.append(address)
        masters.hinted({"one": "three", "three": "one", "two": ""}[address])
    assert knocked == ["one", "three", "two"]


def test_a_master_that_another_one_names_is_tried_before_its_turn_and_not_again() -> None:
    masters = Round(["one", "two", "three"])
    assert masters.next() == "one"
    masters.hinted("three")
    assert [masters.next(), masters.next(), masters.next()] == ["three", "two", None]

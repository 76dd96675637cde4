"""Reservations and held leases against a master that does what the test asks, through both shells."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import errors
from holdfast.client.operations.reservations import WrittenPart
from holdfast.messages import requests as m
from holdfast.messages.shapes import Message
from tests.client.faces import AwaitedFace
from tests.client.fake_master import Act, FakeMaster, closed_port, first
from tests.client.inside import core_of
from tests.waiting import wait_until

Connect = Callable[..., Any]


def until(cache: Any, condition: Callable[[], object], what: str) -> None:
    """Wait for it, while the loop runs where there is one."""

    def turned() -> object:
        if isinstance(cache, AwaitedFace):
            cache.loop.run_until_complete(asyncio.sleep(0.01))
        return condition()

    wait_until(turned, what=what)


def test_ranges_that_were_written_join_and_never_overlap() -> None:
    written = WrittenPart()
    assert written.add(10, 20)
    assert written.add(30, 40)
    assert written.add(20, 30)
    for start, stop in ((0, 11), (39, 50), (15, 16), (0, 50), (10, 20)):
        assert not written.add(start, stop)
    assert written.add(0, 10)
    assert written.add(40, 41)
    assert written.total == 41


def test_a_batch_is_one_request_and_its_commit_another(connect: Connect, master: FakeMaster) -> None:
    cache = connect(master.address)
    made = cache.reserve_many({f"k{number}": 100 for number in range(50)})
    for reservation in made:
        reservation.write(50, b"b" * 50)
        reservation.write(0, b"a" * 50)
    assert cache.commit_many(made) == [True] * 50
    assert len(master.asked(m.GrantRanges)) == len(master.asked(m.CommitPuts)) == 1
    assert cache.get("k7") == b"a" * 50 + b"b" * 50
    until(cache, lambda: master.returned, "the grant is given back when the last one has ended")


def test_a_commit_waits_for_what_its_reservation_was_made_with(connect: Connect, master: FakeMaster) -> None:
    cache = connect(master.address)
    made = [cache.reserve(f"k{each}", 8, durability=each) for each in ("durable", "standby", "memory", None)]
    for reservation in made:
        reservation.write(0, b"12345678")
    assert cache.commit_many(made) == [True] * 4
    assert [commit.durability for commit in master.asked(m.CommitPuts)] == ["durable", "standby", "memory", ""]
    with pytest.raises(errors.BadValue, match="durability is 'durable', 'standby' or 'memory', not 'sometimes'"):
        cache.reserve("another", 8, durability="sometimes")


def test_several_batches_are_committed_together(connect: Connect, master: FakeMaster) -> None:
    cache = connect(master.address)
    made = [cache.reserve(f"k{number}", 4) for number in range(3)]
    for reservation in made:
        reservation.write(0, b"data")
    master.judge = first(m.CommitPuts, Act.DO_AND_DROP)
    assert cache.commit_many(made) == [True] * 3, "a lost answer is asked for again"
    with pytest.raises(errors.Refused, match="committed already"):
        made[0].commit()


def test_a_doubled_key_costs_its_place(connect: Connect, master: FakeMaster) -> None:
    cache = connect(master.address)
    one, double, other = cache.reserve_many([("k", 4), ("k", 4), ("l", 4)])
    assert isinstance(double, errors.BadValue)
    cache.abandon_many([one, other])
    with pytest.raises(errors.Refused, match="abandoned"):
        one.write(0, b"data")


def test_beyond_the_window_is_refused_at_once(connect: Connect, master: FakeMaster) -> None:
    """The fake's window is 4 MiB."""
    cache = connect(master.address)
    fits, beyond = cache.reserve_many({"fits": 3 << 20, "beyond": 2 << 20})
    assert isinstance(beyond, errors.WindowFull)
    with pytest.raises(errors.WindowFull):
        cache.reserve("more", 2 << 20)
    fits.abandon()
    assert core_of(cache).grants.bytes_in_use() == 0


def test_a_write_that_fails_costs_the_reservation_and_no_other(connect: Connect, remote_master: FakeMaster) -> None:
    """I11: bytes may be under way, so the grant is given back as torn, once the others have ended."""
    master = remote_master
    cache = connect(master.address, timeout=10)
    lost, kept = cache.reserve_many({"lost": 8, "kept": 8})
    kept.write(0, b"complete")
    core = core_of(cache)
    places = dict(core.segments.places)
    for handle, place in places.items():
        core.segments.places[handle] = type(place)(
            place.handle, place.name, place.size_bytes, "127.0.0.1:1", "", place.host
        )
    core.bytes._idle.clear()
    with pytest.raises(errors.GrantTimedOut, match="lost"):
        lost.write(0, b"half")
    core.segments.places.update(places)
    with pytest.raises(errors.Refused, match="was lost"):
        lost.commit()
    assert kept.commit() is True
    (grant,) = master.grants
    until(cache, lambda: (grant, False) in master.returned, "the grant is given back as torn")


def test_a_reservation_that_nobody_has_any_more_is_given_back(connect: Connect, master: FakeMaster) -> None:
    master.grant_timeout_ms = 300
    cache = connect(master.address)
    reservation = cache.reserve("forgotten", 100)
    (grant,) = master.grants
    del reservation
    gc.collect()
    until(cache, lambda: (grant, True) in master.returned, "it is abandoned")


def test_a_grant_that_has_ended_does_not_take_others_with_it(connect: Connect, master: FakeMaster) -> None:
    """The master says how many of those named it extended, not which."""
    master.grant_timeout_ms = 300
    cache = connect(master.address)
    dead, alive = cache.reserve("dead", 4), cache.reserve("alive", 4)
    gone, stays = master.grants

    def judge(request: Message) -> Act | Message:
        if isinstance(request, m.ExtendGrants):
            return m.Done(sum(tuple(grant) != tuple(gone) for grant in request.grants))
        return Act.USUAL

    master.judge = judge
    extended = core_of(cache).grants.by_id[stays]
    before = extended.until
    until(cache, lambda: extended.until > before + 1, "the living one is extended again and again")
    assert dead is not None
    alive.write(0, b"data")
    assert alive.commit() is True


def test_held_leases_are_renewed_together_and_dropped_when_the_object_is_another(
    connect: Connect, master: FakeMaster
) -> None:
    master.lease_ttl_ms = 300
    cache = connect(master.address)
    keys = [f"k{number}" for number in range(20)]
    cache.put_many(dict.fromkeys(keys, b"data"))
    for key in keys:
        assert cache.lease_many([key]) == [4]
    asked = len(master.asked(m.Locate))
    until(cache, lambda: len(master.asked(m.Locate)) > asked + 1, "they are renewed")
    for request in master.asked(m.Locate)[asked:]:
        assert sorted(request.keys) == sorted(keys), "one request for all"
    core_of(cache).leases.clear()
    cache.put("k3", b"other", upsert=True)
    until(cache, lambda: "k3" not in core_of(cache).held_leases, "another object was not leased")
    cache.release_many(keys)
    assert not core_of(cache).held_leases


def test_a_failing_node_is_named_in_lookups(connect: Connect, remote_master: FakeMaster) -> None:
    master = remote_master
    cache = connect(master.address, timeout=20)
    cache.put("key", b"data")
    closed = closed_port()
    master.elsewhere = {1: closed, 2: closed}
    core_of(cache).segments.clear()
    core_of(cache).bytes.decided.clear()
    core_of(cache).bytes._idle.clear()
    core_of(cache).leases.clear()
    with pytest.raises(errors.NodeLost):
        cache.get("key")
    assert core_of(cache).bytes.failing
    cache.exists("key")
    assert master.asked(m.Exists)[-1].without == [1, 2], "both segments of that node"
    assert cache.lease_many(["key"]) == [0]

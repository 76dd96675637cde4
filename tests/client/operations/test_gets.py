"""Reads and their leases: when nothing is asked, when it is asked again, and when a view says that it was wrong."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any

import pytest

import holdfast
from holdfast import errors
from holdfast.messages import requests as m
from holdfast.messages.shapes import Message
from tests.client.fake_master import Act, FakeMaster, first
from tests.client.inside import core_of
from tests.waiting import wait_until

Connect = Callable[..., Any]


def test_a_live_lease_is_read_without_asking(master: FakeMaster, connect: Connect) -> None:
    cache = connect(master.address)
    large = os.urandom(600_000)
    cache.put("key", b"x" * 1000)
    cache.put("large", large)
    cache.get("key"), cache.get("large")
    before = len(master.requests)
    for _ in range(5):
        assert cache.get("key") == b"x" * 1000
        assert cache.get("large") == large
        assert cache.get_many(["key", "large"]) == {"key": b"x" * 1000, "large": large}
        assert cache.get_into("key", bytearray(1000)) == 1000
        with cache.view("large") as view:
            assert view == large
    assert len(master.requests) == before


@pytest.mark.parametrize("size", [10, 400_000])
def test_a_read_that_outlived_its_lease_asks_whether_the_object_is_still_there(
    master: FakeMaster, connect: Connect, size: int
) -> None:
    """I2: still there, so the bytes were right; not there, so they are read again."""
    master.lease_ttl_ms = 0
    cache = connect(master.address)
    data = b"x" * size
    cache.put("key", data)
    assert cache.get("key") == data
    assert len(master.asked(m.RenewLeases)) == 1
    master.judge = first(m.RenewLeases, m.Presence(b"\0"))
    assert cache.get("key") == data
    assert len(master.asked(m.RenewLeases)) == 3
    master.judge = first(m.RenewLeases, m.Presence(b"\0"))
    assert cache.get_many(["key"]) == {"key": data}
    assert len(master.asked(m.RenewLeases)) == 5


def old_and_newer(master: FakeMaster, connect: Connect) -> Any:
    """A client that stored two objects, and whose leases end at once."""
    master.lease_ttl_ms = 0
    cache = connect(master.address)
    cache.put("key", b"old")
    cache.put("new", b"newer")
    return cache


def test_an_object_replaced_while_it_was_read_is_read_again(master: FakeMaster, connect: Connect) -> None:
    """I2: the lease had ended, and the place belongs to another object now."""
    cache = old_and_newer(master, connect)

    def judge(request: Message) -> Act:
        if isinstance(request, m.RenewLeases):
            master.objects["key"] = master.objects["new"]
        return Act.USUAL

    master.judge = judge
    assert cache.get("key") == b"newer"


def test_the_same_id_in_another_history_is_another_object(master: FakeMaster, connect: Connect) -> None:
    """I2: the lease had ended, and the master that says `still there` is not the one that gave it."""
    cache = old_and_newer(master, connect)

    def judge(request: Message) -> Act:
        if isinstance(request, m.RenewLeases) and master.log_id == 7:
            master.log_id = 8
            master.objects["other"], master.objects["key"] = master.objects["key"], master.objects["new"]
            return Act.DROP
        return Act.USUAL

    master.judge = judge
    assert cache.get("key") == b"newer"


def test_a_view_whose_object_left_says_so_at_the_end(master: FakeMaster, connect: Connect) -> None:
    """I2."""
    master.lease_ttl_ms = 1
    cache = connect(master.address)
    cache.put("key", b"old")
    with pytest.raises(errors.LeaseLost, match="'key'"), cache.view("key") as view:
        assert view == b"old"
        master.objects.clear()
        wait_until(lambda: any(view.until < core_of(cache).clock() for view in core_of(cache).views))


def test_what_a_view_block_raises_is_what_is_seen(master: FakeMaster, connect: Connect) -> None:
    master.lease_ttl_ms = 0
    cache = connect(master.address)
    cache.put("key", b"old")
    with pytest.raises(ZeroDivisionError), cache.view("key"):
        master.objects.clear()
        raise ZeroDivisionError
    assert not core_of(cache).views


def test_an_open_view_keeps_its_lease(master: FakeMaster) -> None:
    """I2, I8: renewed in the background, and a renewal that says no is remembered."""
    master.lease_ttl_ms = 600
    with holdfast.connect(master.address) as cache:
        cache.put("key", b"old")
        with cache.view("key") as view:
            wait_until(lambda: len(master.asked(m.RenewLeases)) >= 3)
            assert view == b"old"
        with pytest.raises(errors.LeaseLost), cache.view("key"):
            (held,) = core_of(cache).views
            master.objects.clear()
            wait_until(lambda: held.lost)


async def test_an_open_view_keeps_its_lease_in_asyncio(master: FakeMaster) -> None:
    """I2, I8."""
    master.lease_ttl_ms = 600
    async with holdfast.connect_async(master.address) as cache:
        await cache.put("key", b"old")
        async with cache.view("key") as view:
            await asyncio.to_thread(wait_until, lambda: len(master.asked(m.RenewLeases)) >= 3)
            assert view == b"old"


def test_a_view_can_outlive_its_block_in_an_array(master: FakeMaster, connect: Connect) -> None:
    np = pytest.importorskip("numpy")
    cache = connect(master.address)
    cache.put("key", b"abc")
    with cache.view("key") as view:
        kept = np.frombuffer(view, dtype=np.uint8)
    cache.close()
    assert kept.tobytes() == b"abc"


def test_a_batch_comes_in_the_order_in_which_it_was_asked_for(master: FakeMaster, connect: Connect) -> None:
    """Whatever is known already, named twice or not there."""
    writer, reader = connect(master.address), connect(master.address)
    values = {f"key {number}": bytes([number]) * (number + 1) for number in range(40)}
    assert writer.put_many(values) == 40
    reader.get("key 7"), reader.get_many(["key 30", "key 3"])
    asked = [f"key {number}" for number in range(39, -1, -1)]
    found = reader.get_many(["key 5", *asked, "absent", "key 5"])
    assert list(found) == ["key 5", *(key for key in asked if key != "key 5")]
    assert found == values


def test_values_of_any_length_lie_where_their_commit_says(master: FakeMaster, connect: Connect) -> None:
    """Side by side when they are whole cache lines, with gaps otherwise: what is read is what was put."""
    cache = connect(master.address)
    for sizes in ([64] * 70, [64, 65, 1, 640, 63], [100_000, 64, 70_000, 128], [1024] * 33 + [1]):
        values = {f"{len(sizes)}/{number}": os.urandom(size) for number, size in enumerate(sizes)}
        assert cache.put_many(values) == len(sizes)
        assert connect(master.address).get_many(list(values)) == values
        cache.remove_all(force=True)


def test_a_read_asks_once_wherever_the_object_lies(master: FakeMaster, connect: Connect) -> None:
    """Mapped here or not, known before or not: one location is asked for, and taken."""
    for options in ({}, {"shared_memory": False}):
        cache = connect(master.address, **options)
        for key in ("first", "second"):
            cache.put(f"{key}{options}", b"x" * 1000)
        for key in ("first", "second"):
            before = len(master.asked(m.Locate))
            assert cache.get(f"{key}{options}") == b"x" * 1000
            assert len(master.asked(m.Locate)) == before + 1
        before = len(master.asked(m.Locate))
        assert cache.get("absent", None) is None
        assert len(master.asked(m.Locate)) == before + 1

"""Verbs for many keys that move no bytes (`remove_many`, `stat_many`, `some_keys`), and a client with two timeouts."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

import holdfast
from holdfast import errors
from holdfast.client.cache import Cache
from tests.e2e.rig import Rig


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    with Rig("64MiB") as rig:
        yield rig


@pytest.fixture
def cache(rig: Rig) -> Iterator[Cache]:
    with rig.connect() as cache:
        yield cache
        cache.remove_all(force=True)


def test_remove_many_says_of_each_key_whether_it_was_there(cache: Cache) -> None:
    cache.put_many({"a": b"1", "b": b"22"})
    assert cache.get("a") == b"1", "its own lease does not keep a client from removing"
    assert cache.remove_many(["a", "none", "b", "a"]) == [True, False, True, True]
    assert cache.exists_many(["a", "b"]) == [False, False]
    assert cache.remove_many([]) == []


def test_remove_many_leaves_what_others_read_unless_forced(rig: Rig, cache: Cache) -> None:
    cache.put_many({"read": b"1", "unread": b"22"})
    with rig.connect() as reader:
        assert reader.get("read") == b"1"
        assert cache.remove_many(["unread", "read"]) == [True, False]
        assert cache.get("read") == b"1"
        assert cache.remove_many(["read"], force=True) == [True]


def test_remove_many_leaves_what_its_own_client_looks_at(cache: Cache) -> None:
    cache.put_many({"seen": b"1", "unseen": b"22"})
    with cache.view("seen") as view:
        assert cache.remove_many(["seen", "unseen"]) == [False, True]
        assert bytes(view) == b"1"


def test_stat_many_has_none_for_what_is_not_stored(cache: Cache) -> None:
    cache.put_many({"a": b"1", "b": b"22"})
    stats = cache.stat_many(["b", "none", "a"])
    assert [one and one.size_bytes for one in stats] == [2, None, 1]


def test_some_keys_goes_on_where_it_ended(cache: Cache) -> None:
    wanted = {f"page/{i}" for i in range(5_000)}
    cache.put_many({**dict.fromkeys(wanted, b"v"), "other": b"v"})
    found: list[str] = []
    cursor = pages = 0
    while True:
        keys, cursor = cache.some_keys("page/", cursor)
        found += keys
        pages += 1
        if not cursor:
            break
    assert pages > 1
    assert sorted(found) == sorted(wanted)


def test_the_asyncio_shell_has_them_too(rig: Rig, cache: Cache) -> None:
    cache.put_many({"a": b"1", "b": b"22"})

    async def ask() -> tuple[Any, ...]:
        async with holdfast.connect_async(rig.address) as shell:
            keys, cursor = await shell.some_keys("")
            while cursor:
                more, cursor = await shell.some_keys("", cursor)
                keys += more
            stats = await shell.stat_many(["a", "none"])
            return sorted(keys), [one and one.size_bytes for one in stats], await shell.remove_many(["a", "x"])

    assert asyncio.run(ask()) == (["a", "b"], [1, None], [True, False])


def test_remove_many_takes_also_what_no_node_that_answers_holds() -> None:
    """It cannot be read, and is no hit for a lookup; but it is stored, and can be removed."""
    with Rig("16MiB") as rig, rig.connect(shared_memory=False, timeout=20) as cache:
        cache.put("lost", b"v" * 4096)
        assert cache.get("lost")
        rig.kill(rig.nodes[0])
        cache.timeout = 1
        with pytest.raises(errors.HoldfastError):
            cache.get("lost")
        cache.timeout = 20
        assert cache.remove_many(["lost"], force=True) == [True]


def test_one_client_may_have_several_timeouts(rig: Rig) -> None:
    cache = rig.connect(timeout=60)
    other = cache.with_timeout(7)
    try:
        assert (cache.timeout, other.timeout) == (60, 7)
        assert other.put("a", b"1")
        assert cache.remove_many(["a"]) == [True]
        with pytest.raises(errors.BadValue):
            cache.with_timeout(0)
    finally:
        other.close()
    with pytest.raises(errors.ClientClosed):
        cache.get("a")

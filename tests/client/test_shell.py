"""The faces of both clients beside their calls: a dict, a text for logs, and errors for what cannot work."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import holdfast
from holdfast.errors import BadValue, ClientClosed, ObjectNotFound
from holdfast.messages import requests as m
from holdfast.operations.tasks import OTHER_LOOP_TEXT
from tests.client.fake_master import FakeMaster


@pytest.fixture
def cache(master: FakeMaster) -> Iterator[holdfast.Cache]:
    with holdfast.connect(master.address) as opened:
        yield opened


def test_a_cache_reads_as_a_dict_does(cache: holdfast.Cache) -> None:
    assert "a" not in cache
    assert len(cache) == 0
    cache["a"] = b"one"
    cache["b"] = [b"in ", b"parts"]
    assert "a" in cache
    assert cache["a"] == b"one"
    assert len(cache) == 2
    assert sorted(cache) == ["a", "b"]
    assert dict(cache) == {"a": b"one", "b": b"in parts"}
    del cache["a"]
    assert "a" not in cache
    with pytest.raises(KeyError, match="no object is stored under 'a'"):
        cache["a"]
    with pytest.raises(ObjectNotFound):
        del cache["a"]


def test_an_assignment_replaces_and_a_put_does_not(cache: holdfast.Cache) -> None:
    cache["key"] = b"first"
    assert cache.put("key", b"second") is False
    assert cache["key"] == b"first"
    cache["key"] = b"third"
    assert cache["key"] == b"third"


def test_an_empty_cache_is_true_and_that_asks_nobody(master: FakeMaster, cache: holdfast.Cache) -> None:
    before = len(master.requests)
    assert cache
    assert len(master.requests) == before


async def test_asyncio_says_what_to_await_in_the_place_of_an_operator(master: FakeMaster) -> None:
    async with holdfast.connect_async(master.address) as cache:
        assert cache
        assert await cache.put("key", b"value")
        assert [key async for key in cache] == ["key"]
        opened: Any = cache
        for use, instead in {
            lambda: "key" in opened: "await cache.exists",
            lambda: opened["key"]: "await cache.get",
            lambda: opened.__setitem__("key", b"other"): r"await cache\.put\(key, value, upsert=True",
            lambda: opened.__delitem__("key"): "await cache.remove",
            lambda: len(opened): "await cache.status",
            lambda: list(opened): "async for key in cache",
            lambda: contextlib.ExitStack().enter_context(opened): "async with",
            lambda: contextlib.ExitStack().enter_context(opened.view("key")): "async with",
        }.items():
            with pytest.raises(TypeError, match=instead):
                use()


def test_a_client_that_was_never_awaited_says_so(master: FakeMaster) -> None:
    connecting: Any = holdfast.connect_async(master.address)
    for name in ("get", "put_many", "timeout", "close"):
        if hasattr(holdfast.AsyncCache, name):
            with pytest.raises(AttributeError, match=rf"{name}: the client is not connected yet.*await holdfast\.conn"):
                getattr(connecting, name)
    for use in (
        lambda: "key" in connecting,
        lambda: connecting["key"],
        lambda: len(connecting),
        lambda: contextlib.ExitStack().enter_context(connecting),
    ):
        with pytest.raises(TypeError, match="not connected yet"):
            use()
    assert connecting
    assert not hasattr(connecting, "nothing_of_a_client")
    with pytest.raises(AttributeError, match="there is no such name"):
        _ = connecting.nothing_of_a_client


def test_a_client_shows_where_it_is_connected_and_never_its_token(
    master: FakeMaster, connect: Callable[..., Any]
) -> None:
    face = connect(master.address, token="a secret", timeout=2.5)
    opened = getattr(face, "cache", face)
    shown = repr(opened)
    assert shown.startswith(f"<holdfast.{type(opened).__name__} of {master.address}: connected to {master.address}")
    assert shown.endswith("timeout 2.5 s>")
    face.close()
    assert ": closed, timeout" in repr(opened)
    assert "a secret" not in shown + repr(opened)
    assert str(opened) == repr(opened)


def test_a_client_is_neither_pickled_nor_copied(master: FakeMaster, connect: Callable[..., Any]) -> None:
    face = connect(master.address)
    opened = getattr(face, "cache", face)
    for use in (pickle.dumps, copy.copy, copy.deepcopy):
        for one in (opened, opened.view("key"), opened.view_many(["key"])):
            with pytest.raises(TypeError, match="Connect again in the other process"):
                use(one)


@pytest.mark.parametrize("verb", ["get", "put", "exists", "close"])
def test_another_event_loop_is_refused_and_nothing_is_sent(master: FakeMaster, verb: str) -> None:
    """Before, such a call waited for ever, or failed with whatever it met first."""
    home, other = asyncio.new_event_loop(), asyncio.new_event_loop()

    async def connected() -> holdfast.AsyncCache:
        return await holdfast.connect_async(master.address, shared_memory=False)

    cache = home.run_until_complete(connected())
    try:
        before = len(master.requests)
        arguments = {"put": ("key", b"value"), "close": ()}.get(verb, ("key",))
        with pytest.raises(RuntimeError) as raised:
            other.run_until_complete(getattr(cache, verb)(*arguments))
        assert str(raised.value) == OTHER_LOOP_TEXT
        assert len(master.requests) == before
        assert home.run_until_complete(cache.exists("key")) is False
    finally:
        home.run_until_complete(cache.close())
        home.close()
        other.close()


def test_none_and_text_have_errors_of_their_own_and_nothing_is_sent(
    master: FakeMaster, connect: Callable[..., Any]
) -> None:
    cache = connect(master.address)
    before = len(master.requests)
    text = r"bytes-like, not str; encode it first, as in text\.encode\(\)"
    for call, told in (
        (lambda: cache.get(None), "a key is a str, not NoneType; nothing was sent"),
        (lambda: cache.get(b"key"), "a key is a str, not bytes"),
        (lambda: cache.get(["key"]), "a key is a str, not list"),
        (lambda: cache.pin(5), "a key or a list of keys is wanted, not int"),
        (lambda: cache.put(None, b"value"), "a key is a str, not NoneType"),
        (lambda: cache.put("key", None), "not NoneType. Nothing was changed"),
        (lambda: cache.put("key", "text"), text),
        (lambda: cache.put("key", ["text"]), text),
        (lambda: cache.put_many({"good": b"value", "bad": "text"}), f"'bad': a value is {text}"),
        (lambda: cache.put_many([("bad", "text")], outcomes=True), f"'bad': a value is {text}"),
        (lambda: cache.put_many({"bad": None}), "'bad': a value is anything with contiguous memory"),
        (lambda: cache.put_many(None), "not NoneType; nothing was stored"),
        (lambda: cache.put("key", b"value", prefer=5), "a list of preferred nodes or segments is wanted, not int"),
        (lambda: cache.get_many(None), "a list of keys is wanted, not NoneType; nothing was sent"),
        (lambda: cache.get_many("key"), "a list of keys is wanted, not one str"),
        (lambda: cache.get_many([None]), "a key is a str, not NoneType"),
        (lambda: cache.get_many_into(["key"], None), "a list of targets is wanted, not NoneType"),
        (lambda: cache.get_into("key", None), "not NoneType"),
        (lambda: cache.reserve_many(None), "a list of keys and sizes is wanted, not NoneType"),
        (lambda: cache.commit_many([None]), "a (Async)?Reservation is wanted|NoneType"),
        (lambda: cache.remove_matching(None), "the expression is a str, not NoneType"),
    ):
        with pytest.raises((TypeError, AttributeError), match=told):
            call()
    with pytest.raises(BadValue, match="'bad': a value cannot be empty"):
        cache.put_many({"good": b"value", "bad": b""})
    assert len(master.requests) == before
    for address in (None, 7070):
        with pytest.raises(TypeError, match="the address is a str, not"):
            connect(address)


def test_an_error_of_the_callers_own_iterator_is_passed_on(master: FakeMaster, connect: Callable[..., Any]) -> None:
    def broken() -> Iterator[str]:
        yield "key"
        raise TypeError("the caller's own")

    with pytest.raises(TypeError, match="the caller's own"):
        connect(master.address).exists_many(broken())


def test_pairs_have_an_outcome_each_in_their_order(master: FakeMaster, connect: Callable[..., Any]) -> None:
    cache = connect(master.address)
    cache.put("there", b"before")
    pairs = [("new", b"1"), ("there", b"2"), ("new", b"3"), ("other", b"4")]
    assert cache.put_many(iter(pairs), outcomes=True) == [True, False, False, True]
    assert cache.get_many(["new", "there", "other"]) == {"new": b"1", "there": b"before", "other": b"4"}
    assert cache.put_many([("another", b"5"), ("new", b"6")]) == 1


def test_a_closed_client_says_so_to_every_call(master: FakeMaster, connect: Callable[..., Any]) -> None:
    cache = connect(master.address)
    cache.put("key", b"value")
    assert cache.get("key") == b"value"
    cache.close()
    before = [type(one) for one in master.requests]
    for call in (
        lambda: cache.get("key"),
        lambda: cache.put("key", b"value"),
        lambda: cache.exists("key"),
        lambda: cache.get_many(["key"]),
        lambda: list(cache.keys()),
        lambda: cache.view("key").__enter__(),
        cache.status,
    ):
        with pytest.raises(ClientClosed, match="the client was closed; connect again"):
            call()
    assert [type(one) for one in master.requests if not isinstance(one, m.Hello)] == [
        one for one in before if one is not m.Hello
    ]

"""A call is declared once: both clients have it, with the same arguments and the same words."""

from __future__ import annotations

import inspect
import pydoc
from collections.abc import Callable
from typing import Any

import pytest

import holdfast
from holdfast.client import calls
from holdfast.client.arguments import put_options
from holdfast.client.async_cache import AsyncCache
from holdfast.client.cache import Cache
from tests.client.fake_master import FakeMaster

ONLY_BLOCKING = {"operate"}
SENDS_NOTHING = {
    "exists_at_once",
    "keys",
    "leased_at_once",
    "register",
    "unregister",
    "view",
    "view_many",
    "with_timeout",
}
"""Methods that are not awaited in asyncio either."""


def public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_") and callable(getattr(kind, name))}


def arguments(function: Callable[..., Any]) -> list[tuple[str, Any, Any]]:
    return [(each.name, each.kind, each.default) for each in inspect.signature(function).parameters.values()]


def test_both_clients_have_the_same_calls() -> None:
    assert public(Cache) ^ public(AsyncCache) == ONLY_BLOCKING
    declared = {
        name for name, each in vars(calls).items() if inspect.isfunction(each) and each.__module__ == calls.__name__
    }
    assert declared - {"put_each"} <= public(Cache)


@pytest.mark.parametrize("name", sorted(public(AsyncCache)))
def test_a_call_has_the_same_arguments_and_words_in_both_clients(name: str) -> None:
    blocking, awaited = getattr(Cache, name), getattr(AsyncCache, name)
    assert arguments(blocking) == arguments(awaited)
    words = (inspect.getdoc(awaited) or "").replace("async with", "with").split()
    assert words == (inspect.getdoc(blocking) or "").split()
    assert words
    assert inspect.iscoroutinefunction(awaited) == (name not in SENDS_NOTHING)


def test_help_shows_what_a_call_takes_and_gives() -> None:
    shown = pydoc.render_doc(holdfast.Cache.put_many, renderer=pydoc.plaintext)
    for words in ("put_many(self, items: 'PutMany', *", "outcomes: 'bool' = False", "replicas: 'int' = 1", "Store all"):
        assert words in shown
    shown = pydoc.render_doc(holdfast.AsyncCache.stat_many, renderer=pydoc.plaintext)
    assert "async stat_many(self, keys: 'Iterable[str]') -> 'list[ObjectStat | None]'" in shown
    assert str(inspect.signature(Cache.reserve)).startswith("(self, key: 'str', size: 'int', *, replicas: 'int' = 1, ")


def test_the_options_of_a_put_are_the_same_everywhere() -> None:
    named = {each.name for each in inspect.signature(calls.put).parameters.values() if each.kind is each.KEYWORD_ONLY}
    assert named == {*calls.PutKeywords.__annotations__} == {*inspect.signature(put_options).parameters}
    assert named - {*calls.ReserveKeywords.__annotations__} == {"durability"}
    for call in (Cache.put, Cache.put_many):
        assert named <= {*inspect.signature(call).parameters}


def test_an_option_that_there_is_not_is_refused_and_nothing_is_sent(
    master: FakeMaster, connect: Callable[..., Any]
) -> None:
    cache = connect(master.address)
    before = len(master.requests)
    for call in (
        lambda: cache.put("key", b"value", replica=2),
        lambda: cache.put_many({"key": b"value"}, replica=2),
        lambda: cache.put_many({"key": b"value"}, outcomes=True, replica=2),
        lambda: cache.reserve("key", 5, replica=2),
        lambda: cache.reserve("key", 5, durability="memory"),
        lambda: cache.reserve_many({"key": 5}, durability="memory"),
    ):
        with pytest.raises(TypeError):
            call()
    assert len(master.requests) == before

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
from holdfast.client.async_cache import AsyncCache, AsyncReservation
from holdfast.client.cache import Cache, Reservation
from holdfast.client.parameters import PARAMETERS
from holdfast.errors import BadValue, HoldfastError, TryAgain, Uncertain
from holdfast.messages import requests as m
from tests.client.fake_master import Act, FakeMaster

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
    assert "async stat_many(self, keys: 'Iterable[str]', *, timeout: 'float | None' = None)" in shown
    assert "-> 'list[ObjectStat | None]'" in shown
    assert "- `keys`: The objects' names, each a str." in shown
    assert str(inspect.signature(Cache.reserve)).startswith("(self, key: 'str', size: 'int', *, timeout: ")


def test_the_options_of_a_put_are_the_same_everywhere() -> None:
    named = {each.name for each in inspect.signature(calls.put).parameters.values() if each.kind is each.KEYWORD_ONLY}
    assert named - {"timeout"} == {*calls.PutKeywords.__annotations__} == {*inspect.signature(put_options).parameters}
    for call in (Cache.put, Cache.put_many, Cache.reserve, Cache.reserve_many):
        assert named <= {*inspect.signature(call).parameters}


@pytest.mark.parametrize("kind", [Cache, AsyncCache, Reservation, AsyncReservation])
def test_a_docstring_explains_every_parameter(kind: type) -> None:
    for name in public(kind):
        method = getattr(kind, name)
        told = inspect.getdoc(method) or ""
        missing = [one for one in [*inspect.signature(method).parameters][1:] if f"- `{one}`: " not in told]
        assert not missing, f"{kind.__name__}.{name} does not explain {missing}"


@pytest.mark.parametrize("function", [holdfast.connect, holdfast.connect_async, holdfast.memory_at, holdfast.Part])
def test_a_functions_docstring_names_every_parameter(function: Callable[..., Any]) -> None:
    told = inspect.getdoc(function) or ""
    assert not [one for one in inspect.signature(function).parameters if f"`{one}`" not in told]


def test_no_parameter_is_explained_that_no_method_has() -> None:
    methods = [getattr(kind, name) for kind in (Cache, Reservation) for name in public(kind)]
    assert {one for method in methods for one in inspect.signature(method).parameters} - {"self"} == {*PARAMETERS}


@pytest.mark.parametrize("kind", [Cache, AsyncCache])
def test_whatever_may_wait_takes_a_timeout(kind: type) -> None:
    without = {name for name in public(kind) if "timeout" not in inspect.signature(getattr(kind, name)).parameters}
    assert without == {"abandon_many", "close", "exists_at_once", "leased_at_once", "register", "unregister"}


def test_a_call_ends_by_its_own_timeout(master: FakeMaster, connect: Callable[..., Any]) -> None:
    """I10. The client's own timeout is longer than the test may take."""
    cache = connect(master.address, timeout=600, shared_memory=False)
    cache.put("stored", b"value")
    master.judge = lambda request: Act.SILENCE if not isinstance(request, m.Hello) else Act.USUAL
    soon: dict[str, Any] = {"timeout": 0.05}
    for call in (
        lambda: cache.put("key", b"value", **soon),
        lambda: cache.put_many({"key": b"value"}, **soon),
        lambda: cache.get("stored", **soon),
        lambda: cache.get_into("stored", bytearray(5), **soon),
        lambda: cache.get_many(["stored"], **soon),
        lambda: cache.exists("stored", **soon),
        lambda: cache.lease_many(["stored"], **soon),
        lambda: cache.reserve("key", 5, **soon),
        lambda: cache.remove("stored", **soon),
        lambda: list(cache.keys(**soon)),
        lambda: cache.stat("stored", **soon),
        lambda: cache.status(**soon),
        lambda: cache.view("stored", **soon).__enter__(),
        lambda: cache.view_many(["stored"], **soon).__enter__(),
    ):
        with pytest.raises((TryAgain, Uncertain)):
            call()
    outcomes = cache.put_many([("key", b"value")], outcomes=True, **soon)
    assert isinstance(outcomes[0], HoldfastError)


@pytest.mark.parametrize("wrong", [0, -1, "1", True, float("nan")])
def test_a_timeout_that_is_none_is_refused_and_nothing_is_sent(
    master: FakeMaster, connect: Callable[..., Any], wrong: Any
) -> None:
    cache = connect(master.address)
    cache.put("stored", b"value")
    assert cache.get("stored") == b"value"
    before = len(master.requests)
    for call in (
        lambda: cache.put("key", b"value", timeout=wrong),
        lambda: cache.get("stored", timeout=wrong),
        lambda: cache.exists("stored", timeout=wrong),
        lambda: cache.stat("stored", timeout=wrong),
        lambda: cache.view("stored", timeout=wrong),
    ):
        with pytest.raises((TypeError, BadValue), match="timeout"):
            call()
    assert len(master.requests) == before


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
        lambda: cache.reserve_many({"key": 5}, replica=2),
    ):
        with pytest.raises(TypeError):
            call()
    assert len(master.requests) == before

"""Views and what outlives them: an array made from a view keeps its bytes for as long as it lives."""

from __future__ import annotations

import asyncio
import gc
import os
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import holdfast
from holdfast import errors
from tests.client.inside import core_of
from tests.e2e.rig import Rig
from tests.waiting import wait_until

LEASE_MS = 600
SIZE = 1 << 20


def numpy_array(view: memoryview) -> Any:
    return np.frombuffer(view, np.uint8)


def torch_tensor(view: memoryview) -> Any:
    torch = pytest.importorskip("torch", reason="torch is not installed: pip install a CPU build of torch")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # It would rather have memory that it may write.
        return torch.frombuffer(view, dtype=torch.uint8)


def part_of_it(view: memoryview) -> Any:
    return view[:]


MAKERS = [numpy_array, torch_tensor, part_of_it]


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    with Rig("32MiB", lease_ttl_ms=LEASE_MS) as rig:
        yield rig


@pytest.fixture
def cache(rig: Rig) -> Iterator[holdfast.Cache]:
    with rig.connect() as cache:
        yield cache
        gc.collect()
        cache.remove_all(force=True)


def put_until_everything_was_replaced(rig: Rig) -> None:
    """Several times the node's memory: whatever may be evicted is, and its memory is written again."""
    with rig.connect() as other:
        for number in range(128):
            other.put(f"filler/{number}", os.urandom(SIZE))
        other.remove_matching("^filler/", force=True)


@pytest.mark.parametrize("make", MAKERS)
def test_what_was_made_from_a_view_keeps_its_bytes_after_the_block(
    rig: Rig, cache: holdfast.Cache, make: Callable[[memoryview], Any]
) -> None:
    """I2. Without the lease that is kept, its memory is evicted and written again within the test."""
    data = os.urandom(SIZE)
    cache.put("kept", data)
    with pytest.warns(ResourceWarning, match="'kept'"), cache.view("kept") as view:
        array = make(view)
    put_until_everything_was_replaced(rig)
    assert bytes(memoryview(array) if not hasattr(array, "numpy") else array.numpy()) == data
    assert cache.exists("kept")
    with rig.connect() as other, pytest.raises(errors.ObjectLeased):
        other.remove("kept")


@pytest.mark.parametrize("make", MAKERS)
def test_the_lease_ends_when_the_last_thing_made_from_a_view_is_gone(
    rig: Rig, cache: holdfast.Cache, make: Callable[[memoryview], Any]
) -> None:
    cache.put("released", b"x" * SIZE)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        with cache.view("released") as view:
            array = make(view)
    with pytest.raises(errors.ObjectLeased):
        cache.remove("released")
    if make is torch_tensor:
        del view  # A tensor keeps the view itself, and nothing tells it from the name.
    del array
    gc.collect()
    assert cache.remove("released") == 1


def test_the_keeper_lets_the_lease_go_when_nobody_asks(rig: Rig, cache: holdfast.Cache) -> None:
    cache.put("forgotten", b"x" * SIZE)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        with cache.view("forgotten") as view:
            part = view[:10]
    assert core_of(cache).views
    del part
    gc.collect()
    wait_until(lambda: not core_of(cache).views, what="the keeper has let the view go")


def test_a_view_that_nothing_outlives_warns_of_nothing(cache: holdfast.Cache) -> None:
    cache.put("plain", b"plain")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with cache.view("plain") as view:
            assert bytes(view) == b"plain"
    with pytest.raises(ValueError, match="released"):
        bytes(view)


def test_a_view_entered_twice_raises_and_the_first_goes_on(cache: holdfast.Cache) -> None:
    cache.put("twice", b"twice")
    looking = cache.view("twice")
    with looking as view:
        with pytest.raises(errors.Refused, match="open already"), looking:
            pass
        assert bytes(view) == b"twice"
    with looking as again:
        assert bytes(again) == b"twice"


def test_a_block_that_raises_keeps_what_was_made_from_its_view_too(rig: Rig, cache: holdfast.Cache) -> None:
    """I2."""
    data = os.urandom(SIZE)
    cache.put("raised", data)
    kept = []

    def look_and_raise() -> None:
        with cache.view("raised") as view:
            kept.append(np.frombuffer(view, np.uint8))
            raise RuntimeError("of the block")

    with pytest.warns(ResourceWarning, match="'raised'"), pytest.raises(RuntimeError):
        look_and_raise()
    put_until_everything_was_replaced(rig)
    assert kept[0].tobytes() == data


def test_a_client_that_closes_says_whose_bytes_may_change(rig: Rig) -> None:
    with rig.connect() as cache:
        cache.put("closing", b"closing")
        with pytest.warns(ResourceWarning, match="outlives its block"), cache.view("closing") as view:
            array = np.frombuffer(view, np.uint8)
        with pytest.warns(ResourceWarning, match="'closing'.*may change"):
            cache.close()
        assert array.tobytes() == b"closing"  # Mapped still: looking at it does not crash.


async def test_an_async_view_keeps_its_bytes_as_well_and_cannot_be_entered_twice(rig: Rig) -> None:
    """I2."""
    data = os.urandom(SIZE)
    async with holdfast.connect_async(rig.address) as cache:
        await cache.put("async", data)
        looking = cache.view("async")
        view = await looking.__aenter__()
        with pytest.raises(errors.Refused, match="open already"):
            await looking.__aenter__()
        array = np.frombuffer(view, np.uint8)
        with pytest.warns(ResourceWarning, match="'async'"):
            await looking.__aexit__(None, None, None)
        await asyncio.to_thread(put_until_everything_was_replaced, rig)
        assert array.tobytes() == data
        with pytest.raises(errors.ObjectLeased):
            await cache.remove("async")
        del array
        gc.collect()
        assert await cache.remove("async") == 1

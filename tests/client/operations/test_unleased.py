"""Reads without a lease, because the tenant has leased its share: they copy, and ask afterwards whether the object was
still there (I2). Through both shells, from mapped memory and over TCP."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

from holdfast.messages import requests as m
from tests.client.fake_master import Act, FakeMaster
from tests.node.rig import Served

Connect = Callable[..., Any]
KEYS = [f"key {i}" for i in range(20)]


@pytest.fixture(params=["mapped", "tcp"])
def store(request: pytest.FixtureRequest, node: Served) -> Any:
    with FakeMaster(node, local=request.param == "mapped") as master:
        yield master


def filled(store: FakeMaster, connect: Connect) -> tuple[Any, dict[str, bytes]]:
    cache = connect(store.address)
    data = {key: os.urandom(1_000 + i) for i, key in enumerate(KEYS)}
    cache.put_many(data)
    store.unleased.update(KEYS[::2])
    return cache, data


def asked_afterwards(store: FakeMaster) -> int:
    return sum(isinstance(request, m.RenewLeases) for request in store.requests)


def test_every_way_to_read_gives_the_bytes_without_a_lease(store: FakeMaster, connect: Connect) -> None:
    cache, data = filled(store, connect)
    for round_ in range(1, 3):
        assert cache.get(KEYS[0]) == data[KEYS[0]]
        assert asked_afterwards(store) == round_, "nothing is kept for the next read"
    buffer = bytearray(2_000)
    assert cache.get_into(KEYS[2], buffer) == 1_002
    assert buffer[:1_002] == data[KEYS[2]]
    assert cache.get_many(KEYS) == data
    buffers = [bytearray(1_000 + i) for i in range(20)]
    assert cache.get_many_into(KEYS, buffers) == [1_000 + i for i in range(20)]
    assert [bytes(one) for one in buffers] == list(data.values())
    with cache.view_many(KEYS) as views:
        assert [bytes(view) for view in views] == list(data.values())


def test_a_single_get_takes_two_round_trips(store: FakeMaster, connect: Connect) -> None:
    """One for the place, and one after the copy."""
    cache, data = filled(store, connect)
    assert cache.get(KEYS[0]) == data[KEYS[0]]
    store.requests.clear()
    assert cache.get(KEYS[2]) == data[KEYS[2]]
    assert [type(request) for request in store.requests] == [m.Locate, m.RenewLeases]


def test_a_view_without_a_lease_is_a_copy_and_says_so(node: Served, connect: Connect) -> None:
    with FakeMaster(node) as store:
        cache, data = filled(store, connect)
        for key, copied in ((KEYS[0], True), (KEYS[1], False)):
            block = cache.view(key)
            with block as view:
                assert bytes(view) == data[key]
                assert getattr(block, "block", block).copied is copied
                del view


def test_leases_that_some_objects_of_a_batch_got_are_kept(store: FakeMaster, connect: Connect) -> None:
    cache, data = filled(store, connect)
    assert cache.get_many(KEYS) == data
    located = [request for request in store.requests if isinstance(request, m.Locate)]
    assert cache.get_many(KEYS[1::2]) == {key: data[key] for key in KEYS[1::2]}
    assert [request for request in store.requests if isinstance(request, m.Locate)] == located


def test_an_object_that_left_its_place_during_the_copy_is_read_again(store: FakeMaster, connect: Connect) -> None:
    """I2: without a lease only the answer afterwards makes the bytes right."""
    cache, _ = filled(store, connect)
    key, other = KEYS[0], KEYS[3]

    def replaced_meanwhile(request: m.Message) -> Act:
        if isinstance(request, m.RenewLeases) and key in store.unleased:
            store.unleased.discard(key)
            store.objects[key] = store.objects[other]
        return Act.USUAL

    store.judge = replaced_meanwhile
    assert cache.get(key) == cache.get(other)


def test_what_got_no_lease_is_not_held(store: FakeMaster, connect: Connect) -> None:
    cache, data = filled(store, connect)
    sizes = cache.lease_many(KEYS)
    assert sizes == [0 if key in store.unleased else len(data[key]) for key in KEYS]

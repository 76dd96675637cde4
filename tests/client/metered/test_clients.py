"""Client metrics: what is counted by either client, by path, and that a client without them is not another one."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any

import pytest

import holdfast
from holdfast import ClientMetrics, errors
from holdfast.client.metered.clients import TIMED
from holdfast.messages import requests as m
from holdfast.wire.codec import failed
from tests.client.fake_master import FakeMaster, first

Connect = Callable[..., Any]
SIZE = 100_000


def used(cache: Any) -> None:
    """Two puts and a taken key, four hits and four misses."""
    assert cache.put("a", os.urandom(SIZE)) is True
    assert cache.put("a", os.urandom(SIZE)) is False
    assert cache.put_many(iter([("b", bytes(10)), ("c", bytes(20))])) == 2
    assert len(cache.get("a")) == SIZE
    assert cache.get("absent", None) is None
    with pytest.raises(errors.ObjectNotFound):
        cache.get("absent")
    assert set(cache.get_many(iter(["b", "c", "absent"]))) == {"b", "c"}
    assert cache.get_many_into(["b", "absent"], [bytearray(10), bytearray(10)]) == [10, 0]


@pytest.mark.parametrize(("local", "path", "other"), [(True, "shared", "tcp"), (False, "tcp", "shared")])
def test_calls_keys_and_bytes_are_counted_by_path(
    node: Any, connect: Connect, local: bool, path: str, other: str
) -> None:
    metrics = ClientMetrics()
    with FakeMaster(node, local=local) as master:
        used(connect(master.address, metrics=metrics))
    found = metrics.as_dict()
    assert (found["hits"], found["misses"]) == (4, 4)
    assert found["read_bytes"] == {path: SIZE + 10 + 20 + 10, other: 0}
    assert found["written_bytes"] == {path: SIZE + 10 + 20, other: 0}
    counts = {verb: one["count"] for verb, one in found["latency"].items()}
    assert counts == {"put": 2, "put_many": 1, "get": 3, "get_many": 1, "get_many_into": 1}
    for one in found["latency"].values():
        assert one["cumulative"][-1] == one["count"]
        assert one["sum_seconds"] > 0
    assert (found["errors"], found["retries"]) == ({}, 0)


def test_retries_and_errors_are_counted(master: FakeMaster, connect: Connect) -> None:
    metrics = ClientMetrics()
    cache = connect(master.address, metrics=metrics)
    master.judge = first(m.Stat, failed(errors.Busy("later")), failed(errors.Busy("later")))
    cache.put("key", b"1")
    cache.stat("key")
    with pytest.raises(errors.ObjectNotFound):
        cache.stat("absent")
    found = metrics.as_dict()
    assert found["retries"] == 2
    assert found["errors"] == {"object_not_found": 1}
    assert found["misses"] == 0, "a stat reads nothing"


def test_prometheus_can_read_them(master: FakeMaster, connect: Connect) -> None:
    from prometheus_client.parser import text_string_to_metric_families

    metrics = ClientMetrics()
    used(connect(master.address, metrics=metrics))
    samples = [one for family in text_string_to_metric_families(metrics.prometheus()) for one in family.samples]
    found = {(one.name, *sorted(one.labels.items())): one.value for one in samples}
    assert found[("holdfast_client_hits_total",)] == 4
    assert found[("holdfast_client_read_bytes_total", ("path", "shared"))] == SIZE + 40
    assert found[("holdfast_client_call_duration_seconds_count", ("verb", "get"))] == 3
    assert found[("holdfast_client_call_duration_seconds_bucket", ("le", "+Inf"), ("verb", "get"))] == 3


def test_one_may_count_for_several_clients_and_with_another_timeout(master: FakeMaster, connect: Connect) -> None:
    metrics = ClientMetrics()
    one, other = connect(master.address, metrics=metrics), connect(master.address, metrics=metrics)
    one.put("a", b"1")
    other.get("a")
    assert metrics.as_dict()["hits"] == 1
    again = holdfast.connect(master.address, metrics=metrics).with_timeout(5)
    assert again.get("a") == b"1"
    assert metrics.as_dict()["hits"] == 2
    again.close()


def test_a_client_without_them_is_the_plain_class(master: FakeMaster) -> None:
    with holdfast.connect(master.address) as cache:
        assert type(cache) is holdfast.Cache
    with pytest.raises(TypeError, match=r"metrics takes a holdfast\.ClientMetrics"):
        holdfast.connect(master.address, metrics=True)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [holdfast.Cache, holdfast.AsyncCache])
def test_every_verb_is_timed_but_those_that_wait_for_their_caller(kind: type) -> None:
    own = {name for name in dir(kind) if re.match(r"[a-z]", name) and callable(getattr(kind, name))}
    untimed = {"view", "view_many", "keys", "abandon_many", "close", "with_timeout", "register", "unregister"}
    assert own >= set(TIMED)
    assert own - set(TIMED) - untimed - {"leased_at_once", "exists_at_once", "operate"} == set()

"""Every verb, through both shells, against a master that keeps a dict and a node's real memory."""

from __future__ import annotations

import array
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from holdfast import errors
from holdfast.messages import requests as m
from holdfast.messages.shapes import Message
from tests.client.fake_master import Act, FakeMaster
from tests.node.rig import Served

Connect = Callable[..., Any]


@pytest.fixture(params=["mapped", "tcp"])
def store(request: pytest.FixtureRequest, node: Served) -> Any:
    with FakeMaster(node, local=request.param == "mapped") as master:
        yield master


@pytest.mark.parametrize("size", [1, 100, 5_000, 70_000, 600_000])
def test_what_was_put_is_what_is_got(store: FakeMaster, connect: Connect, size: int) -> None:
    """I2."""
    cache = connect(store.address)
    data = os.urandom(size)
    assert cache.put("key", data) is True
    assert cache.get("key") == data
    buffer = bytearray(size + 7)
    assert cache.get_into("key", buffer) == size
    assert buffer == data + bytes(7)
    with cache.view("key") as view:
        assert view.readonly
        assert bytes(view) == data


def test_a_second_put_of_a_key_keeps_the_first_object(store: FakeMaster, connect: Connect) -> None:
    cache = connect(store.address)
    for size in (10, 100_000):
        assert cache.put(f"key {size}", b"1" * size) is True
        assert cache.put(f"key {size}", b"2" * size) is False
        assert cache.get(f"key {size}") == b"1" * size
        assert cache.put(f"key {size}", b"3" * size, upsert=True) is True
        assert cache.get(f"key {size}") == b"3" * size


def test_a_large_put_of_a_taken_key_moves_no_bytes(master: FakeMaster, connect: Connect) -> None:
    cache = connect(master.address)
    cache.put("key", b"1" * 100_000)
    commits = len(master.asked(m.CommitPuts))
    assert cache.put("key", b"2" * 100_000) is False
    assert len(master.asked(m.CommitPuts)) == commits


def test_a_small_put_is_one_round_trip_once_a_grant_is_there(master: FakeMaster, connect: Connect) -> None:
    cache = connect(master.address)
    cache.put("first", b"1")
    before = len(master.requests)
    for number in range(20):
        assert cache.put(f"key {number}", b"x" * 100)
    assert len(master.requests) == before + 20
    assert len(master.asked(m.GrantRanges)) == 1


def test_room_of_a_lost_race_is_used_again(master: FakeMaster, connect: Connect) -> None:
    cache = connect(master.address)
    cache.put("key", b"1" * 1000)
    for _ in range(1000):
        assert cache.put("key", b"2" * 1000) is False
    assert len(master.asked(m.GrantRanges)) == 1


@pytest.mark.parametrize("size", [50, 3_000, 90_000])
def test_many_at_once(store: FakeMaster, connect: Connect, size: int) -> None:
    cache = connect(store.address)
    items = {f"key {number}": bytes([number]) * (size + number) for number in range(20)}
    items["large"] = b"L" * 70_001
    items["tiny"] = b"t"
    cache.put("key 3", b"was here")
    assert cache.put_many(items) == len(items) - 1
    items["key 3"] = b"was here"
    assert cache.get_many([*items, "absent", "key 1"]) == items
    assert cache.exists_many([*items, "absent"]) == [True] * len(items) + [False]
    assert cache.put_many({}) == 0
    assert cache.get_many([]) == {}
    assert cache.exists_many([]) == []


def test_two_replicas_are_both_written(store: FakeMaster, node: Served, connect: Connect) -> None:
    cache = connect(store.address)
    for data in (b"small" * 10, b"large" * 20_000):
        key = f"key {len(data)}"
        assert cache.put(key, data, replicas=2)
        _, segment, offset, _, _ = store.objects[key]
        for handle, at in [(segment, offset), *store.others[key]]:
            assert node.bytes_at(at, len(data), handle - 1) == data


def test_absent_keys(store: FakeMaster, connect: Connect) -> None:
    cache = connect(store.address)
    with pytest.raises(KeyError) as raised:
        cache.get("nothing")
    assert isinstance(raised.value, errors.ObjectNotFound)
    assert "'nothing'" in str(raised.value)
    assert cache.get("nothing", None) is None
    assert cache.get("nothing", default=5) == 5
    with pytest.raises(errors.ObjectNotFound):
        cache.get_into("nothing", bytearray(5))
    with pytest.raises(errors.ObjectNotFound), cache.view("nothing"):
        pass
    with pytest.raises(errors.ObjectNotFound):
        cache.stat("nothing")
    assert cache.exists("nothing") is False
    assert cache.remove("nothing") == 0


def test_removals(master: FakeMaster, connect: Connect) -> None:
    cache = connect(master.address)
    cache.put_many({f"{letter}{number}": b"x" for letter in "abc" for number in range(10)})
    assert cache.remove("a0") == 1
    assert cache.exists("a0") is False
    master.leased.add("a1")
    with pytest.raises(errors.ObjectLeased, match="1,234 ms"):
        cache.remove("a1")
    assert cache.remove("a1", force=True) == 1
    assert cache.remove_matching("^b") == 10
    assert cache.remove_all() == 18
    assert list(cache.keys()) == []
    with pytest.raises(errors.BadPattern):
        cache.remove_matching("")
    serials = [request.serial for request in [*master.asked(m.Remove), *master.asked(m.RemoveMatching)]]
    assert len(set(serials)) == len(serials)


def test_pins_of_one_key_and_of_many(master: FakeMaster, connect: Connect) -> None:
    cache = connect(master.address)
    cache.put_many({"a": b"x", "b": b"y"})
    assert cache.pin("a") is True
    assert cache.pin("none", hard=True) is False
    assert cache.pin(iter(["b", "none"]), hard=True) == [True, False]
    assert master.pins == {"a": "soft", "b": "hard"}
    assert cache.unpin("a") is True
    assert cache.unpin(["none", "b"]) == [False, True]
    assert master.pins == {"a": "", "b": ""}
    before = len(master.requests)
    assert cache.pin([]) == cache.unpin([]) == []
    with pytest.raises(TypeError, match="a list of keys is wanted, not one bytes"):
        cache.pin(b"a")
    with pytest.raises(errors.BadKey):
        cache.unpin("")
    assert len(master.requests) == before, "nothing was sent"


def test_more_keys_than_a_request_has_are_pinned_by_several(master: FakeMaster, connect: Connect) -> None:
    cache = connect(master.address)
    cache.put("k7999", b"x")
    found = cache.pin([f"k{number}" for number in range(8_000)], hard=True)
    assert [index for index, there in enumerate(found) if there] == [7_999]
    assert [len(request.keys) for request in master.asked(m.ChangePins)] == [7_500, 500]


def test_a_pin_whose_answer_is_lost_is_asked_for_again(master: FakeMaster, connect: Connect) -> None:
    cache = connect(master.address)
    cache.put("a", b"x")
    acts = iter([Act.DO_AND_DROP])
    master.judge = lambda request: next(acts, Act.USUAL) if isinstance(request, m.ChangePins) else Act.USUAL
    assert cache.pin("a", hard=True) is True
    assert len(master.asked(m.ChangePins)) == 2
    master.judge = lambda request: Act.DO_AND_DROP if isinstance(request, m.ChangePins) else Act.USUAL
    with pytest.raises(errors.Uncertain):
        cache.unpin("a", timeout=1)


def test_listing_stat_explain_and_nodes(master: FakeMaster, connect: Connect) -> None:
    cache = connect(master.address)
    cache.put_many({"a1": b"x", "a2": b"xy", "b1": b"xyz"})
    assert sorted(cache.keys()) == ["a1", "a2", "b1"]
    assert sorted(cache.keys("a")) == ["a1", "a2"]
    assert cache.stat("a2").size_bytes == 2
    explained = cache.explain("b1")
    assert explained.stat.size_bytes == 3
    assert explained.reasons == ("because",)
    assert "because" in str(explained)
    assert cache.nodes() == m.NodeList([])


@pytest.mark.parametrize("key", ["", "k" * 1025, "é" * 513, "\ud800", "ok\udfff" * 3])
def test_a_bad_key_is_refused_and_nothing_is_sent(master: FakeMaster, connect: Connect, key: str) -> None:
    cache = connect(master.address)
    before = len(master.requests)
    calls: list[Callable[[], object]] = [
        lambda: cache.put(key, b"x"),
        lambda: cache.get(key),
        lambda: cache.get(key, None),
        lambda: cache.get_into(key, bytearray(1)),
        lambda: cache.get_many(["fine", key]),
        lambda: cache.put_many({"fine": b"x", key: b"x"}),
        lambda: cache.exists(key),
        lambda: cache.exists_many(["fine", key]),
        lambda: cache.remove(key),
        lambda: cache.stat(key),
        lambda: cache.explain(key),
    ]
    for call in calls:
        with pytest.raises(errors.BadKey, match="nothing was"):
            call()
    assert len(master.requests) == before


def test_the_longest_keys_are_fine(master: FakeMaster, connect: Connect) -> None:
    cache = connect(master.address)
    for key in ("k" * 1024, "é" * 512, "\0", "日本"):
        assert cache.put(key, b"x")
        assert cache.get(key) == b"x"


def test_wrong_types_are_named(master: FakeMaster, connect: Connect) -> None:
    cache = connect(master.address)
    for key in (b"bytes", None, 5):
        for call in (cache.exists, cache.get, cache.remove, cache.stat):
            with pytest.raises(TypeError, match=type(key).__name__):
                call(key)
        with pytest.raises(TypeError, match=type(key).__name__):
            cache.exists_many(["fine", key])
    with pytest.raises(TypeError, match="one str"):
        cache.exists_many("key")
    for value in ("text", 5, None):
        with pytest.raises(TypeError, match=type(value).__name__):
            cache.put("key", value)
    for items in (["key"], [("key", b"x", 1)], "text", 5, [5]):
        with pytest.raises(TypeError, match="pair"):
            cache.put_many(items)
    with pytest.raises(TypeError, match="replicas"):
        cache.put("key", b"x", replicas="2")
    assert not master.objects


def test_bad_values_are_refused(master: FakeMaster, connect: Connect) -> None:
    cache = connect(master.address)
    strided = memoryview(bytes(100))[::2]
    for value in (b"", bytearray(), np.zeros(0), strided, np.zeros((8, 8))[:, ::2]):
        with pytest.raises(errors.BadValue):
            cache.put("key", value)
        with pytest.raises(errors.BadValue):
            cache.put_many({"fine": b"x", "key": value})
    for options in ({"replicas": 0}, {"replicas": 17}, {"durability": "sometimes"}):
        with pytest.raises(errors.BadValue):
            cache.put("key", b"x", **options)
    assert not master.objects


def test_anything_with_a_buffer_is_a_value(master: FakeMaster, connect: Connect) -> None:
    cache = connect(master.address)
    values = {
        "bytearray": bytearray(b"abc"),
        "memoryview": memoryview(b"xabcx")[1:4],
        "array": array.array("d", [1.0, 2.0]),
        "numpy": np.arange(12, dtype=np.float32).reshape(3, 4),
        "half": np.arange(5, dtype=np.float16),
    }
    for key, value in values.items():
        assert cache.put(key, value)
        assert cache.get(key) == memoryview(value).tobytes()
    into = np.zeros((3, 4), dtype=np.float32)
    assert cache.get_into("numpy", into) == 48
    assert (into == values["numpy"]).all()


def test_a_buffer_that_is_too_small_is_left_alone(store: FakeMaster, connect: Connect) -> None:
    cache = connect(store.address)
    cache.put("key", b"12345")
    buffer = bytearray(b"....")
    with pytest.raises(errors.BufferTooSmall, match="nothing was copied"):
        cache.get_into("key", buffer)
    assert buffer == b"...."
    with pytest.raises(TypeError, match="read-only"):
        cache.get_into("key", b"12345")


def test_a_closed_client_says_so(master: FakeMaster, connect: Connect) -> None:
    cache = connect(master.address)
    cache.put("key", b"x")
    assert cache.get("key") == b"x"
    cache.close()
    cache.close()
    for call in (lambda: cache.get("key"), lambda: cache.put("k", b"x"), lambda: cache.exists("key")):
        with pytest.raises(errors.ClientClosed):
            call()


def test_closing_gives_every_grant_back(store: FakeMaster, connect: Connect) -> None:
    """I11."""
    cache = connect(store.address)
    cache.put("small", b"x")
    cache.put("large", b"x" * 100_000)
    cache.close()
    assert {grant for grant, settled in store.returned if settled} == set(store.grants)


def test_wrong_bytes_are_never_returned(store: FakeMaster, node: Served, connect: Connect) -> None:
    cache = connect(store.address)
    cache.put("key", b"12345")
    segment, offset = store.objects["key"][1:3]
    node.memory.segments[segment - 1].mapping.map[offset : offset + 1] = b"?"
    for call in (
        lambda: cache.get("key"),
        lambda: cache.get_into("key", bytearray(5)),
    ):
        with pytest.raises(errors.ChecksumMismatch):
            call()
    assert cache.get_many(["key"]) == {}
    assert connect(store.address, verify=False).get("key") == b"?2345"


def test_another_replica_is_read_when_one_has_wrong_bytes(store: FakeMaster, node: Served, connect: Connect) -> None:
    cache = connect(store.address)
    cache.put("key", b"12345", replicas=2)
    segment, offset = store.objects["key"][1:3]
    node.memory.segments[segment - 1].mapping.map[offset : offset + 1] = b"?"
    assert cache.get("key") == b"12345"
    assert cache.get_many(["key"]) == {"key": b"12345"}


def test_a_connection_lost_in_the_middle_of_a_call_is_not_seen(store: FakeMaster, connect: Connect) -> None:
    """I10: each request is lost once before and once after it was done."""
    cache = connect(store.address)
    for act in (Act.DROP, Act.DO_AND_DROP):
        lost: set[type[Message]] = set()

        def judge(request: Message, act: Act = act, lost: set[type[Message]] = lost) -> Act:
            if isinstance(request, m.Hello) or type(request) in lost:
                return Act.USUAL
            lost.add(type(request))
            return act

        store.judge = judge
        large = f"large {act.name}"
        assert cache.put(act.name, b"x") is True
        assert cache.put(large, b"x" * 100_000) is True
        assert cache.get(act.name) == b"x"
        assert cache.get(large) == b"x" * 100_000
        assert cache.exists(act.name) is True
        assert cache.stat(act.name).size_bytes == 1
        assert {m.CommitPuts, m.GrantRanges, m.Locate, m.Exists, m.Stat} <= lost


def test_a_removal_is_sent_again_under_the_same_number(master: FakeMaster, connect: Connect) -> None:
    cache = connect(master.address)
    cache.put("key", b"x")
    acts = iter([Act.DO_AND_DROP])
    master.judge = lambda request: next(acts, Act.USUAL) if isinstance(request, m.Remove) else Act.USUAL
    cache.remove("key")
    first, second = master.asked(m.Remove)
    assert first == second


def test_another_history_voids_all_that_was_kept(master: FakeMaster, connect: Connect) -> None:
    """I14, I7: a master that starts anew knows none of the old places."""
    cache = connect(master.address)
    cache.put("key", b"x")
    assert cache.get("key") == b"x"
    master.log_id += 1
    master.objects.clear()
    master.grants.clear()
    master.cut()
    assert cache.exists("other") is False
    assert cache.get("key", None) is None
    assert cache.put("key", b"y") is True
    assert cache.get("key") == b"y"

"""The whole store, by real processes: a master, nodes and clients."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

import holdfast
from holdfast import errors
from holdfast.client.state.client import Core
from holdfast.messages.requests import Welcome
from tests.e2e.rig import Rig, said
from tests.waiting import run_together, wait_until

MIB = 1 << 20


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    with Rig("64MiB", nodes=2) as rig:
        yield rig


@pytest.mark.parametrize("size", [1, 63, 64, 1_000, 65_535, 65_536, 1_000_001, 5 * MIB])
def test_what_was_put_is_what_is_read(cache: holdfast.Cache, size: int) -> None:
    data = os.urandom(size)
    assert cache.put("k", data) is True
    assert cache.put("k", b"other") is False
    assert cache.get("k") == data
    buffer = bytearray(size + 10)
    assert cache.get_into("k", buffer) == size
    assert buffer[:size] == data
    with cache.view("k") as view:
        assert view == data
        assert view.readonly
    assert cache.get_many(["k", "absent"]) == {"k": data}
    assert cache.remove("k", force=True) == 1
    assert not cache.exists("k")


def test_two_clients_see_each_other_whichever_way_they_move_bytes(rig: Rig, cache: holdfast.Cache) -> None:
    items = {f"batch/{i}": os.urandom(1 + 997 * i) for i in range(200)}
    assert cache.put_many(items) == 200
    for mapped in (True, False):
        with rig.connect(shared_memory=mapped) as other:
            assert other.get_many(items) == items
            assert sorted(other.keys("batch/1")) == sorted(key for key in items if key.startswith("batch/1"))
            assert other.exists_many(["batch/5", "none"]) == [True, False]


def refusal(call: Callable[[], object]) -> tuple[type[Exception], str]:
    with pytest.raises(errors.Refused) as refused:
        call()
    return refused.type, str(refused.value)


def test_a_master_answers_its_unix_socket_as_its_port(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client of the master's machine takes the shorter way (docs/fast-paths.md)."""
    ways: list[str] = []
    nearer = Core.nearer

    def counted(core: Core, welcome: Welcome) -> str:
        ways.append(nearer(core, welcome))
        return ways[-1] if len(ways) == 1 else ""

    monkeypatch.setattr(Core, "nearer", counted)
    with rig.connect() as near, rig.connect() as far:
        assert [bool(way) for way in ways] == [True, True], "the second could have taken the shorter way, too"
        answers = []
        for cache in (near, far):
            value = bytes(range(256)) * 10
            answers.append(
                [
                    cache.put("k", value),
                    cache.put("k", b"other"),
                    cache.get("k"),
                    cache.get("none", None),
                    cache.exists_many(["k", "none"], touch=True),
                    cache.get_many(["k", "none"]),
                    cache.put_many({"k": b"v", "l": b"w"}, outcomes=True),
                    [(each and (each.key, each.size_bytes)) for each in cache.stat_many(["k", "l", "none"])],
                    sorted(cache.keys()),
                    refusal(lambda: cache.remove_matching("(")),  # noqa: B023
                    cache.remove_all(force=True),
                    refusal(lambda: cache.get("k")),  # noqa: B023
                ]
            )
    assert answers[0] == answers[1]


def test_an_upsert_replaces_while_an_older_view_keeps_its_bytes(rig: Rig, cache: holdfast.Cache) -> None:
    """I2"""
    cache.put("k", b"old" * 1_000)
    with rig.connect() as reader, reader.view("k") as view:
        assert cache.put("k", b"new" * 2_000, upsert=True) is True
        assert cache.get("k") == b"new" * 2_000
        cache.put_many({f"more/{i}": b"x" * 3_000 for i in range(500)})
        assert view == b"old" * 1_000


def test_removals_by_pattern_and_of_everything(cache: holdfast.Cache) -> None:
    cache.put_many({f"{letter}/{i}": b"x" for letter in "ab" for i in range(100)})
    assert cache.remove_matching("^a/.*[05]$") == 20
    assert cache.remove_matching("(a+)+$") == 0
    assert cache.remove_all() == 180
    with pytest.raises(errors.BadPattern):
        cache.remove_matching("(")


def test_a_leased_object_is_not_removed_without_force(rig: Rig, cache: holdfast.Cache) -> None:
    """I8"""
    cache.put("k", b"x")
    with rig.connect() as other:
        other.get("k")
    with pytest.raises(errors.ObjectLeased, match="ms"):
        cache.remove("k")
    assert cache.remove("k", force=True) == 1
    assert "removed by its key" in str(cache.explain("k"))


async def test_the_asynchronous_client_has_the_same_verbs(rig: Rig) -> None:
    async with holdfast.connect_async(rig.address) as cache:
        data = os.urandom(3 * MIB)
        assert await cache.put("async", data)
        assert await cache.get("async") == data
        async with cache.view("async") as view:
            assert view == data
        assert await cache.put_many({f"async/{i}": b"x" * i for i in range(1, 50)}) == 49
        assert [key async for key in cache.keys("async/4")] != []
        assert await cache.get("absent", default=None) is None
        assert await cache.remove_all(force=True) == 50


def test_many_threads_share_one_client(cache: holdfast.Cache) -> None:
    def work(number: int) -> int:
        won = 0
        for i in range(60):
            key = f"thread/{number}/{i}"
            data = key.encode() * (1 + i * 7)
            assert cache.put(key, data)
            assert cache.get(key) == data
            won += cache.put(f"the same for all/{i}", data)
        return won

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(work, range(8), timeout=90)) == 60, "each shared key has one winner"
    assert len(list(cache.keys("thread/"))) == 480


def test_racing_puts_of_one_key_have_one_winner_whose_bytes_are_there(rig: Rig, cache: holdfast.Cache) -> None:
    with rig.connect() as other:
        for i in range(50):
            results: dict[int, bool] = {}
            start = threading.Barrier(2)

            def race(
                who: int, client: holdfast.Cache, key: str, results: dict[int, bool], start: threading.Barrier
            ) -> None:
                start.wait()
                results[who] = client.put(key, bytes([who]) * 5_000)

            threads = [
                threading.Thread(target=race, args=(who, client, f"race/{i}", results, start))
                for who, client in enumerate((cache, other))
            ]
            run_together(threads)
            [winner] = [who for who, won in results.items() if won]
            assert cache.get(f"race/{i}") == bytes([winner]) * 5_000


def test_bad_input_is_refused_clearly_and_loses_nothing(cache: holdfast.Cache) -> None:
    cache.put("good", b"x" * 100)
    for key in ("", "x" * 1025, "ü" * 513, "\ud800"):
        with pytest.raises(errors.BadKey):
            cache.put(key, b"x")
    with pytest.raises(TypeError):
        cache.put(b"bytes", b"x")  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        cache.put("k", "text")  # type: ignore[arg-type]
    with pytest.raises(errors.BadValue):
        cache.put("k", b"")
    with pytest.raises(errors.TooLarge):
        cache.put("k", bytes(65 * MIB))
    with pytest.raises(errors.BadValue, match="3 replicas"):
        cache.put("k", b"x", replicas=3)
    with pytest.raises(errors.BufferTooSmall):
        cache.get_into("good", bytearray(99))
    with pytest.raises(KeyError):
        cache.get("absent")
    assert cache.get("good") == b"x" * 100


def test_nobody_at_the_address_is_said_with_the_address() -> None:
    with pytest.raises(errors.Unreachable, match=r"127\.0\.0\.1:1"):
        holdfast.connect("127.0.0.1:1", timeout=3)


def test_a_client_that_dies_with_a_view_open_holds_nothing_up(rig: Rig, cache: holdfast.Cache) -> None:
    cache.put("seen", b"x" * 10_000)
    with rig.script("viewer", "seen") as child:
        assert said(child) == "viewing 10000"
        child.kill()
        child.wait()
    wait_until(lambda: cache.stat("seen").lease_left_ms == 0, what="the dead reader's lease ends")
    assert cache.remove("seen") == 1


def test_status_adds_up(rig: Rig, cache: holdfast.Cache) -> None:
    """I9"""
    cache.put("k", b"x" * 5_000, replicas=2)
    status = cache.status()
    assert status.objects == 1
    parts = status.used_bytes + status.granted_bytes + status.quarantined_bytes + status.free_bytes
    assert parts == status.capacity_bytes == 128 * MIB
    assert {replica.node for replica in cache.stat("k").replicas} == {"bench-0", "bench-1"}

"""A client's own reads never keep it from removing a key, once they have ended; anybody else's do."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest

import holdfast
from holdfast import errors
from tests.client.inside import core_of
from tests.e2e.rig import Rig

MIB = 1 << 20


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    with Rig("64MiB") as rig:
        yield rig


def test_what_one_has_read_oneself_can_be_removed_at_once(cache: holdfast.Cache) -> None:
    cache.put_many({"got": b"1", "many": b"2", "viewed": b"3", "touched": b"4", "into": b"5" * MIB})
    cache.get("got")
    cache.get("got")
    cache.get_many(["many", "got"])
    with cache.view("viewed") as view:
        assert bytes(view) == b"3"
    cache.exists("touched", touch=True)
    cache.get_into("into", bytearray(MIB))
    for key in ("got", "many", "viewed", "touched", "into"):
        assert cache.remove(key) == 1


def test_all_that_one_has_read_oneself_can_be_removed_by_pattern(cache: holdfast.Cache) -> None:
    cache.put_many({f"pattern/{number}": b"x" for number in range(20)})
    assert len(cache.get_many([f"pattern/{number}" for number in range(20)])) == 20
    assert cache.remove_matching("^pattern/1") == 11
    assert cache.remove_all() == 9


def test_what_somebody_else_reads_is_refused(rig: Rig, cache: holdfast.Cache) -> None:
    """I8."""
    cache.put("others", b"x")
    cache.get("others")
    with rig.connect() as other:
        other.get("others")
        cache.get("others")
        with pytest.raises(errors.ObjectLeased):
            cache.remove("others")
        with pytest.raises(errors.ObjectLeased):
            other.remove("others")


def test_what_another_thread_of_the_same_client_looks_at_is_refused(cache: holdfast.Cache) -> None:
    """I2, I8: its memory would be somebody else's at once."""
    cache.put("seen", b"x" * 100_000)
    with cache.view("seen"):
        if core_of(cache).views:  # Over TCP a view is a copy, which needs nobody's leave.
            with pytest.raises(errors.ObjectLeased):
                cache.remove("seen")
    assert cache.remove("seen") == 1


async def test_the_async_client_removes_what_it_has_read(rig: Rig) -> None:
    async with holdfast.connect_async(rig.address) as cache:
        await cache.put("async", b"1")
        await cache.get("async")
        async with cache.view("async"):
            with pytest.raises(errors.ObjectLeased):
                await cache.remove("async")
        assert await cache.remove("async") == 1


def test_readers_and_removers_of_one_client_never_read_wrong_bytes(rig: Rig) -> None:
    """I2, with checksums off: only the leases keep bytes apart. Removed memory is put to other use at once."""
    rounds, keys = 150, [f"race/{number}" for number in range(8)]
    wrong: list[str] = []
    ended = threading.Event()

    def value(key: str) -> bytes:
        return key.encode() * 20_000

    def read(cache: holdfast.Cache) -> None:
        while not ended.is_set():
            for key in keys:
                data = cache.get(key, default=None)
                wrong.extend([key] if data is not None and data != value(key) else [])
            wrong.extend(key for key, data in cache.get_many(keys).items() if data != value(key))

    with rig.connect(verify=False) as cache:
        readers = [threading.Thread(target=read, args=(cache,)) for _ in range(2)]
        for reader in readers:
            reader.start()
        try:
            for number in range(rounds):
                key = keys[number % len(keys)]
                cache.put(key, value(key))
                cache.put(f"filler/{number}", os.urandom(150_000))
                try:
                    cache.remove(keys[(number + 3) % len(keys)])
                    cache.remove(f"filler/{number - 2}")
                except errors.ObjectLeased:
                    pass  # It is being read in this moment.
        finally:
            ended.set()
            for reader in readers:
                reader.join()
        cache.remove_all(force=True)
    assert not wrong

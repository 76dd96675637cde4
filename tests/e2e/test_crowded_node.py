"""A full node in which some objects must stay, by real processes: puts evict what they need, and nothing is refused."""

from __future__ import annotations

import os
import random

import pytest

from holdfast.client.cache import Cache
from holdfast.core.rules import Rules
from holdfast.ids import extent_of
from tests.e2e.rig import Rig

KIB, MIB = 1 << 10, 1 << 20
LEAST_USED = Rules().high_watermark - 2 * Rules().eviction_margin
LONG_LEASES = {"lease_ttl_ms": 300_000, "grant_timeout_ms": 600_000}


def used(cache: Cache) -> float:
    status = cache.status()
    return 1 - status.free_bytes / status.capacity_bytes


def fill(cache: Cache, size: int, share: float, chance: random.Random) -> list[str]:
    """Up to the watermark, with objects of this size; the keys of those that stay: half pinned, half leased."""
    kept: list[str] = []
    capacity = cache.status().capacity_bytes
    count = int(0.88 * capacity) // extent_of(size)
    value = os.urandom(size)
    at = 0
    while at < count:
        batch = [f"old/{number}" for number in range(at, min(at + max(1, 4 * MIB // size), count))]
        stays = [key for key in batch if chance.random() < share] or ([batch[0]] if at == 0 else [])
        cache.put_many(dict.fromkeys(stays[::2], value), hard_pin=True)
        cache.put_many(dict.fromkeys([key for key in batch if key not in stays[::2]], value))
        assert all(cache.exists_many(stays, touch=True))
        kept += stays
        at += len(batch)
    return kept


@pytest.mark.parametrize("share", [0.005, 0.05])
@pytest.mark.parametrize("size", [4 * KIB, 64 * KIB, MIB, 16 * MIB])
def test_puts_into_a_full_node_evict_about_as_much_as_they_store(size: int, share: float) -> None:
    """I8, I10: with a real log, whose records take their time."""
    capacity = 64 * MIB if size <= MIB else 256 * MIB
    with Rig(str(capacity), coordination="sqlite", **LONG_LEASES) as rig, rig.connect() as cache:
        kept = fill(cache, size, share, random.Random(5))
        assert used(cache) >= LEAST_USED
        before = cache.status()
        value = os.urandom(size)
        puts = capacity // 2 // size
        for number in range(puts):
            assert cache.put(f"new/{number}", value) is True
            if number % max(1, puts // 16) == 0:
                assert used(cache) >= LEAST_USED
        after = cache.status()
        assert used(cache) >= LEAST_USED
        evicted = after.evicted - before.evicted
        assert evicted == before.objects + puts - after.objects
        assert evicted <= (1.5 if size <= MIB else 3) * puts
        assert all(cache.exists_many(kept))
        assert cache.get(kept[-1]) is not None


def test_a_batch_is_stored_in_several_pieces_where_no_long_one_can_be_had() -> None:
    """I10: every object of it has a window, all of them together have none."""
    with Rig("64MiB", coordination="sqlite", **LONG_LEASES) as rig, rig.connect(timeout=20) as cache:
        value = os.urandom(64 * KIB)
        for number in range(900):
            cache.put(f"old/{number}", value, hard_pin=number % 8 == 0)
        batch = {f"new/{number}": os.urandom(64 * KIB) for number in range(256)}
        assert cache.put_many(batch) == 256
        assert cache.get_many(batch) == batch
        assert all(cache.exists_many([f"old/{number}" for number in range(0, 900, 8)]))

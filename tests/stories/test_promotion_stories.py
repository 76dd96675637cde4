"""The promotion document: what becomes of leases when a standby becomes primary."""

from __future__ import annotations

import gc
import time

import numpy as np
import pytest

from holdfast.core.promotion import promote
from holdfast.core.rules import Rules
from holdfast.core.state import Segment, State
from holdfast.ids import MAX_BATCH, SegmentName, object_id
from holdfast.messages import requests as q
from holdfast.replication.batches import Position
from holdfast.replication.snapshots import dump, load
from holdfast.replication.standby import Standby
from holdfast.settings import PRESETS, PresetName
from tests.core.world import check_partition
from tests.stories.pair import Pair

KIB = 1 << 10
EVERY_PRESET = pytest.mark.parametrize("preset", PRESETS)


@EVERY_PRESET
def test_put_then_read_then_crash_and_nothing_is_evicted_by_the_new_primary(preset: PresetName) -> None:
    """The document's timeline: the standby never heard of the renewal, and evicts all for it. Here it does not (I8)."""
    pair = Pair(preset)
    pair.node("a", size=100 * KIB)
    pair.put("obj1", size=KIB)
    pair.replicate()
    pair.locate("obj1")
    after = pair.crash()
    after.pass_time(1)
    assert after.has("obj1") == [True]
    assert after.lease_left("obj1") >= pair.rules.lease_ttl_ms - 1
    assert after.remove("obj1").leased == 1, "a reader that the old primary leased it to may still be reading"


@EVERY_PRESET
@pytest.mark.parametrize("proven", [True, False])
def test_a_thousand_objects_known_from_the_log_alone(preset: PresetName, proven: bool) -> None:
    pair = Pair(preset)
    pair.node("a", size=4 << 20)
    keys = [f"k{i}" for i in range(1_000)]
    pair.put(*keys, size=KIB)
    pair.replicate()
    after = pair.crash(proven)
    assert all(after.has(*keys))
    assert all(after.lease_left(key) == after.guard_ms for key in keys)
    after.locate("k1")
    assert after.put("new", size=KIB) == [True]
    check_partition(after.primary)


def test_from_a_snapshot_some_leases_are_known_and_some_are_not() -> None:
    """Those that are known are kept where they are longer; no lease ends sooner than the old primary may have said."""
    pair = Pair("follow")
    pair.node("a", size=1 << 20)
    pair.put("old", "leased", size=KIB)
    pair.locate("leased")
    pair.replicate()
    pair.renew()
    whole = b"".join(dump(pair.standby.state, pair.position, pair.standby_now))
    pair.ahead_ms -= 5_000_000  # Another master, with another clock, reads it.
    restored = load(whole, pair.standby_now)
    pair.standby = Standby(restored.state, restored.position)
    pair.put("new", size=KIB)
    pair.replicate()
    catalogue = pair.standby.state.catalogue
    known = catalogue.lease_at[catalogue.by_key.slot_of("leased")] - pair.standby_now
    assert 0 < known <= pair.rules.lease_ttl_ms
    assert catalogue.lease_at[catalogue.by_key.slot_of("new")] == 0
    after = pair.crash()
    assert all(after.lease_left(key) >= after.guard_ms for key in ("old", "leased", "new"))
    longer = after.state.catalogue.by_key.slot_of("leased")
    after.state.catalogue.lease_at[longer] = after.now + 60_000
    promote(after.state, after.primary.rules, 5_000, proven=True, now=after.now)
    assert after.lease_left("leased") == 60_000, "what is known to be longer is kept"


def test_a_million_objects_are_leased_at_promotion() -> None:
    """The document asks for ten seconds; this is one array operation."""
    state = State(cluster="x", log_id=1, epoch=1, lease_ttl_ms=10_000, soft_pin_ttl_ms=1, grant_timeout_ms=30_000)
    objects, chunk = 1_000_000, MAX_BATCH
    state.segments[1] = Segment(1, SegmentName("a", 5, 0), objects * 64, "a:1", "", "h")
    state.next_segment = 2
    for start in range(0, objects, chunk):
        count = min(chunk, objects - start)
        offsets = (start + np.arange(count, dtype=np.int64)) * 64
        sizes = np.full(count, 64, np.uint64)
        keys = [f"object/{i}" for i in range(start, start + count)]
        state.catalogue.insert_many(keys, object_id(1, start + 1), sizes, sizes, 1, offsets, 0, 0)
    gc.collect()
    began = time.perf_counter()
    primary = promote(state, Rules(), 5_000, proven=False, now=77_000)
    assert time.perf_counter() - began < 10, "the document's bound; benchmarks measure it"
    live = state.catalogue.live()
    assert len(live) == objects
    assert (state.catalogue.lease_until[live] == 77_000 + 15_000).all()
    assert primary.free_bytes == 0


@EVERY_PRESET
def test_what_was_used_shortly_before_the_failover_is_evicted_last(preset: PresetName) -> None:
    pair = Pair(preset, high_watermark=1.0)
    pair.node("a", size=100 * KIB)
    keys = [f"k{i:02d}" for i in range(90)]
    for key in keys:
        pair.put(key, size=KIB)
        pair.now += 10
    pair.replicate()
    pair.pass_time(1_000)
    pair.locate(*keys[:10])  # The oldest are the ones in use.
    pair.renew()
    after = pair.crash()
    after.now += after.guard_ms + 1
    for i in range(60):
        after.put(f"new{i}", size=KIB)
    kept = after.has(*keys[:10])
    if pair.rules.lease_sync == "off":
        assert not any(kept), "nobody told the standby, so it goes by the order of the puts"
    else:
        assert all(kept)
    check_partition(after.primary)


@EVERY_PRESET
def test_soft_pins_keep_the_time_that_they_had_left(preset: PresetName) -> None:
    """A soft pin ends by time, counted from the put or the last use that the standby knows of."""
    pair = Pair(preset, soft_pin_ttl_ms=100_000)
    pair.node("a", size=1 << 20)
    pair.put("soft", "used", size=KIB, soft_pin=True)
    pair.replicate()
    pair.pass_time(40_000)
    pair.locate("used")
    pair.renew()
    pair.now += 10_000
    after = pair.crash()
    stats = after.ask(q.Stats, q.Stat(["soft", "used"])).stats
    left = [stat.soft_pin_left_ms if stat is not None else -1 for stat in stats]
    told = pair.rules.lease_sync != "off"
    assert left == [50_000, 90_000 if told else 50_000]
    after.now += 60_000
    stats = after.ask(q.Stats, q.Stat(["soft", "used"])).stats
    assert [stat.soft_pin_left_ms for stat in stats if stat is not None] == [0, 30_000 if told else 0]


def test_a_position_is_part_of_a_snapshot() -> None:
    pair = Pair("timer")
    pair.node("a", size=1 << 20)
    pair.put("k", size=KIB)
    pair.replicate()
    assert pair.position.index == len(pair.primary.records)
    restored = load(b"".join(dump(pair.standby.state, pair.position, 0)), 0)
    assert restored.position == pair.position != Position()

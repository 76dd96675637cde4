"""The promotion document: what becomes of leases when a standby becomes primary."""

from __future__ import annotations

import gc
import time

import numpy as np
import pytest

from holdfast.core.objects.standby_eviction import evict_alone
from holdfast.core.promotion import evicted_alone, promote
from holdfast.core.state.packed_numbers import unpack_sorted_ids
from holdfast.core.state.state import Segment, State
from holdfast.ids import MAX_BATCH, SegmentName, object_id
from holdfast.messages import requests as q
from holdfast.replication.batches import Position
from holdfast.replication.snapshots import dump, load
from holdfast.replication.standby import Standby
from holdfast.settings import PRESETS, PresetName
from tests.core.world import check_partition
from tests.stories.pair import Pair, rules_of

KIB = 1 << 10
MILLION = 1_000_000
EVERY_PRESET = pytest.mark.parametrize("preset", PRESETS)


@EVERY_PRESET
@pytest.mark.parametrize("reading", ["exists", "locate"])
def test_put_then_read_then_crash_and_nothing_is_evicted_by_the_new_primary(preset: PresetName, reading: str) -> None:
    """The document's timeline: the standby never heard of the renewal, and evicts all for it. Here it does not (I8)."""
    pair = Pair(preset)
    pair.node("a", size=100 * KIB)
    pair.put("obj1", size=KIB)
    pair.replicate()
    pair.touch("obj1") if reading == "exists" else pair.locate("obj1")
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


@EVERY_PRESET
@pytest.mark.parametrize("writer", ["primary", "standby"])
def test_from_a_snapshot_some_leases_are_known_and_some_are_not(preset: PresetName, writer: str) -> None:
    """Those that are known are kept where they are longer; no lease ends sooner than the old primary may have said.

    A primary's snapshot knows its leases in every preset, a standby's only where it was told of them."""
    pair = Pair(preset)
    pair.node("a", size=1 << 20)
    pair.put("old", "leased", size=KIB)
    pair.locate("leased")
    pair.replicate()
    pair.renew()
    pair.now += 3_000
    written = (pair.standby.state, pair.standby_now) if writer == "standby" else (pair.state, pair.now)
    whole = b"".join(dump(written[0], pair.position, written[1]))
    pair.ahead_ms -= 5_000_000  # Another master, with another clock, reads it.
    restored = load(whole, pair.standby_now)
    pair.standby = Standby(restored.state, restored.position)
    pair.put("new", size=KIB)
    pair.replicate()
    told = writer == "primary" or pair.rules.lease_sync != "off"
    assert pair.known_lease("leased") == (pair.rules.lease_ttl_ms - 3_000 if told else 0)
    assert pair.known_lease("old") == pair.known_lease("new") == 0
    catalogue = pair.standby.state.catalogue
    catalogue.lease_at[catalogue.by_key.slot_of("leased")] += 60_000
    after = pair.crash()
    assert after.lease_left("old") == after.lease_left("new") == after.guard_ms, "not known: initialised"
    if told:
        assert after.lease_left("leased") == pair.rules.lease_ttl_ms + 57_000, "known to be longer: kept"
    assert after.remove("old", "leased", "new").leased == 3


@pytest.fixture(scope="module")
def million() -> State:
    """So many objects as a standby holds them that was told of no lease."""
    state = State(cluster="x", log_id=1, epoch=1, lease_ttl_ms=10_000, soft_pin_ttl_ms=1, grant_timeout_ms=30_000)
    state.segments[1] = Segment(1, SegmentName("a", 5, 0), MILLION * 64, "a:1", "", "h")
    state.next_segment = 2
    for start in range(0, MILLION, MAX_BATCH):
        count = min(MAX_BATCH, MILLION - start)
        offsets = (start + np.arange(count, dtype=np.int64)) * 64
        sizes = np.full(count, 64, np.uint64)
        keys = [f"object/{i}" for i in range(start, start + count)]
        state.catalogue.insert_many(keys, object_id(1, start + 1), sizes, sizes, 1, offsets, 0, 0)
    return state


@EVERY_PRESET
def test_a_million_objects_are_leased_at_promotion(preset: PresetName, million: State) -> None:
    """The document asks for ten seconds; this is one array operation, and whatever the standby evicted by itself
    becomes a record."""
    rules = rules_of(preset)
    million.catalogue.lease_until[:] = 0
    alone = evict_alone(million, rules, 3_600_000)
    assert bool(alone) == (rules.standby_eviction == "independent")
    gc.collect()
    began = time.perf_counter()
    primary = promote(million, rules, 5_000, proven=False, now=3_677_000)
    evictions = evicted_alone(million)
    assert time.perf_counter() - began < 10, "the document's bound; benchmarks measure it"
    assert sum(len(unpack_sorted_ids(record.ids)) for record in evictions) == alone
    live = million.catalogue.live()
    assert len(live) == MILLION, "what was evicted goes by the record, and nothing goes by its lease"
    assert (million.catalogue.lease_until[live] == 3_677_000 + 15_000).all()
    assert primary.free_bytes == 0
    million.mask.release(million.catalogue, million.mask.slots().tolist())


@EVERY_PRESET
def test_a_put_that_was_never_finished_ends_by_its_time_counted_from_the_promotion(preset: PresetName) -> None:
    """The document's cleaning of what is plainly dead (I11): objects stay, whatever their lease; a grant ends when its
    writer has been silent for the whole time once more, and its memory waits for the writer's word."""
    pair = Pair(preset)
    pair.node("a", size=1 << 20)
    pair.put("whole", size=KIB)
    grant, _ = pair.grant(8 * KIB)
    pair.pass_time(pair.rules.grant_timeout_ms - 1)
    pair.replicate()
    after = pair.crash()
    after.pass_time(pair.rules.grant_timeout_ms - 1)
    assert grant in after.state.grants
    after.pass_time(1)
    assert grant not in after.state.grants
    assert sum(held.size_bytes for held in after.state.quarantine.values()) == 8 * KIB
    assert after.has("whole") == [True]
    check_partition(after.primary)


@EVERY_PRESET
def test_what_was_on_a_node_that_never_comes_back_is_cleaned_and_nothing_else(preset: PresetName) -> None:
    """Not by its lease, and not before the node's session is over on any clock (I4)."""
    pair = Pair(preset)
    pair.node("a", size=1 << 20)
    pair.node("b", size=1 << 20, connection=101, boot=6)
    for i in range(20):
        pair.put(f"k{i}", size=KIB)
    pair.replicate()
    of = {f"k{i}": pair.state.segments[pair.locate(f"k{i}")[0][1]].name.node for i in range(20)}
    assert set(of.values()) == {"a", "b"}
    after = pair.crash()
    after.open("a", 55, connection=200)
    after.offer(55, 5, [1 << 20], after.state.log_id)
    after.pass_time(42_000)
    assert all(after.has(*of)), "the other may still come back"
    after.pass_time(1_000)
    assert dict(zip(of, after.has(*of), strict=True)) == {k: n == "a" for k, n in of.items()}
    check_partition(after.primary)


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

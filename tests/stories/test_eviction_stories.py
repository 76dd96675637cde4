"""Who evicts on a standby: the conflict of its evictions with renewals, in every plan that the documents draw."""

from __future__ import annotations

import pytest

from holdfast.core.catalogue.digest import digest
from holdfast.core.objects.eviction import victims
from holdfast.core.primary.primary import Primary
from holdfast.messages import requests as q
from holdfast.messages.records import LeasesRenewed, ObjectsEvicted, RangesGranted
from holdfast.settings import PRESETS, PresetName
from tests.core.world import check_partition
from tests.stories.pair import Pair

KIB = 1 << 10
EVERY_PRESET = pytest.mark.parametrize("preset", PRESETS)
ALONE: tuple[PresetName, ...] = ("renew-all", "delayed", "mixed", "timer")
UNLOGGED: tuple[PresetName, ...] = (*ALONE, "promote-only")


def crowded(preset: PresetName, count: int = 89, ahead_ms: int = 987_654_321, soft: int = 0, **rules: object) -> Pair:
    """Nearly at the watermark of 90 KiB, all of it known to the standby; the first are soft-pinned, if any are."""
    pair = Pair(preset, ahead_ms, **rules)
    pair.node("a", size=100 * KIB)
    for i in range(count):
        pair.put(f"k{i}", size=KIB, soft_pin=i < soft)
        pair.now += 1
    pair.replicate()
    return pair


def over_watermark(preset: PresetName) -> Pair:
    """Their leases have ended, and five more came."""
    pair = crowded(preset)
    pair.pass_time(20_000)
    for i in range(5):
        pair.put(f"more{i}", size=KIB)
    pair.replicate()
    return pair


@EVERY_PRESET
@pytest.mark.parametrize("reading", ["exists", "locate"])
@pytest.mark.parametrize("ahead_ms", [-900_000, 10**12])
def test_t1_a_read_renews_t2_the_standby_evicts_t3_the_primary_fails(
    preset: PresetName, reading: str, ahead_ms: int
) -> None:
    """The document's timeline: key_A was renewed at the primary, evicted by the standby for want of that news, and gone
    after the failover. With the news passed on, or the eviction left to the primary, it is there, whatever the clocks
    say (I16)."""
    pair = crowded(preset, ahead_ms=ahead_ms)
    pair.pass_time(20_000)
    assert pair.touch("k0") if reading == "exists" else pair.locate("k0")  # T1
    pair.renew()
    for i in range(5):
        pair.put(f"more{i}", size=KIB)
    pair.replicate()
    pair.evict_on_standby()  # T2
    after = pair.crash()  # T3
    if preset == "delayed":
        assert after.has("k0") == [False], "nobody told it, and the grace was over: this is what that plan costs"
        assert pair.has("k0") == [True]
    else:
        assert after.has("k0") == [True]
    check_partition(after.primary)


@EVERY_PRESET
def test_what_a_standby_knows_of_a_lease_is_what_its_preset_tells(preset: PresetName) -> None:
    """Plan A and D: as soon as the log has it, the same as the primary. Batched: with the next value, and as old as it
    is. Plan C and promotion alone: nothing."""
    pair = crowded(preset)
    pair.now += 5_000
    pair.locate("k0")
    pair.replicate()
    assert (pair.known_lease("k0"), pair.known_age("k0") == 0) == (
        (pair.rules.lease_ttl_ms, True) if pair.rules.lease_sync == "every" else (0, False)
    )
    pair.now += 900
    pair.renew()
    told = pair.rules.lease_sync != "off"
    assert pair.known_lease("k0") == (pair.rules.lease_ttl_ms - 900 if told else 0)
    assert (pair.known_age("k0") == 900) == told
    assert pair.known_lease("k1") == 0


@EVERY_PRESET
def test_who_evicts_on_a_standby(preset: PresetName) -> None:
    """Plan B: the primary, and the standby hears of it (I5). Promotion alone: nobody. The others: itself."""
    pair = over_watermark(preset)
    alone = pair.evict_on_standby()
    assert bool(alone) == (preset in ALONE)
    pair.pass_time(1)
    assert pair.engine.evicted == 9
    pair.replicate()
    keys = [f"k{i}" for i in range(89)]
    missing = 9 if preset in ALONE or preset == "follow" else 0
    assert pair.standby_has(*keys).count(False) == missing
    assert digest(pair.state.catalogue) == digest(pair.standby.state.catalogue)


@pytest.mark.parametrize("preset", ALONE)
@pytest.mark.parametrize("evict_soft_pinned", [True, False])
def test_a_standby_that_knows_the_same_evicts_the_same(preset: PresetName, evict_soft_pinned: bool) -> None:
    """The document's same rule on both: by last use, leases and soft pins alike. In plan C it knows the same as long as
    nothing is read."""
    pair = crowded(preset, soft=86, evict_soft_pinned=evict_soft_pinned)
    pair.pass_time(20_000)
    if preset != "delayed":
        pair.locate("k86", "k3")
        pair.replicate()
        pair.renew()
    for i in range(8):
        pair.put(f"more{i}", size=KIB)
    pair.replicate()
    pair.now += pair.rules.standby_eviction_grace_ms
    pair.evict_on_standby()
    pair.pass_time(0)
    keys = [f"k{i}" for i in range(89)] + [f"more{i}" for i in range(8)]
    assert pair.standby_has(*keys) == pair.has(*keys)
    gone = {key for key, there in zip(keys, pair.has(*keys), strict=True) if not there}
    assert gone
    assert any(key in gone for key in keys[:86]) == evict_soft_pinned, "only where nothing else was left"


@pytest.mark.parametrize(("preset", "late_ms", "spared"), [("renew-all", 1, False), ("mixed", 90, True)])
def test_plan_d_forgives_a_renewal_that_is_a_little_late(preset: PresetName, late_ms: int, spared: bool) -> None:
    """Plan A trusts the log to be there in time, and evicts what was renewed a moment ago; plan D waits for 100 ms."""
    pair = crowded(preset)
    pair.locate("k0")
    pair.replicate()
    pair.now += pair.rules.lease_ttl_ms
    pair.locate("k0")  # On its way while the standby looks.
    pair.primary.records, on_its_way = pair.primary.records[:-1], pair.primary.records[-1:]
    assert isinstance(on_its_way[0], LeasesRenewed)
    pair.now += late_ms
    evicted = victims(
        pair.standby.state, 60 * KIB, pair.standby_now, True, grace_ms=pair.rules.standby_eviction_grace_ms
    )
    slot = pair.standby.state.catalogue.by_key.slot_of("k0")
    assert (slot not in evicted.tolist()) == spared
    pair.primary.records += on_its_way
    pair.replicate()
    assert slot not in victims(pair.standby.state, 60 * KIB, pair.standby_now, soft_too=True).tolist()


@pytest.mark.parametrize("preset", ALONE)
def test_a_renewal_that_never_arrived_costs_the_object_and_not_its_reader(preset: PresetName) -> None:
    """I2: the standby evicts what the old primary had leased; its reader goes on reading the same bytes."""
    pair = crowded(preset)
    pair.pass_time(20_000)
    oid, segment, offset, *_ = pair.locate("k0")[0]
    assert oid
    for i in range(5):
        pair.put(f"more{i}", size=KIB)
    # The renewal is on its way (a value unwritten, a record not durable) when the primary dies.
    pair.primary.records = [r for r in pair.primary.records if type(r).__name__ != "LeasesRenewed"]
    pair.replicate()
    assert pair.evict_on_standby() > 0
    assert pair.standby_has("k0") == [False]
    after = pair.crash()
    assert after.has("k0") == [False]
    quarantined = [
        piece for held in after.state.quarantine.values() if held.segment == segment for piece in held.pieces
    ]
    assert (offset, KIB) in quarantined
    after.pass_time(after.guard_ms - 1)
    assert (segment, offset) not in free_starts(after.primary)
    check_partition(after.primary)
    after.pass_time(2)
    assert not after.state.quarantine, "once no lease of the old primary can live, the memory is lent again"
    check_partition(after.primary)


def free_starts(primary: Primary) -> set[tuple[int, int]]:
    return {(handle, at) for handle, allocator in primary.allocators.items() for at, _ in allocator.free_ranges()}


@pytest.mark.parametrize("preset", ["renew-all", "timer"])
def test_a_renewal_takes_back_what_the_standby_evicted_too_soon(preset: PresetName) -> None:
    pair = over_watermark(preset)
    pair.evict_on_standby()
    assert pair.standby_has("k0") == [False]
    pair.locate("k0")
    pair.renew()
    assert pair.standby_has("k0") == [True]


def test_the_grace_of_a_plan_is_kept() -> None:
    """Plan C waits for a whole lease, plan D for 100 ms, the others not at all."""
    spared: dict[str, bool] = {}
    for preset in ALONE:
        pair = crowded(preset)
        for i in range(5):
            pair.put(f"more{i}", size=KIB)
        pair.replicate()
        pair.now += 50
        pair.evict_on_standby()
        spared[preset] = len(pair.standby.state.mask) == 0
    assert spared == {"renew-all": False, "delayed": True, "mixed": True, "timer": False}


@pytest.mark.parametrize("preset", UNLOGGED)
def test_evictions_are_in_no_log_and_their_memory_is_used_again_all_the_same(preset: PresetName) -> None:
    """I5, I9"""
    pair = crowded(preset)
    for i in range(200):
        pair.put(f"more{i}", size=KIB)
        pair.pass_time(1)
    assert pair.engine.evicted > 100
    assert not [record for record in pair.primary.records if isinstance(record, ObjectsEvicted)]
    assert [record for record in pair.primary.records if isinstance(record, RangesGranted) and record.evicted]
    pair.replicate()
    pair.check()
    assert digest(pair.state.catalogue) == digest(pair.standby.state.catalogue)
    after = pair.crash()
    there = [key for key in (f"more{i}" for i in range(200)) if pair.has(key)[0]]
    if preset == "promote-only":
        assert all(after.has(*there)), "what the primary had, its successor has"


def test_a_grant_over_very_many_evicted_objects_names_none_of_them() -> None:
    """It says that all are gone that lie there, which every master finds alike (I5)."""
    pair = Pair("promote-only", high_watermark=0.5)
    pair.node("a", size=256 * KIB)
    pair.put(*[f"k{i}" for i in range(2_000)], size=64)
    pair.pass_time(60_000)
    pair.put("large", size=200 * KIB)
    pair.replicate()
    swept = [record for record in pair.primary.records if isinstance(record, RangesGranted) and record.sweeps]
    assert swept
    assert digest(pair.state.catalogue) == digest(pair.standby.state.catalogue)
    pair.check()


def put_more(pair: Pair) -> None:
    """One after the other, so that older ones are evicted."""
    for i in range(10):
        pair.put(f"more{i}", size=KIB)
        pair.pass_time(1)


@EVERY_PRESET
def test_what_is_removed_stays_removed_however_it_was_evicted(preset: PresetName) -> None:
    """I7: the primary evicted it without a word, the standby still has it, and then it is removed."""
    pair = crowded(preset)
    put_more(pair)
    gone = [f"k{i}" for i in range(10) if not pair.has(f"k{i}")[0]]
    assert gone
    assert pair.remove(gone[0]).removed == 0, "nobody saw it any more"
    pair.remove_matching(f"^{gone[1]}$")
    pair.put(gone[2], size=2 * KIB)
    pair.replicate()
    after = pair.crash()
    assert after.has(gone[0], gone[1], gone[2]) == [False, False, True]
    assert after.locate(gone[2])[0][3] == 2 * KIB
    check_partition(after.primary)


@EVERY_PRESET
def test_a_put_that_was_revoked_and_an_object_that_was_replaced_do_not_come_back(preset: PresetName) -> None:
    """I7: PUT_REVOKE and UPSERT of the document's kinds of removal."""
    pair = crowded(preset, count=40)
    grant, _ = pair.grant(KIB, keys=["revoked"])
    pair.ask(q.Done, q.ReturnGrants([grant]))
    pair.put("k3", size=2 * KIB, upsert=True)
    pair.replicate()
    pair.evict_on_standby()
    after = pair.crash()
    assert after.has("revoked", "k3") == [False, True]
    assert after.locate("k3")[0][3] == 2 * KIB
    assert after.put("revoked", size=KIB) == [True]
    check_partition(after.primary)


@EVERY_PRESET
def test_remove_all_leaves_nothing_to_come_back(preset: PresetName) -> None:
    """I7"""
    pair = crowded(preset)
    put_more(pair)
    pair.evict_on_standby()
    pair.remove_matching(force=True)
    pair.replicate()
    after = pair.crash()
    assert after.state.objects == 0
    assert pair.state.catalogue.count == 0


@EVERY_PRESET
def test_no_purge_by_lease_at_promotion(preset: PresetName) -> None:
    """Expired does not mean dead: an idle cache with room to spare is all there after the failover."""
    pair = Pair(preset)
    pair.node("a", size=1 << 20)
    keys = [f"k{i}" for i in range(100)]
    pair.put(*keys, size=KIB)
    pair.replicate()
    pair.now += 3_600_000
    pair.evict_on_standby()
    after = pair.crash()
    after.pass_time(1)
    assert all(after.has(*keys))


@EVERY_PRESET
def test_a_standby_that_was_away_for_long_misses_no_removal(preset: PresetName) -> None:
    """A delete event that lives for a minute would be lost; a record is not (I7)."""
    pair = crowded(preset)
    pair.remove("k3")
    pair.remove_matching("^k1.$")
    pair.pass_time(3_600_000)
    pair.replicate()
    assert pair.standby_has("k3", "k10", "k19", "k2") == [False, False, False, True]


@EVERY_PRESET
def test_a_node_that_goes_takes_its_objects_from_both(preset: PresetName) -> None:
    pair = Pair(preset)
    pair.node("a", size=100 * KIB)
    pair.node("b", size=100 * KIB, connection=101, boot=6)
    for i in range(150):
        pair.put(f"k{i}", size=KIB, replicas=1 + i % 2)
        pair.pass_time(1)
    pair.replicate()
    pair.evict_on_standby()
    pair.engine.connection_lost(101)
    pair.pass_time(200_000)
    pair.replicate()
    assert {segment.name.node for segment in pair.state.segments.values()} == {"a"}
    pair.check()
    assert digest(pair.state.catalogue) == digest(pair.standby.state.catalogue)
    check_partition(pair.crash().primary)

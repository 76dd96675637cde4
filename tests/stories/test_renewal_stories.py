"""The renewal documents: leases told in batches, what is lost between two of them, and clocks that differ."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from holdfast.messages import requests as q
from holdfast.replication import renewals
from holdfast.replication.renewals import (
    COALESCE_MS,
    KEPT_MS,
    READ_ALL_MS,
    SPACING_MS,
    RenewalReceiver,
    RenewalSender,
    decode_value,
)
from holdfast.settings import PRESETS, PresetName
from tests.stories.pair import Pair

KIB = 1 << 10
LEASE_MS = 10_000


@pytest.fixture(params=[name for name, preset in PRESETS.items() if preset.lease_sync == "batched"])
def pair(request: pytest.FixtureRequest) -> Pair:
    """In every preset that tells renewals in batches."""
    pair = Pair(request.param, lease_ttl_ms=LEASE_MS)
    pair.node("a", size=1 << 20)
    pair.put(*[f"k{i}" for i in range(100)], size=KIB)
    pair.replicate()
    return pair


def test_many_renewals_of_a_second_are_one_value(pair: Pair) -> None:
    for i in range(60):
        pair.now += 10
        pair.locate(f"k{i}", f"k{i + 1}")
    assert pair.write_renewals() == 1
    pair.hear_renewals()
    assert pair.known_lease("k0") == LEASE_MS - 590
    assert pair.known_lease("k60") == LEASE_MS
    assert pair.known_age("k0") == 590
    assert pair.write_renewals() == 0, "each is told once"


def test_of_several_renewals_in_one_interval_the_last_one_counts(pair: Pair) -> None:
    pair.locate("k1")
    pair.now += 900
    pair.locate("k1")
    pair.renew()
    assert pair.known_lease("k1") == LEASE_MS
    assert pair.known_age("k1") == 0


def test_a_crash_right_after_the_scan_loses_that_second_and_no_promise(pair: Pair) -> None:
    """I2, I8: the value was never written; the promoted standby takes every lease to be as long as it may be."""
    pair.locate("k1")
    assert pair.sender.take(pair.now), "scanned, encoded, and then the power went"
    after = pair.crash(proven=False)
    assert after.lease_left("k1") == LEASE_MS + 5_000
    assert after.remove("k1").leased == 1


def test_a_write_that_fails_is_told_with_the_next_one(pair: Pair) -> None:
    pair.locate("k1")
    ((_, _, part),) = pair.sender.take(pair.now)
    pair.sender.lost(part)
    pair.now += 1_000
    pair.locate("k2")
    pair.renew()
    assert pair.known_lease("k1") == LEASE_MS - 1_000
    assert pair.known_lease("k2") == LEASE_MS


def test_what_was_removed_meanwhile_is_not_told_again(pair: Pair) -> None:
    """I7: neither the failed value nor its slot, taken by another object since, brings anything back."""
    pair.locate("k1")
    ((_, _, part),) = pair.sender.take(pair.now)
    pair.remove("k1", force=True)
    pair.put("other", size=KIB)
    pair.sender.lost(part)
    assert pair.sender.take(pair.now) == []


def test_a_late_renewal_creates_nothing(pair: Pair) -> None:
    """I7"""
    pair.locate("k1", "k2")
    pair.write_renewals()
    pair.remove("k1", force=True)
    pair.put("k1", size=2 * KIB)
    pair.replicate()
    pair.hear_renewals()
    assert pair.known_lease("k1") == 0, "it is another object under the same key"
    assert pair.known_lease("k2") == LEASE_MS
    assert pair.standby.state.objects == pair.state.objects


def test_a_renewal_urgent_by_the_lease_that_was_left_goes_at_once(pair: Pair) -> None:
    """Not by the lease just given, which is never about to end."""
    sender = pair.sender
    urges: list[bool] = []
    pair.on_urgent = lambda: urges.append(sender.urge(pair.now))
    pair.locate("k1")
    assert urges == [True], "it had no lease"
    assert sender.due_at() == pair.now + COALESCE_MS
    pair.now += COALESCE_MS
    pair.write_renewals()
    pair.now += 2_000
    pair.locate("k1")
    assert urges == [True], "eight seconds were left"
    assert sender.due_at() <= pair.now, "its time has come anyway"
    pair.write_renewals()
    pair.now += LEASE_MS - 500
    pair.locate(*["k1"] * 20)
    assert urges == [True, True], "half a second was left"


@pytest.mark.parametrize("preset", [name for name, preset in PRESETS.items() if preset.lease_sync == "batched"])
@pytest.mark.parametrize("interval_ms", [100, 1_000])
def test_what_a_crash_can_lose_is_one_interval(preset: PresetName, interval_ms: int) -> None:
    """The document's shorter scan: whatever was renewed, and was not urgent, is due within the interval."""
    pair = Pair(preset, lease_ttl_ms=LEASE_MS, renewal_interval_ms=interval_ms)
    pair.node("a", size=1 << 20)
    pair.put("early", "late", size=KIB)
    pair.locate("early", "late")
    pair.replicate()
    pair.renew()
    pair.now += 2_000
    pair.write_renewals()  # Nothing to tell; the next turn is an interval from here.
    pair.locate("early")
    assert 0 < pair.sender.due_at() - pair.now <= interval_ms
    pair.now = pair.sender.due_at()
    pair.renew()
    pair.now += 1
    pair.locate("late")
    after = pair.crash()
    ages = [stat.unused_ms for stat in after.ask(q.Stats, q.Stat(["early", "late"])).stats if stat is not None]
    assert ages == [interval_ms + 1, 2_000 + interval_ms + 1], "the last read is lost, the one before is not"


def test_a_stream_of_urgent_renewals_shares_a_few_writes(pair: Pair) -> None:
    """I17: what hot keys cost coordination does not grow with their number."""
    writes = 0
    for step in range(10_000):
        pair.now += 1
        pair.sender.urge(pair.now)
        pair.state.catalogue.renewed_at[step % 100] = 1
        if pair.now >= pair.sender.due_at():
            writes += pair.write_renewals()
    assert writes <= 2 * 10


@pytest.mark.parametrize("proven", [True, False])
def test_a_crash_while_an_urgent_renewal_waits_its_turn_breaks_no_promise(pair: Pair, proven: bool) -> None:
    """I2, I8: the standby believes that the lease has ended; the primary gave a new one, and told nobody yet."""
    pair.locate("k1")
    pair.renew()
    pair.now += LEASE_MS - 1
    pair.locate("k2")
    pair.renew()
    pair.sender.urge(pair.now)
    pair.locate("k1")
    assert pair.sender.due_at() == pair.now + SPACING_MS
    pair.now += SPACING_MS - 1
    assert pair.known_lease("k1") == 0
    after = pair.crash(proven)
    assert after.lease_left("k1") >= LEASE_MS - (SPACING_MS - 1)
    assert after.remove("k1").leased == 1


def test_no_value_of_the_last_minute_is_applied_twice_at_the_shortest_interval(pair: Pair) -> None:
    """A value applied again would take back what the standby evicted since."""
    for number in range(1, 3_001):
        pair.now += 100
        pair.locate("k1")
        before = pair.published
        pair.published = {}
        pair.write_renewals()
        pair.hear_renewals()
        pair.published = dict([*before.items(), *pair.published.items()][-KEPT_MS // 100 :])
        if number % (READ_ALL_MS // 100) == 0:
            pair.hear_renewals()
    assert pair.receiver.applied == pair.sender.written == 3_000


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("ahead_ms", [0, -900_000, 10**12])
def test_clocks_that_differ_tell_the_same(preset: PresetName, ahead_ms: int) -> None:
    """I16: a lease, an age and a soft pin are as long on every clock, and so is what a promotion makes of them."""
    pair = Pair(preset, ahead_ms=ahead_ms, lease_ttl_ms=LEASE_MS, soft_pin_ttl_ms=100_000)
    pair.node("a", size=1 << 20)
    pair.put("k", size=KIB, soft_pin=True)
    pair.replicate()
    pair.now += 5_000
    pair.locate("k")
    if pair.rules.lease_sync == "every":
        pair.replicate()  # A record is as old as it is late: here it is not.
    pair.now += 700
    pair.renew()
    told = pair.rules.lease_sync != "off"
    assert pair.known_lease("k") == (LEASE_MS - 700 if told else 0)
    assert pair.known_age("k") == (700 if told else 5_700)
    after = pair.crash()
    assert after.lease_left("k") == LEASE_MS
    (stat,) = after.ask(q.Stats, q.Stat(["k"])).stats
    assert stat is not None
    assert stat.soft_pin_left_ms == (99_300 if told else 94_300)
    assert stat.unused_ms == (700 if told else 5_700)


def test_a_value_read_late_is_known_to_be_old(pair: Pair) -> None:
    """The watch was lost for 25 s: what the safety net finds is dated by the quickest value of the same writer."""
    pair.locate("k0")
    pair.renew()
    pair.now += 3_000
    pair.locate("k1")
    pair.write_renewals()
    pair.now += 25_000
    pair.locate("k2")
    pair.write_renewals()
    pair.hear_renewals()
    assert pair.known_age("k1") == 25_000
    assert pair.known_lease("k1") == 0
    assert pair.known_lease("k2") == LEASE_MS


def test_each_value_is_applied_once_in_any_order(pair: Pair) -> None:
    pair.locate("k0")
    pair.write_renewals()
    pair.now += 1_000
    pair.locate("k1")
    pair.write_renewals()
    first, second = sorted(pair.published.items())
    state, now = pair.standby.state, pair.standby_now
    for values in (dict([second]), dict([first]), dict([first, second])):
        pair.receiver.take(state, values, now)
    assert pair.receiver.applied == 2
    assert pair.known_lease("k0") == LEASE_MS - 1_000
    pair.receiver.forget()
    pair.receiver.take(state, pair.published, now)
    assert pair.receiver.applied == 4, "a standby that started over hears them all again"


def history_of_the_same_epochs_and_ids(pair: Pair, log_id: int) -> Pair:
    """Another history. It began long ago, and its primary has found nobody to write renewals to until now."""
    other = Pair("follow", lease_ttl_ms=LEASE_MS)
    other.state.log_id = log_id
    other.node("a", size=1 << 20)
    other.put(*[f"k{i}" for i in range(100)], size=KIB)
    other.now += 8_000
    other.locate("k1")
    other.write_renewals()
    other.now = pair.now
    return other


def test_renewals_of_an_older_history_tell_the_next_one_nothing(pair: Pair) -> None:
    """The store was replaced, and a primary that had not seen it wrote into the new one. Its value would make the new
    primary's look eight seconds older than they are, take their numbers, and renew an object that is another one
    (seed 20003940)."""
    older = history_of_the_same_epochs_and_ids(pair, log_id=10)
    pair.now += 1_000
    pair.locate("k2")
    pair.write_renewals()
    pair.published |= older.published
    assert len(pair.published) == 2, "neither is written over the other"
    pair.hear_renewals()
    assert pair.receiver.applied == 1
    assert pair.known_lease("k2") == LEASE_MS
    assert pair.known_age("k2") == 0
    assert pair.known_lease("k1") == 0


def test_a_standby_that_followed_an_older_history_dates_the_next_one_by_itself(pair: Pair) -> None:
    older = history_of_the_same_epochs_and_ids(pair, log_id=10)
    older.standby.state.log_id = 10
    pair.receiver.take(older.standby.state, older.published, pair.standby_now)
    assert pair.receiver.applied == 1
    pair.now += 1_000
    pair.locate("k2")
    pair.write_renewals()
    pair.hear_renewals()
    assert pair.receiver.applied == 2
    assert pair.known_age("k2") == 0


class RenewalValueOf020(msgspec.Struct, array_like=True):
    epoch: int
    number: int
    written_ms: int
    ids: bytes
    lease_left_ms: bytes
    unused_ms: bytes
    soft_pinned: bytes
    soft_pin_left_ms: bytes


def test_masters_of_this_release_and_of_0_2_0_tell_each_other(pair: Pair) -> None:
    """Release 0.2.0 does not name the history, and passes over what it does not know at the end of a value."""
    pair.locate("k1")
    pair.write_renewals()
    ((name, value),) = pair.published.items()
    as_read_by_020 = msgspec.msgpack.decode(value, type=RenewalValueOf020)
    pair.published[name] = msgspec.msgpack.encode(as_read_by_020)
    pair.hear_renewals()
    assert pair.known_lease("k1") == LEASE_MS


def test_very_many_renewals_are_several_values_that_each_fit(pair: Pair) -> None:
    pair.sender.most_bytes = 1_000
    pair.locate(*[f"k{i}" for i in range(100)])
    values = pair.sender.take(pair.now)
    assert len(values) > 1
    assert all(len(value) <= 1_000 for _, value, _ in values)
    assert sum(len(part) for _, _, part in values) == 100
    assert len({name for name, _, _ in values}) == len(values)


def test_soft_pins_travel_with_renewals(pair: Pair) -> None:
    pair.put("pinned", size=KIB, soft_pin=True)
    pair.replicate()
    pair.pass_time(600_000)
    pair.locate("pinned", "k1")
    pair.renew()
    catalogue = pair.standby.state.catalogue
    slot = catalogue.by_key.slot_of("pinned")
    assert catalogue.soft_pin_until[slot] - pair.standby_now == pair.rules.soft_pin_ttl_ms
    assert catalogue.by_key.slot_of("k1") not in catalogue.soft_pin_until


@pytest.mark.parametrize(
    "spoil", [b"", b"\x00", b"\xff" * 40, b"\x98\x01\x01\x01\xc4\x01x\xc4\x00\xc4\x00\xc4\x00\xc4\x00"]
)
def test_a_value_that_makes_no_sense_costs_that_value(pair: Pair, spoil: bytes) -> None:
    """I18"""
    pair.locate("k1")
    pair.write_renewals()
    pair.published["renewals/zzz"] = spoil
    faults = pair.receiver.take(pair.standby.state, pair.published, pair.standby_now)
    assert len(faults) == 1
    assert pair.known_lease("k1") == LEASE_MS


def test_a_torn_value_is_refused_wherever_it_was_cut(pair: Pair) -> None:
    """I18: and nothing is allocated by a length that it names."""
    pair.locate("k1", "k5", "k50")
    pair.write_renewals()
    (value,) = pair.published.values()
    for cut in range(len(value)):
        with pytest.raises(renewals.BadRenewals):
            decode_value(value[:cut])
    for at in range(len(value)):
        spoilt = bytearray(value)
        spoilt[at] ^= 0x5A
        receiver = RenewalReceiver()
        receiver.take(pair.standby.state, {"renewals/x": bytes(spoilt)}, pair.standby_now)
    assert pair.standby.state.objects == 100


def test_a_renewal_takes_few_bytes(pair: Pair) -> None:
    """15,000 a second within 300 KB: twenty bytes each at the most."""
    rng = np.random.default_rng(1)
    state = pair.state
    for slot in rng.choice(100, 80, replace=False).tolist():
        pair.locate(str(state.catalogue.keys[slot]))
        pair.now += 7
    ((_, value, part),) = RenewalSender(state, pair.rules, 1, 0, 1 << 20).take(pair.now)
    assert len(part) == 80
    assert len(value) < 80 * 8

"""Settings changed while the cluster runs: they count once durable, outlive the primary, and a lease that was given
under a longer time is reckoned with until it has ended (I2, I8)."""

from __future__ import annotations

import msgspec
import pytest

from holdfast.core.promotion import guard_ms, promote
from holdfast.core.rules import CHANGEABLE, Rules
from holdfast.core.state.apply import apply
from holdfast.core.state.state import State
from holdfast.errors import BadValue
from holdfast.master.engine.engine import Engine
from holdfast.messages import requests as q
from holdfast.messages.commands import UpdateConfig
from holdfast.messages.records import CopyingChanged, SettingsChanged
from holdfast.replication.batches import Position
from holdfast.replication.snapshots import _changed, _head_of, dump, load
from tests.core.copies.test_plan import three_nodes
from tests.core.world import World
from tests.master.engine.test_durability import Writer


def change(world: World, **changes: object) -> q.SettingsInForce:
    return world.ask(q.SettingsInForce, q.ChangeSettings(changes))  # type: ignore[arg-type]


def test_what_was_changed_counts_and_can_be_taken_back() -> None:
    world = World()
    assert change(world).changed == []
    told = change(world, lease_ttl_ms=2_000, high_watermark=0.5, evict_soft_pinned=False)
    assert told.changed == ["evict_soft_pinned", "high_watermark", "lease_ttl_ms"]
    rules = world.primary.rules
    assert (rules.lease_ttl_ms, rules.high_watermark, rules.evict_soft_pinned) == (2_000, 0.5, False)
    assert told.settings["lease_ttl_ms"] == 2_000
    assert world.primary.twin.changed == world.state.changed
    assert change(world, lease_ttl_ms=None, high_watermark=1).changed == ["evict_soft_pinned", "high_watermark"]
    assert world.primary.rules.lease_ttl_ms == Rules().lease_ttl_ms
    before = len(world.primary.records)
    assert change(world, high_watermark=1.0).settings["high_watermark"] == 1.0
    assert len(world.primary.records) == before, "what changes nothing is not logged"


@pytest.mark.parametrize(
    ("name", "value"),
    [("lease_ttl_ms", 0), ("lease_ttl_ms", 1.5), ("lease_ttl_ms", True), ("high_watermark", 1.01),
     ("evict_soft_pinned", 1), ("eviction_margin", -0.1), ("session_lease_ms", 5), ("token", 1)],
)  # fmt: skip
def test_a_value_that_cannot_be_is_refused_whole(name: str, value: object) -> None:
    world = World()
    with pytest.raises(BadValue, match="nothing was changed"):
        change(world, soft_pin_ttl_ms=5, **{name: value})
    assert world.state.changed == {}
    assert world.primary.rules == Rules()


def test_every_changeable_setting_can_be_changed_to_what_it_is() -> None:
    assert {"lease_ttl_ms", "high_watermark", "evict_soft_pinned"} < CHANGEABLE.keys()
    for name, (kind, least, most) in CHANGEABLE.items():
        value = getattr(Rules(), name)
        assert type(value) is kind
        assert least <= value <= most
        assert change(World(), **{name: value}).changed == [name]


def test_a_longer_lease_is_given_only_once_the_log_knows_of_it() -> None:
    """I8: a promotion after a crash would otherwise count with the shorter one."""
    writer = Writer()
    writer.ask(q.ChangeSettings({"lease_ttl_ms": 60_000}))
    located = writer.ask(q.Locate(["absent"]))
    assert isinstance(located, q.Located)
    assert located.lease_ttl_ms == 10_000
    assert [type(reply) for reply in writer.write()] == [q.SettingsInForce]
    located = writer.ask(q.Locate(["absent"]))
    assert isinstance(located, q.Located)
    assert located.lease_ttl_ms == 60_000


def test_after_a_shorter_lease_the_longer_ones_bind_a_promotion_until_they_have_ended() -> None:
    """I2, I8: also through a snapshot."""
    world = World(lease_ttl_ms=60_000)
    change(world, lease_ttl_ms=1_000)
    world.pass_time(1)
    for state in (world.primary.twin, restored(world.state)):
        assert guard_ms(state, 5_000, proven=True) == 60_000
    world.pass_time(59_000)
    assert guard_ms(world.primary.twin, 5_000, proven=True) == 60_000
    world.pass_time(2_000)
    assert guard_ms(world.primary.twin, 5_000, proven=True) == 1_000
    assert isinstance(world.primary.records[-1], SettingsChanged)
    assert world.primary.rules.lease_ttl_ms == 1_000
    before = len(world.primary.records)
    world.pass_time(10_000)
    assert len(world.primary.records) == before, "it is said once"


def test_a_second_promotion_soon_after_one_with_a_shorter_lease_keeps_the_first_ones_guard() -> None:
    """I8: the leases of two primaries ago may still live, whatever the last one was started with."""
    world = World(lease_ttl_ms=60_000)
    first = Engine(promote(restored(world.state), Rules(lease_ttl_ms=1_000), 5_000, True, 0))
    first.start_epoch(2, 0)
    assert first.primary.rules.lease_ttl_ms == 1_000
    assert guard_ms(first.state, 5_000, proven=True) == 60_000
    first.tick(1_000)
    assert guard_ms(first.state, 5_000, proven=True) == 60_000
    first.tick(62_000)
    assert guard_ms(first.state, 5_000, proven=True) == 1_000


def test_a_change_outlives_the_primary_it_was_told() -> None:
    world = World()
    change(world, high_watermark=0.5)
    for state in (world.primary.twin, restored(world.state)):
        primary = promote(state, Rules(high_watermark=0.8, lease_ttl_ms=77), 5_000, True, 0)
        assert (primary.rules.high_watermark, primary.rules.lease_ttl_ms) == (0.5, 77)
        engine = Engine(primary)
        engine.start_epoch(9, 0)
        assert engine.primary.rules.high_watermark == 0.5
        reply, _ = engine.handle(q.ChangeSettings({"high_watermark": None}), 1, 1, 0)
        assert isinstance(reply, q.SettingsInForce)
        assert engine.primary.rules.high_watermark == 0.8


def test_a_setting_of_a_newer_version_is_left_alone() -> None:
    state = State()
    state.changed = {"of_the_future": 3, "lease_ttl_ms": 5}
    assert promote(state, Rules(), 5_000, True, 0).rules.lease_ttl_ms == 5


def test_what_nodes_go_by_is_told_to_them_at_once() -> None:
    world, nodes = three_nodes()
    change(world, high_watermark=0.8)
    assert nodes.take("config_update") == [], "that is no concern of theirs"
    change(world, report_interval_ms=500)
    assert [told.body for told in nodes.take("config_update")] == [UpdateConfig(512 << 20, 500)] * 3
    change(world, copy_bytes_per_second=1_000_000, copy_window_bytes=8 << 20)
    told = nodes.take("config_update")
    assert {one.node for one in told} == {"a", "b", "c"}
    assert all((one.body, one.confirm) == (UpdateConfig(1_000_000, 500), True) for one in told)
    assert world.primary.rules.copy_window_bytes == 8 << 20
    change(world, copy_bytes_per_second=None)
    assert [told.body for told in nodes.take("config_update")] == [UpdateConfig(512 << 20, 500)] * 3
    world.open("d", 9, 109)
    assert world.offer(9, 9, [1 << 20]).report_interval_ms == 500, "who comes later is told then"


def test_the_speed_of_copies_that_an_earlier_version_logged_is_a_changed_setting() -> None:
    for logged, means in ((7_000, 7_000), (-1, 0)):
        state = State()
        apply(state, CopyingChanged(logged), 0)
        for found in (state, restored(state)):
            assert promote(found, Rules(), 5_000, True, 0).rules.copy_bytes_per_second == means
    now = _head_of(State(), Position(0, 0, b""), 0)
    old = msgspec.structs.replace(now, copy_bytes_per_second=-1, changed={"lease_ttl_ms": 5})
    assert _changed(old) == {"copy_bytes_per_second": 0, "lease_ttl_ms": 5}


def restored(state: State) -> State:
    return load(b"".join(dump(state, Position(3, state.index, b"h" * 16), 0)), 0).state

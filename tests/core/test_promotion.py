"""A standby's state becomes a primary: free space, leases and nodes as DESIGN 8 asks, from the log or a snapshot."""

from __future__ import annotations

import numpy as np
import pytest

from holdfast.core.catalogue.digest import digest
from holdfast.core.objects.standby_eviction import evict_alone
from holdfast.core.promotion import guard_ms, promote
from holdfast.core.rules import Rules
from holdfast.core.state.apply import apply
from holdfast.core.state.state import State
from holdfast.ids import GrantId
from holdfast.instant import lengthened
from holdfast.master.engine.engine import Engine
from holdfast.messages import of_nodes as n
from holdfast.messages import of_sessions as ss
from holdfast.messages import requests as q
from holdfast.messages.records import SettingsChanged
from holdfast.replication.batches import Position
from holdfast.replication.snapshots import CorruptSnapshot, dump, found_in, load, verify
from tests.core.key_table import fingerprints_in, show
from tests.core.world import CLIENT, World


@pytest.fixture
def world() -> World:
    """A state with everything in it: objects of one and two replicas, pins, grants, quarantine, answers."""
    world = World()
    world.node("a", size=1 << 22)
    world.node("b", size=1 << 22, connection=101, boot=6, segments=2)
    world.put(*[f"k{i}" for i in range(50)], size=700)
    world.put(*[f"r{i}" for i in range(20)], size=70_000, replicas=2)
    world.put("hard", hard_pin=True)
    world.put("soft", soft_pin=True)
    world.locate("k0", "r0")
    world.remove("k0", force=True)
    world.remove("k1", "r1", force=True)
    world.grant(8_000)
    grant, _ = world.grant(9_000, writer=0, replicas=2)
    world.commit(grant, [("half", 64, 600)])
    ended, _ = world.grant(5_000, writer=2)
    world.pass_time(world.primary.rules.grant_timeout_ms - 1_000)
    world.ask(q.Done, q.ExtendGrants([grant]))
    world.pass_time(1_000)
    assert ended not in world.state.grants
    world.check()
    return world


def states(world: World) -> list[State]:
    position = Position(3, world.state.index, b"h" * 16)
    restored = load(b"".join(dump(world.state, position, world.now)), 5_000)
    assert restored.position == position
    assert restored.faults == []
    return [world.primary.twin, restored.state]


def test_free_space_is_what_the_old_primary_had(world: World) -> None:
    """I9"""
    for state in states(world):
        primary = promote(state, world.primary.rules, 5_000, proven=True, now=5_000)
        assert digest(state.catalogue) == digest(world.state.catalogue)
        assert primary.free_bytes == world.primary.free_bytes
        for handle, allocator in primary.allocators.items():
            mine, its = allocator.free_ranges(), world.primary.allocators[handle].free_ranges()
            assert sorted(mine) == sorted(its)


def test_every_lease_is_at_least_the_guard(world: World) -> None:
    """I2, I8: the old primary may have renewed any lease in its last moment, and unproven may still be doing it."""
    for proven in (True, False):
        for state in states(world):
            promote(state, world.primary.rules, 5_000, proven, now=7_000)
            until = 7_000 + guard_ms(state, 5_000, proven)
            assert until == 7_000 + 10_000 + (0 if proven else 5_000)
            live = state.catalogue.live()
            assert (state.catalogue.lease_until[live] >= until).all()


def hiding(world: World) -> tuple[State, list[str]]:
    """A standby's state in which some objects are evicted without a record, and their keys."""
    state = world.primary.twin
    rules = Rules(standby_eviction="independent", high_watermark=0.1, eviction_margin=0.05)
    while evict_alone(state, rules, world.now + 3_600_000):
        pass
    keys = [state.catalogue.keys[slot] for slot in state.mask.slots().tolist()]
    assert len(keys) > 10
    return state, [key for key in keys if key is not None]


def test_a_takeover_by_a_guess_shows_what_the_standby_had_evicted_alone(world: World) -> None:
    """I7: the earlier primary may still show it. A put of the new one under its key would be there beside it."""
    state, keys = hiding(world)
    shown, words = show(state.catalogue)
    before = digest(state.catalogue)
    engine = Engine(promote(state, world.primary.rules, 5_000, False, 5_000, suspects=[]))
    engine.start_epoch(2, 5_000)
    assert (len(state.mask), state.objects) == (0, world.state.objects)
    assert digest(state.catalogue) == before, "it has only been hidden"
    assert engine.primary.free_bytes == world.primary.free_bytes
    sizes = (64).to_bytes(8, "little") * len(keys)
    reply, _ = engine.handle(q.GrantRanges(GrantId(CLIENT, 900), sizes, keys=keys), CLIENT, 1, 5_000)
    assert isinstance(reply, q.Granted)
    assert reply.taken == b"\1" * len(keys), "all of them are stored"
    while shown.catch_up():
        pass
    live = state.catalogue.live()
    assert fingerprints_in(words) == sorted(state.catalogue.key_hashes[live].tolist())


def test_a_takeover_by_proof_evicts_what_the_standby_had_evicted_alone(world: World) -> None:
    """Nobody shows it any more; its memory waits for the leases that the earlier primary may have given (I2, I8)."""
    state, keys = hiding(world)
    engine = Engine(promote(state, world.primary.rules, 5_000, proven=True, now=5_000))
    engine.start_epoch(2, 5_000)
    assert (len(state.mask), state.objects) == (0, world.state.objects - len(keys))
    assert not any(state.catalogue.by_key.presence(keys))
    assert engine.primary.free_bytes == world.primary.free_bytes


def test_the_identity_that_opened_a_session_owns_it_also_under_the_next_primary(world: World) -> None:
    world.primary.sessions.speakers[9] = "node of the trainers"
    world.engine.handle(ss.OpenSession(70, "c"), 0, 9, world.now)
    for state in states(world):
        primary = promote(state, world.primary.rules, 5_000, proven=True, now=5_000)
        assert {one.name: one.owner for one in primary.sessions} == {"a": "", "b": "", "c": "node of the trainers"}
    world.engine.handle(ss.CloseSession(70), 0, 9, world.now)
    assert world.state.session_owners == {}


def test_grants_quarantine_and_answers_survive(world: World) -> None:
    for state in states(world):
        primary = promote(state, world.primary.rules, 5_000, proven=True, now=5_000)
        assert state.grants.keys() == world.state.grants.keys()
        assert state.quarantine == world.state.quarantine
        assert state.answers == world.state.answers
        assert state.sessions == world.state.sessions == {5: "a", 6: "b"}
        assert (state.session_epoch, state.epoch_starts) == (world.state.session_epoch, world.state.epoch_starts)
        assert (state.session_lease_ms, state.session_jeopardy_ms) == (12_000, 30_000)
        assert (state.next_quarantine, state.next_segment) == (world.state.next_quarantine, world.state.next_segment)
        assert set(primary.grant_deadline) == set(state.grants)
        assert all(when == 5_000 + primary.rules.grant_timeout_ms for when in primary.grant_deadline.values())
        leased = {entry for entry, held in state.quarantine.items() if held.grant is None}
        assert primary.release_at == dict.fromkeys(leased, 15_000)
        assert {name: len(member.handles) for name, member in primary.members.items()} == {"a": 1, "b": 2}


def test_last_use_and_soft_pins_travel_as_ages(world: World) -> None:
    """I16"""
    restored = states(world)[1]
    for key in ("k5", "r3", "soft"):
        before, after = (s.catalogue.by_key.slot_of(key) for s in (world.state, restored))
        age = world.now - world.state.catalogue.used_at[before]
        assert 5_000 - restored.catalogue.used_at[after] == age
    slot = restored.catalogue.by_key.slot_of("soft")
    assert 0 < restored.catalogue.soft_pin_until[slot] - 5_000 <= world.primary.rules.soft_pin_ttl_ms


def test_overlapping_ranges_are_never_served(world: World) -> None:
    """I9, I15"""
    state = world.primary.twin
    state.catalogue.offsets[state.catalogue.by_key.slot_of("k5")] = state.catalogue.offsets[
        state.catalogue.by_key.slot_of("k6")
    ]
    with pytest.raises(ValueError, match="overlap"):
        promote(state, world.primary.rules, 5_000, proven=True, now=5_000)


def test_an_altered_bit_anywhere_in_a_snapshot_is_noticed_by_whoever_verifies_it() -> None:
    """I13: also in the name of a section, which no checksum covers. The log was trimmed behind such a snapshot, and a
    restore from it was accepted and failed again and again (seed 3001300)."""
    world = World()
    world.node("a", size=1 << 20)
    world.put("k1", "k2")
    content = b"".join(dump(world.state, Position(3, world.state.index, b"h" * 16), world.now))
    assert verify(content).index == found_in(content, "here").index
    for at in range(len(content)):
        altered = bytearray(content)
        altered[at] ^= 1
        for look in (verify, lambda data: found_in(data, "here"), lambda data: load(data, world.now)):
            with pytest.raises(CorruptSnapshot):
                look(bytes(altered))


def test_a_snapshot_with_a_flipped_bit_or_a_missing_end_is_refused(world: World) -> None:
    whole = b"".join(dump(world.state, Position(), world.now))
    for at in range(0, len(whole), 997):
        torn = bytearray(whole)
        torn[at] ^= 1
        with pytest.raises(CorruptSnapshot):
            load(bytes(torn), 0)
    for cut in range(0, len(whole), 1_009):
        with pytest.raises(CorruptSnapshot):
            load(whole[:cut], 0)


def test_an_entry_that_makes_no_sense_costs_that_entry(world: World) -> None:
    """I18"""
    catalogue = world.state.catalogue
    bad = [catalogue.by_key.slot_of(key) for key in ("k5", "k6", "k7", "k8")]
    catalogue.offsets[bad[0]] = 1 << 40
    catalogue.segments[bad[1]] = 99
    catalogue.sizes[bad[2]] = -1
    catalogue.keys.drop(bad[3])
    catalogue.keys.put(bad[3], b"k9")
    restored = load(b"".join(dump(world.state, Position(), world.now)), 0)
    assert restored.state.catalogue.count == catalogue.count - 4
    assert len(restored.faults) >= 4
    assert np.all([restored.state.catalogue.by_key.slot_of(f"k{i}") >= 0 for i in range(9, 50)])


def test_a_new_primary_places_puts_on_nodes_that_have_not_come_back_yet(world: World) -> None:
    """They count as just heard; waiting for them would be an outage, and evicting for want of them a loss (I1)."""
    state = world.primary.twin
    primary = promote(state, world.primary.rules, 5_000, proven=True, now=world.now)
    engine = Engine(primary)
    sizes = (64).to_bytes(8, "little")
    for serial in (900, 901):
        reply, _ = engine.handle(q.GrantRanges(GrantId(CLIENT, serial), sizes, replicas=2), CLIENT, 1, world.now)
        assert isinstance(reply, q.Granted)
    again = n.RegisterNode(5, 5, state.log_id, "host", "a:1", "/a", [1 << 22])
    reply, _ = engine.handle(again, 0, 50, world.now + 100)
    assert isinstance(reply, n.Registered)
    reply, _ = engine.handle(ss.OpenSession(77, "b"), 0, 51, world.now + 100)
    assert isinstance(reply, ss.Opened), "a restarted node is not kept out by the one that the log remembers"
    newer = n.RegisterNode(77, 77, 0, "host", "b:1", "/b", [1 << 22])
    reply, _ = engine.handle(newer, 0, 51, world.now + 100)
    assert isinstance(reply, n.Registered)


def test_nothing_is_evicted_for_want_of_a_node(world: World) -> None:
    """A put that waits for a silent node must not empty the cache meanwhile."""
    before = world.state.catalogue.count
    for connection in (100, 101):
        world.engine.connection_lost(connection)
    request = q.GrantRanges(GrantId(CLIENT, 900), (64).to_bytes(8, "little"))
    assert world.send(request, timeout_ms=20_000) is None
    world.pass_time(15_000)
    assert world.state.catalogue.count == before
    world.open("a", 50, connection=105)
    world.offer(50, 5, [1 << 22], world.state.log_id, live_writers=[1, 2])
    [late] = world.late
    assert isinstance(late, q.Granted), "the node is back, and with it the room"


def test_a_snapshot_without_objects_is_a_snapshot_too() -> None:
    world = World()
    world.node("a")
    restored = load(b"".join(dump(world.state, Position(index=world.state.index), world.now)), 5)
    assert restored.faults == []
    assert digest(restored.state.catalogue) == digest(world.state.catalogue)


def test_a_shorter_session_does_not_shorten_what_an_earlier_master_promised() -> None:
    """I4: through a second failover too, a follower that nobody has answered since holds on to the longer time."""
    state = State()
    for lease_ms, jeopardy_ms in ((60_000, 90_000), (2_000, 3_000)):
        apply(state, SettingsChanged(1, 1, 1, lease_ms, jeopardy_ms), 0)
    state.sessions[7] = "node"
    primary = promote(state, Rules(), 1_000, True, 0)
    assert not primary.sessions.overdue(150_000)
    assert primary.sessions.overdue(lengthened(150_000))

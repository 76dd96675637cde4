"""The disk tier as the primary sees it: what goes to disks, comes back, is away, and is never there again."""

from __future__ import annotations

import dataclasses
import struct
from dataclasses import replace

import numpy as np
import pytest

from holdfast.core.copies.disks import evict_from_disks
from holdfast.core.copies.plan import begin
from holdfast.core.objects.standby_eviction import evict_alone
from holdfast.core.primary.decision import Planned
from holdfast.core.primary.primary import Primary
from holdfast.core.promotion import promote
from holdfast.core.state.packed_numbers import pack_sorted_ids
from holdfast.errors import BadRequest, MemoryVoid, UnknownNode
from holdfast.ids import extent_of
from holdfast.messages import commands as c
from holdfast.messages import of_nodes as n
from holdfast.messages import requests as q
from holdfast.messages.of_sessions import CloseSession
from holdfast.messages.of_tenants import ChangeTenant, ListTenants, TenantList
from holdfast.messages.records import ObjectsEvicted
from tests.core.copying import Nodes, files, kinds
from tests.core.world import World

DISK = 77


def with_disk(size: int = 1 << 20, disk_size: int = 1 << 22, **rules: float) -> tuple[World, Nodes]:
    world = World(**{"lease_ttl_ms": 1_000, **rules})
    nodes = Nodes(world)
    world.node("a", size=size)
    nodes.mount_disk("a", 5, DISK, disk_size)
    return world, nodes


def fill(world: World, nodes: Nodes, count: int, size: int = 16_000, prefix: str = "k") -> list[str]:
    """Put one after the other, with the node offloading as it is told."""
    keys = [f"{prefix}{i:04}" for i in range(count)]
    for key in keys:
        world.put(key, size=size)
        world.pass_time(60)
        nodes.obey("offload")
    world.pass_time(500)
    nodes.obey("offload")
    world.pass_time(500)
    return keys


def reported(world: World, rows: list[tuple[int, int]], disk: int = DISK) -> list[tuple[int, int]]:
    packed = b"".join(struct.pack("<2Q", *row) for row in rows)
    answer = world.ask(n.FilesForgotten, n.ReportFiles("a", disk, packed))
    return list(struct.iter_unpack("<2Q", answer.rows))  # type: ignore[arg-type]


def goes_away(world: World) -> None:
    world.send(CloseSession(5))


def test_what_is_evicted_goes_to_the_disk_first_and_is_found_there() -> None:
    world, nodes = with_disk()
    keys = fill(world, nodes, 120)
    assert all(world.has(*keys)), "nothing is lost while the disk has room"
    on_disk = [key for key in keys if kinds(world, key) == [("DISK", "a")]]
    assert len(on_disk) > 40
    assert on_disk == keys[: len(on_disk)], "the longest unused went first"
    assert world.locate(on_disk[0])[0][1] == world.state.disks()[0].handle
    world.check()


def test_eviction_does_not_wait_for_a_disk() -> None:
    """The queue is bounded (I17): what it has no room for is evicted as without a disk."""
    world, _ = with_disk()
    for i in range(120):
        assert world.put(f"k{i}", size=16_000) == [True]
        world.pass_time(60)
    assert world.primary.copies.leaving_bytes <= (1 << 20) // 16 + 16_384
    assert not all(world.has(*[f"k{i}" for i in range(120)]))
    world.check()


def test_an_object_read_twice_from_disk_comes_back_to_memory_and_stays_on_disk() -> None:
    world, nodes = with_disk()
    key = fill(world, nodes, 120)[0]
    world.locate(key)
    world.pass_time(500)
    assert not nodes.take("bring_back")
    world.locate(key)
    world.pass_time(500)
    assert nodes.obey("bring_back") == 1
    assert kinds(world, key) == [("MEMORY", "a"), ("DISK", "a")]
    world.check()


def test_what_comes_back_from_a_disk_stays_within_its_tenants_limit() -> None:
    """I20"""
    world, nodes = with_disk()
    keys = fill(world, nodes, 120)
    [held] = world.ask(TenantList, ChangeTenant("default", {"limit_bytes": 1 << 30})).tenants
    for more, came in ((0, 0), (extent_of(16_000), 1)):
        world.ask(TenantList, ChangeTenant("default", {"limit_bytes": held.used_bytes + more}))
        for key in keys[:3]:
            world.locate(key)
        assert nodes.bring_back(keys[0]) == came
        [now] = world.ask(TenantList, ListTenants()).tenants
        assert now.used_bytes == held.used_bytes + more
    world.check()


def test_an_object_in_memory_and_on_disk_leaves_memory_at_once() -> None:
    world, nodes = with_disk()
    keys = fill(world, nodes, 120)
    nodes.bring_back(keys[0], 300)
    world.pass_time(2_000)
    file = next(row for row in files(world, DISK) if row[0] == world.locate(keys[0])[0][0])
    world.pass_time(2_000)
    fill(world, nodes, 120, prefix="n")
    assert kinds(world, keys[0]) == [("DISK", "a")]
    assert file in files(world, DISK), "it was not copied again"
    world.check()


def test_a_standby_that_evicts_alone_leaves_what_is_on_a_disk_as_well() -> None:
    """Its primary would drop the replica in memory only. A mask hides the whole object: a promotion evicts it."""
    world, nodes = with_disk(standby_eviction="independent", standby_eviction_grace_ms=0)  # type: ignore[arg-type]
    keys = fill(world, nodes, 120)
    nodes.bring_back(keys[0], 300)
    assert sorted(kinds(world, keys[0])) == [("DISK", "a"), ("MEMORY", "a")]
    standby = world.primary.twin
    rules = replace(world.primary.rules, high_watermark=0.02, eviction_margin=0.01)
    while evict_alone(standby, rules, world.now + 3_600_000):
        pass
    masked = {standby.catalogue.keys[slot] for slot in standby.mask.slots().tolist()}
    assert len(masked) > 10, "it evicts"
    assert keys[0] not in masked
    assert not masked & {key for key in keys if ("DISK", "a") in kinds(world, key)}


def test_a_full_disk_evicts_the_longest_unused_and_says_which_files_to_delete() -> None:
    world, nodes = with_disk(disk_size=1 << 20)
    keys = fill(world, nodes, 300)
    assert world.primary.used_on(world.state.disks()[0]) <= 1 << 20
    assert not world.has(keys[0])[0]
    forgotten = [row for told in nodes.take("gc") for row in struct.iter_unpack("<2Q", told.body.rows)]  # type: ignore[attr-defined]
    assert forgotten
    assert not {oid for oid, _ in forgotten} & {oid for oid, _ in files(world, DISK)}
    world.check()


def test_a_removed_object_has_its_file_forgotten_and_does_not_come_back_with_it() -> None:
    """I7"""
    world, nodes = with_disk()
    keys = fill(world, nodes, 120)
    nodes.take()
    row = files(world, DISK)[0]
    assert reported(world, [row]) == []
    key = world.state.catalogue.keys[world.state.catalogue.by_id.slot_of(row[0])]
    assert key in keys
    world.remove(str(key))
    world.pass_time(1_000)
    [told] = nodes.take("gc")
    assert told.body.rows == struct.pack("<2Q", *row)  # type: ignore[attr-defined]
    assert reported(world, [row]) == [row], "a file that turns up again is deleted, not adopted"
    assert world.has(str(key)) == [False]


def test_while_its_node_is_away_a_disk_keeps_its_objects_unreadable_and_removable() -> None:
    world, nodes = with_disk()
    on_disk = [key for key in fill(world, nodes, 120) if kinds(world, key) == [("DISK", "a")]]
    goes_away(world)
    assert world.has(*on_disk) == [False] * len(on_disk)
    assert world.locate(on_disk[0])[0][0] == 0
    assert world.ask(q.Presence, q.Exists(on_disk, touch=True)).found == bytes(len(on_disk))
    assert "away" in world.ask(q.Explanations, q.Explain([on_disk[0]])).reasons[0][-1]
    assert world.remove(on_disk[1]).removed == 1
    world.node("b", boot=6, connection=101)
    assert world.put(on_disk[2], size=700) == [True], "a put replaces what cannot be read"
    assert kinds(world, on_disk[2]) == [("MEMORY", "b")]
    world.node("a", boot=8)
    handle = nodes.mount_disk("a", 8, DISK, log_id=world.state.log_id)
    assert handle == world.state.disks()[0].handle
    assert world.has(*on_disk[:4]) == [True, False, True, True]
    world.check()


def test_after_an_hour_away_a_disk_is_given_up_and_must_be_emptied_to_come_back() -> None:
    """I7: what the log has forgotten, no file brings back."""
    world, nodes = with_disk()
    on_disk = [key for key in fill(world, nodes, 120) if kinds(world, key) == [("DISK", "a")]]
    goes_away(world)
    world.pass_time(1)
    world.pass_time(world.primary.rules.disk_away_ms - 1_000)
    assert world.state.disks()
    world.pass_time(2_000)
    assert not world.state.disks()
    assert world.state.catalogue.count == 0
    world.node("a", boot=8)
    with pytest.raises(MemoryVoid):
        nodes.mount_disk("a", 8, DISK, log_id=world.state.log_id)
    nodes.mount_disk("a", 8, DISK)
    assert world.has(*on_disk) == [False] * len(on_disk)


def test_an_hour_away_counts_anew_from_a_promotion_and_the_disk_survives_it() -> None:
    world, nodes = with_disk()
    keys = fill(world, nodes, 120)
    goes_away(world)
    after = World()
    after.primary = promote(world.primary.twin, world.primary.rules, 5_000, True, after.now)  # type: ignore[assignment]
    after.engine.primary = after.primary
    nodes.world = after
    after.node("a", boot=8)
    nodes.mount_disk("a", 8, DISK, log_id=after.state.log_id)
    assert any(after.has(*keys))


def test_what_a_dead_nodes_copy_left_in_quarantine_on_its_disk_comes_back_with_the_disk() -> None:
    """I11: the process that copied is gone, and the next one says so. Memory is voided with its boot; a disk is not."""
    world, nodes = with_disk()
    for number in range(60):
        world.put(f"k{number}", size=16_000)
        world.pass_time(60)
    assert nodes.take("offload"), "a copy is under way"
    goes_away(world)
    world.pass_time(world.primary.rules.grant_timeout_ms + 60_000)
    disk = world.state.disks()[0]
    assert [held for held in world.state.quarantine.values() if held.segment == disk.handle]
    world.node("a", boot=8)
    nodes.mount_disk("a", 8, DISK, log_id=world.state.log_id)
    world.report(8, cleaned=tuple(world.primary.members["a"].clean))
    assert not [held for held in world.state.quarantine.values() if held.segment == disk.handle]
    world.check()


def test_a_promoted_primary_rebuilds_the_disks_free_space() -> None:
    """I9"""
    world, nodes = with_disk()
    fill(world, nodes, 120)
    handle = world.state.disks()[0].handle
    again = promote(world.primary.twin, world.primary.rules, 5_000, True, world.now)
    assert again.allocators[handle].free_bytes == world.primary.allocators[handle].free_bytes
    assert again.members["a"].boot == 5
    assert handle in again.members["a"].handles


def test_a_disk_in_trouble_takes_no_more_files_and_says_why() -> None:
    world, nodes = with_disk()
    keys = fill(world, nodes, 120)
    assert world.ask(q.Done, n.ReportDisk("a", DISK, "no space left on device")).count == 1
    nodes.take()
    before = len(files(world, DISK))
    fill(world, nodes, 60, prefix="n")
    assert len(files(world, DISK)) <= before
    assert world.state.disks()[0].closed == "no space left on device"
    assert any(kinds(world, key) == [("DISK", "a")] for key in keys), "what is there can be read"
    assert world.ask(q.Done, n.ReportDisk("a", DISK, "input/output error", readable=False)).count == 2
    assert not any(kinds(world, key) == [("DISK", "a")] for key in keys if world.has(key)[0])
    assert world.put("memory goes on", size=700) == [True]
    world.check()


def test_mounting_a_disk_that_is_there_changes_nothing_and_has_it_compare_its_files() -> None:
    """A node does so for every new primary."""
    world, nodes = with_disk()
    world.pass_time(600)
    nodes.take()
    before = world.state.index
    nodes.mount_disk("a", 5, DISK, log_id=world.state.log_id)
    assert world.state.index == before
    world.pass_time(600)
    assert [told.body for told in nodes.take("gc")] == [c.CollectGarbage(DISK, b"", True)]


def test_bad_disks_are_refused() -> None:
    world, nodes = with_disk()
    with pytest.raises(UnknownNode):
        nodes.mount_disk("x", 5, 1)
    with pytest.raises(UnknownNode):
        nodes.mount_disk("a", 6, 1)
    with pytest.raises(BadRequest):
        nodes.mount_disk("a", 5, 1, size=100)
    with pytest.raises(MemoryVoid):
        nodes.mount_disk("a", 5, 1, log_id=999)
    with pytest.raises(UnknownNode):
        reported(world, [], disk=1)
    with pytest.raises(BadRequest):
        world.ask(n.FilesForgotten, n.ReportFiles("a", DISK, b"123"))
    world.pass_time(600)
    assert [told.body for told in nodes.take("gc")] == [c.CollectGarbage(DISK, b"", True)]


def test_draining_a_node_with_a_disk_moves_its_files_to_other_disks_or_memory() -> None:
    world, nodes = with_disk()
    keys = fill(world, nodes, 120)
    world.node("b", size=1 << 22, boot=6, connection=101)
    nodes.mount_disk("b", 6, 88, 1 << 22)
    world.ask(q.Done, q.ChangeMode("a", "draining", evict=True))
    for _ in range(30):
        world.pass_time(1_100)
        nodes.obey()
    assert all(world.has(*keys))
    assert {node for key in keys for _, node in kinds(world, key)} == {"b"}
    world.check()


def saved_twice(world: World, nodes: Nodes) -> list[str]:
    """Objects on the disks of two nodes and nowhere else, as those are that were saved again while a disk was away."""
    on_disk = [key for key in fill(world, nodes, 120) if kinds(world, key) == [("DISK", "a")]]
    world.node("b", boot=6, connection=101)
    nodes.mount_disk("b", 6, 88, 1 << 22)
    second = next(disk for disk in world.state.disks() if disk.name.node == "b")
    catalogue = world.state.catalogue
    for slot in catalogue.by_key.slots_of(on_disk):
        copy, _ = begin(world.primary, c.MIGRATE, [(slot, catalogue.replicas(slot)[0])], second, world.now)
        world.engine.carry_out(copy, world.now)
    world.pass_time(60)
    assert nodes.obey(c.MIGRATE) == len(on_disk) > 40
    return on_disk


def evict_down_to(world: World, share: float) -> None:
    """One step on all disks, with the memory left alone."""
    world.pass_time(2_000)
    world.primary.rules = dataclasses.replace(world.primary.rules, high_watermark=share, eviction_margin=0.0)
    world.engine.carry_out(Planned(evict_from_disks(world.primary, world.now)), world.now)


def test_an_object_on_two_full_disks_loses_one_of_its_places_in_a_step() -> None:
    """I1: two records named it, the second of which took away an object that nobody had named."""
    world, nodes = with_disk()
    keys = saved_twice(world, nodes)
    others = [key for key in world.state.catalogue.keys if key is not None and key not in keys]
    evict_down_to(world, 0.01)
    assert all(world.has(*keys, *others))
    assert {len(kinds(world, key)) for key in keys} == {1}
    world.engine.carry_out(Planned(evict_from_disks(world.primary, world.now)), world.now)
    assert not any(world.has(*keys[:10]))
    assert all(world.has(*others))
    world.check()


def test_an_object_whose_other_disk_is_away_leaves_a_full_disk_for_good() -> None:
    """What nobody can read is no reason to keep its key."""
    world, nodes = with_disk(disk_size=1 << 24)
    keys = saved_twice(world, nodes)
    goes_away(world)
    evict_down_to(world, 0.1)
    assert world.state.catalogue.by_key.slots_of(keys[:10]) == [-1] * 10
    world.check()


def test_a_record_that_cannot_be_applied_changes_nothing_and_costs_no_file() -> None:
    """I1: it names an object that is gone, and others that are not."""
    world, nodes = with_disk()
    fill(world, nodes, 120)
    world.pass_time(1_000)
    nodes.take()
    catalogue = world.state.catalogue
    held = [oid for oid, _ in files(world, DISK)][:3]
    keys = [str(catalogue.keys[catalogue.by_id.slot_of(oid)]) for oid in held]
    for wrong in (held[0], max(held) + 10_000):
        with pytest.raises(AssertionError):
            Primary.absorb(world.primary, ObjectsEvicted(pack_sorted_ids(np.array(sorted([*held, wrong])))), world.now)
    world.pass_time(1_000)
    assert all(world.has(*keys))
    assert not nodes.take("gc")
    world.check()

"""I18: a replica whose file was found gone or spoiled is dropped by a record; its object goes if it was the last."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from holdfast.core.copies import disks, lost_files
from holdfast.core.copies.plan import begin
from holdfast.errors import BadRequest, Settling, UnknownNode
from holdfast.messages import commands as c
from holdfast.messages import of_nodes as n
from holdfast.messages import requests as q
from holdfast.messages.of_nodes import Damage
from holdfast.messages.records import Cause, ObjectsRemoved, ReplicaDropped
from tests.core.copies.test_disks import DISK, fill, reported, with_disk
from tests.core.copying import Nodes, Told, files, kinds
from tests.core.world import World

Row = tuple[int, int, int]


def report(world: World, rows: list[Row], disk: int = DISK, node: str = "a") -> int:
    packed = b"".join(struct.pack("<3Q", *row) for row in rows)
    return world.ask(q.Done, n.ReportLostFiles(node, disk, packed)).count


def listed(world: World, disk: int = DISK) -> list[Row]:
    found: list[Row] = []
    cursor = 0
    while True:
        page = world.ask(n.FileList, n.ListFiles("a", disk, cursor))
        found += [(oid, offset, size) for oid, offset, size, _ in struct.iter_unpack("<4Q", page.rows)]
        if not (cursor := page.cursor):
            return found


def on_disk_alone(world: World, nodes: Nodes) -> list[str]:
    keys = [key for key in fill(world, nodes, 120) if kinds(world, key) == [("DISK", "a")]]
    world.pass_time(2_000)
    return keys


def file_of(world: World, key: str) -> tuple[int, int]:
    catalogue = world.state.catalogue
    oid = catalogue.id_at[catalogue.by_key.slot_of(key)]
    return next(row for row in files(world, DISK) if row[0] == oid)


def test_an_object_whose_only_file_is_lost_is_gone_at_once_and_can_be_put_again() -> None:
    world, nodes = with_disk()
    key, other, *_ = on_disk_alone(world, nodes)
    used = world.primary.used_on(world.state.disks()[0])
    nodes.take()
    row = file_of(world, key)
    assert report(world, [(*row, Damage.MISSING)]) == 1
    assert world.has(key, other) == [False, True]
    assert world.locate(key)[0][0] == 0
    assert "gone or spoiled" in world.ask(q.Explanations, q.Explain([key])).reasons[0][0]
    assert world.primary.used_on(world.state.disks()[0]) < used, "its place is free"
    assert world.primary.lost_files == {("a", Damage.MISSING): 1}
    world.pass_time(1_000)
    [told] = nodes.take("gc")
    assert struct.pack("<2Q", *row) in told.body.rows, "what is left of the file is deleted"  # type: ignore[attr-defined]
    assert world.put(key, size=700) == [True]
    world.check()


def test_an_object_that_is_in_memory_too_loses_the_file_alone() -> None:
    world, nodes = with_disk()
    key = on_disk_alone(world, nodes)[0]
    for _ in range(2):
        world.locate(key)
        world.pass_time(500)
    assert nodes.obey("bring_back") == 1
    assert report(world, [(*file_of(world, key), Damage.SPOILED)]) == 1
    assert kinds(world, key) == [("MEMORY", "a")]
    world.check()


def test_a_late_or_repeated_report_changes_nothing() -> None:
    """Said again after a lost answer, under a later primary, or about a file that was deleted meanwhile."""
    world, nodes = with_disk()
    key, moved, *_ = on_disk_alone(world, nodes)
    oid, offset = file_of(world, key)
    elsewhere, place = file_of(world, moved)
    assert report(world, [(elsewhere, place + 64, 1), (oid, place, 1), (oid + (1 << 50), offset, 1)]) == 0
    assert report(world, [(oid, offset, 1), (oid, offset, 1)]) == 1
    before = world.state.index
    assert report(world, [(oid, offset, 1)]) == 0
    assert world.state.index == before
    assert world.put(key, size=700) == [True]
    assert report(world, [(oid, offset, 1)]) == 0
    assert world.has(key, moved) == [True, True]
    assert world.primary.lost_files.total() == 1
    world.check()


def test_the_place_of_a_leased_file_is_kept_until_the_lease_has_ended() -> None:
    """I2: another object's file must not be read there under the old lease."""
    world, nodes = with_disk()
    alone, both, *_ = on_disk_alone(world, nodes)
    nodes.bring_back(both)
    world.locate(alone, both)
    rows = [(*file_of(world, alone), 1), (*file_of(world, both), 1)]
    disk = world.state.disks()[0]
    assert report(world, rows) == 2  # type: ignore[arg-type]
    held = [entry for entry in world.state.quarantine.values() if entry.segment == disk.handle]
    assert sorted(start for entry in held for start, _ in entry.pieces) == sorted(row[1] for row in rows)
    assert world.has(alone, both) == [False, True]
    world.pass_time(2_000)
    assert not [entry for entry in world.state.quarantine.values() if entry.segment == disk.handle]
    world.check()


def test_what_is_logged_says_why() -> None:
    world, nodes = with_disk()
    key, both, *_ = on_disk_alone(world, nodes)
    nodes.bring_back(both)
    world.pass_time(2_000)
    packed = b"".join(struct.pack("<3Q", *file_of(world, one), 2) for one in (key, both))
    report = n.ReportLostFiles("a", DISK, packed)
    dropped, removed = lost_files.report_lost_files(world.primary, report, 0, world.now).records
    assert isinstance(dropped, ReplicaDropped)
    assert isinstance(removed, ObjectsRemoved)
    assert removed.cause is Cause.FILE_LOST


def test_the_log_lists_every_file_page_by_page(monkeypatch: pytest.MonkeyPatch) -> None:
    world, nodes = with_disk()
    on_disk_alone(world, nodes)
    monkeypatch.setattr(lost_files, "VISIT_SLOTS", 7)
    rows = listed(world)
    assert sorted((oid, offset) for oid, offset, _ in rows) == sorted(files(world, DISK))
    assert {size for _, _, size in rows} == {16_000}
    assert len(rows) > 60


def test_only_the_node_of_the_disk_is_heard_and_only_in_whole_rows() -> None:
    world, nodes = with_disk()
    key = on_disk_alone(world, nodes)[0]
    row = (*file_of(world, key), int(Damage.MISSING))
    world.node("b", boot=6, connection=101)
    for node, disk in (("b", DISK), ("a", 1), ("x", DISK)):
        with pytest.raises(UnknownNode):
            report(world, [row], disk, node)
    with pytest.raises(BadRequest):
        report(world, [(row[0], row[1], 9)])
    with pytest.raises(BadRequest):
        world.ask(q.Done, n.ReportLostFiles("a", DISK, b"123"))
    with pytest.raises(UnknownNode):
        listed(world, 1)
    assert world.ask(n.FileList, n.ListFiles("a", DISK, -5)).rows
    assert world.ask(n.FileList, n.ListFiles("a", DISK, 1 << 60)) == n.FileList(b"", 0)
    assert world.has(key) == [True]


def test_nothing_is_dropped_while_an_earlier_primary_may_still_answer() -> None:
    """It would show what this one has dropped already."""
    world, nodes = with_disk()
    key = on_disk_alone(world, nodes)[0]
    world.engine.primary.doubt.until = world.now + 1_000
    with pytest.raises(Settling):
        report(world, [(*file_of(world, key), 1)])
    assert world.has(key) == [True]
    world.pass_time(1_000)
    assert report(world, [(*file_of(world, key), 1)]) == 1


def test_an_object_that_was_evicted_without_a_record_is_named_by_one_now() -> None:
    """What a mask hides must not come back with a lost file under another primary (I7)."""
    world, nodes = with_disk()
    key = on_disk_alone(world, nodes)[0]
    row = (*file_of(world, key), int(Damage.MISSING))
    catalogue = world.state.catalogue
    slot = catalogue.by_key.slot_of(key)
    world.state.mask.add(catalogue, np.array([slot], np.intp))
    assert report(world, [row]) == 1
    assert catalogue.by_id.slot_of(row[0]) < 0


def test_files_that_are_reported_in_several_steps_count_once_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """ADR 51: what one step dropped is not there for a later one."""
    monkeypatch.setattr(lost_files, "STEP_OBJECTS", 1)
    world, nodes = with_disk()
    key, other, *_ = on_disk_alone(world, nodes)
    row, second = (*file_of(world, key), Damage.MISSING), (*file_of(world, other), Damage.SPOILED)
    assert report(world, [row, row, second, row]) == 2
    assert world.has(key, other) == [False, False]
    world.check()


def test_files_that_the_log_does_not_hold_are_named_over_several_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disks, "STEP_OBJECTS", 2)
    world, nodes = with_disk()
    held = file_of(world, on_disk_alone(world, nodes)[0])
    unknown = [(1 << 50 | number, 64) for number in range(4)]
    assert reported(world, [unknown[0], held, *unknown[1:]]) == unknown


def copied_back_to_its_place(world: World, nodes: Nodes) -> tuple[str, tuple[int, int], Told]:
    """An object in memory whose spoiled file was dropped by a record, and which is to go to the same place again: its
    key, that place, and the command to copy it there, which is not obeyed yet."""
    key = on_disk_alone(world, nodes)[0]
    assert nodes.bring_back(key) == 1
    row = file_of(world, key)
    world.pass_time(1_000)
    nodes.take()
    assert report(world, [(*row, Damage.SPOILED)]) == 1
    catalogue = world.state.catalogue
    slot = catalogue.by_key.slot_of(key)
    copy, _ = begin(world.primary, c.OFFLOAD, [(slot, catalogue.replicas(slot)[0])], world.state.disks()[0], world.now)
    world.engine.carry_out(copy, world.now)
    [told] = nodes.take(c.OFFLOAD)
    assert isinstance(told.body, c.CopyObjects)
    assert told.body.offset == row[1], "the place that became free is the first to be taken"
    return key, row, told


def deleted(nodes: Nodes) -> set[tuple[int, int]]:
    return {row for told in nodes.take("gc") for row in struct.iter_unpack("<2Q", told.body.rows)}  # type: ignore[attr-defined, misc]


def test_a_file_that_is_written_again_before_the_old_one_was_deleted_is_kept() -> None:
    """I10, I1: the late order to delete the old file deleted the new one, of the same object at the same place, and the
    key could be neither read nor put (found by simulated seed 12000090)."""
    world, nodes = with_disk()
    key, row, told = copied_back_to_its_place(world, nodes)
    assert nodes.copy(told) == 1
    world.pass_time(2_000)
    assert row in files(world, DISK)
    assert row not in deleted(nodes)
    assert not world.primary.copies.forgotten
    assert ("DISK", "a") in kinds(world, key)
    world.check()


@pytest.mark.parametrize("succeeds", [True, False])
def test_no_file_is_deleted_while_its_object_is_copied_to_that_disk_again(succeeds: bool) -> None:
    world, nodes = with_disk()
    _, row, told = copied_back_to_its_place(world, nodes)
    world.pass_time(2_000)
    assert row not in deleted(nodes), "its command would come after that of the copy"
    assert nodes.copy(told, wrong=() if succeeds else (row[0],)) == succeeds
    world.pass_time(2_000)
    assert (row in deleted(nodes)) != succeeds, "what a failed copy leaves is deleted then"
    world.check()

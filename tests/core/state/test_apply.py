"""`apply` says what a record changed: everything that a primary acts on is in the value that it returns."""

from __future__ import annotations

import struct

from holdfast.core.state.applied import UNREMARKABLE, Applied
from holdfast.core.state.apply import apply
from holdfast.core.state.state import State
from holdfast.ids import COPIES, GrantId, SegmentName, object_id
from holdfast.messages import records as r
from holdfast.messages.records import Cause
from holdfast.messages.rows import pack_ids
from holdfast.messages.shapes import Range, Record

GRANT = GrantId(7, 1)
COPY = GrantId(COPIES, 1)


def mounted(handle: int) -> r.SegmentMounted:
    return r.SegmentMounted(handle, SegmentName(f"n{handle}", 1, 0), 1 << 20, "", "", "")


class Applier:
    """A state as a standby has it, two segments in it, and one object in each half of a grant on the first."""

    def __init__(self) -> None:
        self.state = State()
        self.apply(r.EpochStarted(1))
        self.apply(mounted(1))
        self.apply(mounted(2))
        self.apply(r.RangesGranted(GRANT, 256, [Range(1, 0, 3)]))

    def apply(self, record: Record) -> Applied:
        return apply(self.state, record, 1_000)

    def commit(self, *keys: str, replaced: bytes = b"", leased: bytes = b"") -> Applied:
        first = self.state.next_counter
        rows = struct.pack(f"<{3 * len(keys)}Q", *(x for i in range(len(keys)) for x in (64 * (first - 1 + i), 64, 5)))
        return self.apply(
            r.ObjectsCommitted(GRANT, object_id(1, first), list(keys), rows, False, False, replaced, leased)
        )


def freed(applied: Applied) -> list[tuple[int, int, int]]:
    return [
        (handle, offset, length)
        for handle, offsets, lengths in applied.freed
        for offset, length in zip(offsets.tolist(), lengths.tolist(), strict=True)
    ]


def test_most_records_change_only_the_state() -> None:
    world = Applier()
    assert world.apply(r.SessionOpened(5, "a", 1)) is UNREMARKABLE
    assert world.apply(r.RangesGranted(GrantId(7, 2), 64, [Range(1, 512)])) is UNREMARKABLE


def test_segments_that_come_and_go_change_the_topology() -> None:
    world = Applier()
    assert world.apply(mounted(3)) == Applied(topology_changed=True)
    assert world.apply(r.SegmentUnmounted(3)) == Applied(keys=[], quarantined=[], topology_changed=True)
    assert not world.commit("k").topology_changed


def test_objects_that_come_and_go_name_their_keys() -> None:
    """I1: replies about these keys wait for the record."""
    world = Applier()
    assert list(world.commit("a", "b").keys) == ["a", "b"]
    removed = world.apply(r.ObjectsRemoved(pack_ids([object_id(1, 1)]), b"", Cause.REMOVE))
    assert (list(removed.keys), freed(removed), list(removed.quarantined)) == (["a"], [(1, 0, 64)], [])
    replaced = world.commit("b", leased=pack_ids([object_id(1, 2)]))
    assert set(replaced.keys) == {"b"}
    assert (freed(replaced), list(replaced.quarantined)) == ([], [1])


def test_a_place_that_was_added_names_the_key_that_may_be_read_there() -> None:
    """I2"""
    world = Applier()
    world.commit("a", "b")
    world.apply(r.RangesGranted(COPY, 64, [Range(2, 0)]))
    added = world.apply(r.ReplicaAdded(COPY, struct.pack("<2Q", object_id(1, 2), 0)))
    assert list(added.keys) == ["b"]


def test_the_end_of_a_grant_names_what_it_freed_and_what_is_in_quarantine() -> None:
    """I9, I11"""
    world = Applier()
    world.commit("a")
    assert list(world.apply(r.GrantEnded(GRANT, [])).quarantined) == [1]
    world.apply(r.RangesGranted(GrantId(7, 2), 64, [Range(1, 512), Range(2, 512)]))
    ended = world.apply(r.GrantEnded(GrantId(7, 2), [2]))
    assert (freed(ended), list(ended.quarantined)) == ([(2, 512, 64)], [2])
    assert freed(world.apply(r.RangesFreed([1]))) == [(1, 64, 192)]


def test_a_segment_that_goes_leaves_the_other_halves_of_its_grants_in_quarantine() -> None:
    world = Applier()
    world.commit("a")
    world.apply(r.RangesGranted(GrantId(7, 2), 64, [Range(1, 512), Range(2, 512)]))
    gone = world.apply(r.SegmentUnmounted(1))
    assert list(gone.keys) == ["a"]
    left = [world.state.quarantine[entry].segment for entry in gone.quarantined if entry in world.state.quarantine]
    assert left == [2]


def test_a_grant_that_sweeps_names_the_keys_in_all_of_its_ranges() -> None:
    """I1: replies wait for each of them, not only for those in the last range."""
    world = Applier()
    world.commit("a")
    other = GrantId(7, 2)
    world.apply(r.RangesGranted(other, 64, [Range(2, 0)]))
    row = struct.pack("<3Q", 0, 64, 5)
    world.apply(r.ObjectsCommitted(other, object_id(1, world.state.next_counter), ["b"], row, False, False))
    for grant in (GRANT, other):
        world.apply(r.GrantEnded(grant, [1, 2]))
    swept = world.apply(r.RangesGranted(GrantId(7, 3), 64, [Range(1, 0), Range(2, 0)], sweeps=True))
    assert list(swept.keys) == ["a", "b"]

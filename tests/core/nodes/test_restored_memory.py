"""Memory of an older history under a restored one: kept, settled, verified, and only then lent and looked at."""

from __future__ import annotations

import struct

import pytest

from holdfast import errors
from holdfast.core.nodes.restored_memory import ALL_NAMED, unverified_objects
from holdfast.core.promotion import promote
from holdfast.core.rules import Rules
from holdfast.ids import COUNTER_BITS, GrantId
from holdfast.instant import Instant
from holdfast.master.engine.engine import Engine
from holdfast.messages import of_nodes as n
from holdfast.messages import requests as q
from holdfast.replication.batches import Position
from holdfast.replication.carried import batches_of
from holdfast.replication.snapshots import dump
from holdfast.replication.standby import Standby
from tests.core.copies.test_disks import DISK, fill, with_disk
from tests.core.copying import files, kinds
from tests.core.world import CLIENT, World, check_partition

NEW, OLD = 77, 11
BOOT, CONNECTION, SESSION = 5, 200, 50


class Restored(World):
    """A primary of a restored history; `older` is the world that it comes from."""

    def __init__(self, older: World) -> None:
        super().__init__()
        self.now = older.now
        content = b"".join(dump(older.state, Position(3, older.state.index, b"h" * 16), self.now))
        standby = Standby()
        for position, batch in batches_of(content, NEW, b"new secret", Position()):
            standby.take(position.batch, batch, self.now)
        self.primary = promote(standby.state, Rules(), 5_000, proven=True, now=self.now)  # type: ignore[assignment]
        self.engine = Engine(self.primary)
        self.engine.start_epoch(4_000, self.now)

    def back(self, log_id: int = OLD, boot: int = BOOT, **more: object) -> None:
        self.open("a", SESSION, CONNECTION)
        self.offer(SESSION, boot, [1 << 20], log_id, **more)

    def verify(self, *wrong: str) -> int:
        """Be the node until all is verified; how many ranges it was given. The bytes of these keys are wrong."""
        bad = {self.locate(key)[0][0] for key in wrong}
        cursor, failed, ranges = 0, b"", 0
        while True:
            answer = self.ask(n.RangesToVerify, n.VerifyRanges(SESSION, BOOT, cursor, failed))
            rows = list(struct.iter_unpack("<5Q", answer.rows))
            ranges += len(rows)
            failed = b"".join(struct.pack("<3Q", *row[:3]) for row in rows if row[0] in bad)
            cursor = answer.cursor
            if not cursor:
                return ranges

    def places(self) -> dict[int, bool]:
        """Whether each segment is told to clients as unverified."""
        told = self.ask(q.SegmentList, q.ListSegments())
        return {place.handle: place.unverified for place in told.segments}


@pytest.fixture
def older() -> World:
    world = World()
    world.node("a", boot=BOOT)
    world.put(*[f"k{i}" for i in range(20)])
    return world


def test_a_node_of_the_older_history_keeps_its_memory(older: World) -> None:
    """I14: the same boot; and what the node heard of the older log beyond the restored catalogue does not void it."""
    world = Restored(older)
    world.back(heard_epoch=3, heard_index=1_000_000)
    assert world.has("k0", "k19") == [True, True]
    assert world.state.segments.keys() == older.state.segments.keys()


def test_memory_of_an_unrelated_history_or_of_another_boot_is_not_taken(older: World) -> None:
    world = Restored(older)
    with pytest.raises(errors.MemoryVoid):
        world.back(log_id=4711)
    world.engine.connection_lost(CONNECTION)
    world.open("a", 51, 201)
    world.offer(51, 6, [1 << 20])
    assert world.has("k0") == [False], "I14: the memory of the boot that the catalogue names is no more"
    assert world.state.origin.lost == 20


def test_free_space_is_granted_only_when_old_writers_and_old_leases_are_gone(older: World) -> None:
    """I2, I9, I11: a writer of the older history may still fill a range that the restored catalogue calls free, and a
    reader may still look at what lay there."""
    world = Restored(older)
    world.back()
    world.pass_time(20_000)
    assert world.send(q.GrantRanges(GrantId(CLIENT, 1), struct.pack("<Q", 4_096))) is None, "old writers may be there"
    world = Restored(older)
    world.back()
    world.verify()
    assert world.send(q.GrantRanges(GrantId(CLIENT, 1), struct.pack("<Q", 4_096))) is None, "old leases may live"
    world.pass_time(9_000)
    assert world.state.unsettled
    world.pass_time(1_001)
    assert not world.state.unsettled
    assert world.put("new") == [True]
    check_partition(world.primary)


def test_segments_are_unverified_until_every_range_was_compared(older: World) -> None:
    world = Restored(older)
    world.back()
    before = world.state.topology
    assert set(world.places().values()) == {True}
    assert world.verify() == 20
    assert set(world.places().values()) == {False}
    assert world.state.topology > before, "clients learn that they may read in place"


def test_clients_are_told_how_long_leases_from_before_the_verification_may_live(older: World) -> None:
    """I2: such a lease may be on an object that was dropped because its bytes are others."""
    world = Restored(older)
    world.back()
    world.pass_time(60_000)
    assert world.ask(q.SegmentList, q.ListSegments()).doubtful_ms == 0, "the guard of the promotion is over"
    world.verify("k3")
    told = world.ask(q.SegmentList, q.ListSegments()).doubtful_ms
    assert told >= world.state.longest_lease_ms > 0
    world.pass_time(told)
    assert world.ask(q.SegmentList, q.ListSegments()).doubtful_ms == 0


def test_what_does_not_match_is_dropped_and_counted(older: World) -> None:
    """I2, I7"""
    world = Restored(older)
    world.back()
    world.verify("k3", "k7")
    assert world.has("k3", "k7", "k0") == [False, False, True]
    assert (world.state.origin.objects, world.state.origin.mismatched) == (20, 2)
    world.pass_time(30_000)
    check_partition(world.primary)
    assert world.put("k3") == [True], "I18: the key is free, not poisoned"


def test_a_range_that_failed_but_was_removed_meanwhile_is_nobodys(older: World) -> None:
    world = Restored(older)
    world.back()
    answer = world.ask(n.RangesToVerify, n.VerifyRanges(SESSION, BOOT))
    oid, number, offset, *_ = struct.unpack_from("<5Q", answer.rows)
    world.remove("k0", force=True)
    failed = struct.pack("<3Q", oid, number, offset)
    assert world.ask(n.RangesToVerify, n.VerifyRanges(SESSION, BOOT, answer.cursor, failed)).cursor == 0
    assert world.state.origin.mismatched == 0


def test_of_two_replicas_only_the_one_that_does_not_match_goes() -> None:
    older = World()
    older.node("a", boot=BOOT)
    older.node("b", boot=6, connection=101)
    older.put("k", replicas=2)
    world = Restored(older)
    world.back()
    world.verify("k")
    slot = world.state.catalogue.by_key.slot_of("k")
    assert [world.state.segments[p.segment].name.node for p in world.state.catalogue.replicas(slot)] == ["b"]


def test_a_new_primary_begins_the_verification_again(older: World) -> None:
    world = Restored(older)
    world.back()
    world.ask(n.RangesToVerify, n.VerifyRanges(SESSION, BOOT))
    primary = promote(world.state, Rules(), 5_000, proven=True, now=world.now)
    assert not any(member.fenced for member in primary.members.values())
    assert primary.state.unverified
    assert primary.old_leases_end_at > world.now


def test_ids_go_on_growing_and_a_cursor_is_checked(older: World) -> None:
    world = Restored(older)
    world.back()
    world.verify()
    world.pass_time(20_000)
    world.put("new")
    assert world.locate("new")[0][0] >> COUNTER_BITS == 4_000
    with pytest.raises(errors.BadRequest):
        world.ask(n.RangesToVerify, n.VerifyRanges(SESSION, BOOT, -1))
    with pytest.raises(errors.UnknownNode):
        world.ask(n.RangesToVerify, n.VerifyRanges(SESSION, 99, ALL_NAMED))


def test_a_node_that_does_not_come_back_is_counted(older: World) -> None:
    world = Restored(older)
    now: Instant = world.now
    world.pass_time(60_000)
    assert world.now > now
    assert world.has("k0") == [False]
    assert world.state.origin.lost == 20


@pytest.fixture
def with_files() -> tuple[Restored, list[str]]:
    """A restored history whose node is back, with its disk; and keys of objects that are on the disk alone."""
    older, nodes = with_disk()
    keys = [key for key in fill(older, nodes, 120) if kinds(older, key) == [("DISK", "a")]]
    world = Restored(older)
    world.back()
    return world, keys


def mount(world: Restored) -> n.DiskMounted:
    return world.ask(n.DiskMounted, n.MountDisk("a", BOOT, DISK, OLD, 1 << 22, "a:1", "host"))


def test_a_disk_is_unverified_until_its_node_has_compared_its_files(with_files: tuple[Restored, list[str]]) -> None:
    world, keys = with_files
    mounted = mount(world)
    assert mounted.unverified_in == world.state.epoch
    world.verify()
    assert world.places()[mounted.handle], "memory alone was compared"
    assert unverified_objects(world.state) == len(keys)
    for log_id, epoch in ((NEW, mounted.unverified_in - 1), (OLD, mounted.unverified_in)):
        with pytest.raises(errors.BadRequest, match="another primary"):
            world.ask(q.Done, n.ReportFilesVerified("a", DISK, log_id, epoch))
    with pytest.raises(errors.UnknownNode):
        world.ask(q.Done, n.ReportFilesVerified("a", DISK + 1, NEW, mounted.unverified_in))
    before = world.state.topology
    world.pass_time(60_000)
    assert world.ask(q.Done, n.ReportFilesVerified("a", DISK, NEW, mounted.unverified_in)).count == 1
    assert not world.places()[mounted.handle]
    assert unverified_objects(world.state) == 0
    assert world.state.topology > before
    assert world.ask(q.SegmentList, q.ListSegments()).doubtful_ms > 0, "leases from before may be on what was dropped"
    assert world.ask(q.Done, n.ReportFilesVerified("a", DISK, NEW, mounted.unverified_in)).count == 0
    assert mount(world).unverified_in == 0


def test_restored_objects_whose_files_are_lost_are_counted_until_the_disk_is_verified(
    with_files: tuple[Restored, list[str]],
) -> None:
    world, keys = with_files
    mounted = mount(world)
    world.verify()
    world.pass_time(20_000)

    def lose(key: str) -> None:
        oid = world.locate(key)[0][0]
        offset = next(place for held, place in files(world, DISK) if held == oid)
        world.ask(q.Done, n.ReportLostFiles("a", DISK, struct.pack("<3Q", oid, offset, n.Damage.SPOILED)))

    lose(keys[0])
    assert world.has(keys[0]) == [False]
    assert (world.state.origin.lost_files, world.state.origin.mismatched) == (1, 0)
    assert unverified_objects(world.state) == len(keys) - 1
    world.ask(q.Done, n.ReportFilesVerified("a", DISK, NEW, mounted.unverified_in))
    lose(keys[1])
    assert world.state.origin.lost_files == 1, "it was found later, by a reader or by the scrub"

"""Lost and spoiled files of a disk (I18): found by whoever looks, told until answered, at no other file's cost."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import xxhash

from holdfast.errors import BadRequest, ReplicaLost, UnknownSegment, Unreachable
from holdfast.ids import MAX_BATCH, SegmentName
from holdfast.instant import now_seconds
from holdfast.messages import commands as c
from holdfast.messages.of_nodes import (
    AddReplicas,
    Damage,
    DiskMounted,
    FileList,
    FilesForgotten,
    ListFiles,
    MountDisk,
    ReportFiles,
    ReportFilesVerified,
    ReportLostFiles,
)
from holdfast.messages.requests import Done
from holdfast.messages.shapes import Message
from holdfast.node.disk import files
from holdfast.node.disk.lost_files import MOST_UNSAID, LostFiles
from holdfast.node.disk.scrub import Scrub
from holdfast.node.disk.store import HEADER, DamagedFile, DiskStore, DiskTrouble
from holdfast.node.disk.tier import DiskTier, Verification
from holdfast.operations.effects import Operation
from holdfast.supervisor import Supervisor
from holdfast.transport.data_tcp import DataConnection
from tests.node.commands.test_copier import KEY, MIB, Master, Served, nodes, order
from tests.tickets import read_ticket
from tests.waiting import wait_until

__all__ = ["nodes"]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[DiskTier]:
    store = DiskStore.open(tmp_path / "disk", "boot")
    store.belongs_to(11)
    tier = DiskTier("here", store, MIB)
    yield tier
    tier.close()


def write(tier: DiskTier, oid: int, offset: int, data: bytes) -> Path:
    tier.write(oid, offset, memoryview(data), xxhash.xxh3_64_intdigest(data) or 1)
    tier.answered([offset])
    return tier.store.path_of(offset)


def read(tier: DiskTier, offset: int, size: int) -> bytes:
    target = bytearray(size)
    tier.read_into(offset, memoryview(target))
    return bytes(target)


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def lost(tier: DiskTier) -> list[tuple[int, ...]]:
    report = tier.lost.report()
    return list(struct.iter_unpack("<3Q", report.rows)) if report is not None else []


DAMAGES: list[tuple[Callable[[Path], object], Damage]] = [
    (Path.unlink, Damage.MISSING),
    (lambda path: os.truncate(path, 100), Damage.WRONG_SIZE),
    (lambda path: os.truncate(path, 0), Damage.WRONG_SIZE),
    (lambda path: flip(path, HEADER.size + 500), Damage.SPOILED),
    (lambda path: flip(path, 20), Damage.SPOILED),
    (lambda path: (path.unlink(), path.mkdir()), Damage.WRONG_SIZE),
]


@pytest.mark.parametrize(("damage", "seen"), DAMAGES)
def test_a_read_finds_what_is_wrong_and_has_it_reported_once(
    disk: DiskTier, damage: Callable[[Path], object], seen: Damage
) -> None:
    path = write(disk, 5, 0, os.urandom(1_000))
    write(disk, 6, 4_096, b"y" * 1_000)
    damage(path)
    for _ in range(3):
        with pytest.raises(ReplicaLost):
            read(disk, 0, 1_000)
    assert lost(disk) == [(5, 0, seen)]
    assert disk.trouble is None
    assert read(disk, 4_096, 1_000) == b"y" * 1_000, "one bad file costs that file"


def test_a_file_of_another_object_in_its_place_is_spoiled(disk: DiskTier) -> None:
    path, other = write(disk, 5, 0, b"x" * 1_000), write(disk, 6, 4_096, b"y" * 1_000)
    path.write_bytes(other.read_bytes())
    with pytest.raises(ReplicaLost):
        read(disk, 0, 1_000)
    assert lost(disk) == [(5, 0, Damage.SPOILED)]


def test_a_file_that_the_node_deleted_itself_is_not_lost(disk: DiskTier) -> None:
    """The master had it forgotten; a late reader is told that it is not there, and nothing is reported."""
    write(disk, 5, 0, b"x" * 1_000)
    disk.store.forget(5, 0)
    with pytest.raises(UnknownSegment) as caught:
        read(disk, 0, 1_000)
    assert not isinstance(caught.value, ReplicaLost)
    assert not lost(disk)


def test_a_directory_that_is_not_the_disk_any_more_is_trouble_and_loses_no_file(disk: DiskTier) -> None:
    write(disk, 5, 0, b"x" * 1_000)
    folder = disk.store.directory
    folder.rename(folder.with_name("elsewhere"))
    for mount_point in ("gone", "empty"):
        if mount_point == "empty":
            folder.mkdir()
        with pytest.raises(DiskTrouble):
            read(disk, 0, 1_000)
        with pytest.raises(DiskTrouble):
            disk.find_missing([(5, 0, 1_000)])
        with pytest.raises(DiskTrouble):
            disk.write(7, 8_192, memoryview(b"z"), 1)
    assert not lost(disk)
    assert disk.trouble is not None
    assert not disk.trouble.readable
    assert not any(folder.iterdir()), "nothing is written where another file system should be"


def test_a_deleted_folder_is_made_again_by_the_next_write(disk: DiskTier) -> None:
    path = write(disk, 5, 0, b"x" * 1_000)
    path.unlink()
    path.parent.rmdir()
    with pytest.raises(ReplicaLost):
        read(disk, 0, 1_000)
    report = disk.lost.report()
    assert report is not None
    disk.lost.answered(report)
    write(disk, 6, 0, b"y" * 1_000)
    assert read(disk, 0, 1_000) == b"y" * 1_000


def test_nothing_is_written_to_a_place_whose_loss_is_not_answered_yet(disk: DiskTier) -> None:
    """Else the report, arriving late, would drop the new file."""
    write(disk, 5, 0, b"x" * 1_000).unlink()
    with pytest.raises(ReplicaLost):
        read(disk, 0, 1_000)
    with pytest.raises(ReplicaLost, match="nothing was written"):
        disk.write(5, 0, memoryview(b"x" * 1_000), 1)
    report = disk.lost.report()
    assert report is not None
    disk.lost.answered(report)
    write(disk, 5, 0, b"x" * 1_000)
    assert not lost(disk)


def test_an_audit_compares_the_log_with_the_files(disk: DiskTier) -> None:
    write(disk, 5, 0, b"x" * 1_000)
    write(disk, 6, 4_096, b"y" * 1_000).unlink()
    os.truncate(write(disk, 7, 8_192, b"z" * 1_000), 64)
    disk.write(8, 12_288, memoryview(b"w"), 1)  # Not answered about yet.
    held = [(5, 0, 1_000), (6, 4_096, 1_000), (7, 8_192, 1_000), (8, 12_288, 1), (9, 16_384, 5), (10, 0, 7)]
    pages = {0: held[:3], 40: held[3:]}

    def answer(message: Message) -> Message:
        if not isinstance(message, ListFiles):
            return FilesForgotten(b"")
        rows = b"".join(struct.pack("<4Q", *row, 0) for row in pages[message.cursor])
        return FileList(rows, 0 if message.cursor else 40)

    Master(answer=answer).run(files.audit(disk))
    assert lost(disk) == [
        (6, 4_096, Damage.MISSING),
        (7, 8_192, Damage.WRONG_SIZE),
        (9, 16_384, Damage.MISSING),
        (10, 0, Damage.MISSING),
    ]


HISTORY = 77


class RestoredLog:
    """Lists these files, (id, offset, size, checksum), two per page; answers reports of lost ones when it sleeps."""

    def __init__(self, disk: DiskTier, *held: tuple[int, int, int, int]) -> None:
        self.disk = disk
        self.held = held
        self.lost: list[tuple[int, ...]] = []
        self.said: list[Message] = []
        self.failures = 0
        self.mounted_again = 0

    def answer(self, message: Message) -> Message:
        self.said.append(message)
        if self.failures:
            self.failures -= 1
            raise Unreachable("there is no master")
        if isinstance(message, ListFiles):
            page = self.held[message.cursor : message.cursor + 2]
            rows = b"".join(struct.pack("<4Q", *row) for row in page)
            stop = message.cursor + 2
            return FileList(rows, stop if stop < len(self.held) else 0)
        assert not self.disk.lost.has_news, "all is reported before the disk counts as verified"
        return Done(1)

    def sleep(self) -> None:
        report = self.disk.lost.report()
        if report is not None:
            self.lost += struct.iter_unpack("<3Q", report.rows)
            self.disk.lost.answered(report)

    def verify(self, verification: Verification | None) -> None:
        assert verification is not None
        master = Master(answer=self.answer, when_asleep=self.sleep)
        master.run(files.verify_files(self.disk, verification, self.mount_again))

    def mount_again(self) -> None:
        self.mounted_again += 1


def row(oid: int, offset: int, data: bytes) -> tuple[int, int, int, int]:
    return oid, offset, len(data), xxhash.xxh3_64_intdigest(data)


def test_files_of_a_restored_history_are_read_whole_and_compared_with_its_checksums(disk: DiskTier) -> None:
    held = [(number, number << 20, os.urandom(2 * MIB - number)) for number in range(1, 6)]
    paths = [write(disk, *one) for one in held]
    flip(paths[1], HEADER.size + MIB + 5)
    paths[2].unlink()
    rows = [row(*one) for one in held]
    rows[3] = (*rows[3][:3], rows[3][3] ^ 1)
    log = RestoredLog(disk, *rows, (6, 6 << 20, 10, 1))
    log.verify(disk.begin_verification(HISTORY, 9))
    assert log.lost == [
        (2, 2 << 20, Damage.SPOILED),
        (3, 3 << 20, Damage.MISSING),
        (4, 4 << 20, Damage.SPOILED),
        (6, 6 << 20, Damage.MISSING),
    ]
    assert log.said[-1] == ReportFilesVerified("here", disk.store.disk, HISTORY, 9)
    assert disk.begin_verification(HISTORY, 9), "it is over"


def test_a_verification_waits_for_a_master_and_yields_to_one_for_the_next_primary(disk: DiskTier) -> None:
    """Only the primary that lists the files knows its pages; and one verification is enough for each."""
    write(disk, 5, 0, b"x" * 1_000)
    log = RestoredLog(disk, row(5, 0, b"x" * 1_000))
    first = disk.begin_verification(HISTORY, 9)
    assert disk.begin_verification(HISTORY, 9) is None, "the node has registered again with the same primary"
    log.failures = 3
    log.verify(first)
    assert log.said[-1] == ReportFilesVerified("here", disk.store.disk, HISTORY, 9)
    first = disk.begin_verification(HISTORY, 9)
    second = disk.begin_verification(HISTORY + 1, 9)
    log.said.clear()
    log.verify(first)
    assert not log.said
    log.verify(second)
    assert log.said[-1] == ReportFilesVerified("here", disk.store.disk, HISTORY + 1, 9)


class OvertakenOnce(RestoredLog):
    """Primary 9 was overtaken by 10: it mounts the disk, and may answer after that, on one of the two connections."""

    mounted_by = told = 10

    def answer(self, message: Message) -> Message:
        reply = super().answer(message)
        if isinstance(message, MountDisk):
            return DiskMounted(HISTORY, 3, [11], unverified_in=self.mounted_by)
        if isinstance(message, ReportFiles):
            return FilesForgotten(b"")
        if isinstance(message, ReportFilesVerified) and message.epoch != self.told:
            raise BadRequest("the files were listed by another primary")
        return reply

    def mount(self) -> list[Operation[None]]:
        """The verifications that it asks for."""
        asked: list[Operation[None]] = []
        mounting = files.mount(self.disk, 1, "here:1", "host", asked.append, self.mount_again)
        Master(answer=self.answer, when_asleep=self.sleep).run(mounting)
        return asked

    def verified(self) -> list[int]:
        return [message.epoch for message in self.said if isinstance(message, ReportFilesVerified)]


@pytest.mark.parametrize(("mounted_by", "told"), [(9, 10), (10, 9)])
def test_a_disk_is_mounted_again_where_one_primary_mounted_it_and_another_is_told_that_it_is_verified(
    disk: DiskTier, mounted_by: int, told: int
) -> None:
    """I11 (seed 20003397): the node had registered at primary 10, whose predecessor answered on one connection. The
    report was refused, and nothing else would have had the disk verified."""
    write(disk, 5, 0, b"x" * 1_000)
    log = OvertakenOnce(disk, row(5, 0, b"x" * 1_000))
    log.mounted_by, log.told = mounted_by, told
    [first] = log.mount()
    master = Master(answer=log.answer)
    master.run(first)
    assert (log.verified(), log.mounted_again, master.left) == ([mounted_by], 1, 1)
    log.mounted_by = log.told = 10
    [second] = log.mount()
    Master(answer=log.answer).run(second)
    assert (log.verified(), log.mounted_again) == ([mounted_by, 10], 1)
    assert not log.lost


def test_a_refused_verification_leaves_it_to_a_mounting_that_came_meanwhile(disk: DiskTier) -> None:
    """Usually the node registers at the next primary, and mounts its disk there."""
    log = OvertakenOnce(disk)
    log.mounted_by = 9
    [first] = log.mount()
    log.mounted_by = 10
    following: list[Operation[None]] = []
    Master(answer=log.answer, when_asleep=lambda: following.extend(log.mount())).run(first)
    [second] = following
    Master(answer=log.answer).run(second)
    assert (log.verified(), log.mounted_again) == ([9, 10], 0)


def test_a_file_that_was_written_since_is_left_alone_by_a_verification(disk: DiskTier) -> None:
    disk.write(8, 0, memoryview(b"w"), 1)
    log = RestoredLog(disk, (8, 0, 1, 5))
    log.verify(disk.begin_verification(HISTORY, 9))
    assert not log.lost


def test_a_copy_from_the_disk_fails_for_the_lost_object_alone(nodes: tuple[Served, Served]) -> None:
    here, _ = nodes
    datas = [os.urandom(50_000) for _ in range(3)]
    for number, data in enumerate(datas):
        write(here.disk, 5 + number, number << 16, data)
    here.disk.store.path_of(1 << 16).unlink()
    on_disk = SegmentName("here", here.disk.store.disk, 0)
    told = order(here.segment, MIB, here, [(5 + i, i << 16, data) for i, data in enumerate(datas)])
    told.sources = [c.Source(9, on_disk, here.data.address)]
    master = Master()
    assert master.run(here.copier.carry_out(told)) == 2
    [said] = master.said
    assert isinstance(said, AddReplicas)
    assert said.failed == struct.pack("<Q", 6)
    assert lost(here.disk) == [(6, 1 << 16, Damage.MISSING)]


def test_a_copy_that_finds_wrong_bytes_has_the_node_of_the_file_look_at_it(nodes: tuple[Served, Served]) -> None:
    """Objects over a piece are not checked while they are sent: whoever copies them finds it."""
    here, there = nodes
    data = os.urandom(3 * MIB)
    flip(write(here.disk, 5, 0, data), HEADER.size + 2 * MIB)
    name = SegmentName("here", here.disk.store.disk, 0)
    source = c.Source(9, name, here.data.address, [read_ticket(KEY, name, (0, len(data)))])
    for copier in (there, here):
        told = order(copier.segment, 0, here, [(5, 0, data)])
        told.sources = [source]
        assert Master().run(copier.copier.carry_out(told)) == 0
        assert lost(here.disk) == [(5, 0, Damage.SPOILED)]
        report = here.disk.lost.report()
        assert report is not None
        here.disk.lost.answered(report)


def test_a_readers_word_drops_nothing_that_the_node_finds_sound(nodes: tuple[Served, Served]) -> None:
    here, _ = nodes
    path = write(here.disk, 5, 0, os.urandom(1_000))
    name = SegmentName("here", here.disk.store.disk, 0)
    ticket = read_ticket(KEY, name, (0, 1_000), (9_000, 1_000))
    connection = DataConnection.open(here.data.address, now_seconds() + 10)
    try:
        connection.check_file(name, ticket, 0, now_seconds() + 10)
        assert not lost(here.disk)
        flip(path, HEADER.size + 1)
        with pytest.raises(ReplicaLost):
            connection.check_file(name, ticket, 0, now_seconds() + 10)
        with pytest.raises(UnknownSegment):
            connection.check_file(name, ticket, 9_000, now_seconds() + 10)
        with pytest.raises(UnknownSegment):
            other = SegmentName("here", 1, 0)
            connection.check_file(other, read_ticket(KEY, other, (0, 1_000)), 0, now_seconds() + 10)
    finally:
        connection.close()
    assert lost(here.disk) == [(5, 0, Damage.SPOILED)]


def test_losses_are_bounded_and_said_until_answered() -> None:
    """I17"""
    roused: list[int] = []
    losses = LostFiles(lambda: roused.append(1))
    for oid in range(1, MOST_UNSAID + 10):
        losses.add("here", 7, oid, oid * 64, Damage.MISSING, "gone")
    assert losses.is_full
    assert len(roused) == MOST_UNSAID
    first = losses.report()
    assert first is not None
    assert losses.report() == first, "it is said again until it is answered"
    losses.answered(first)
    second = losses.report()
    assert second is not None
    assert len(second.rows) == 24 * (MOST_UNSAID - MAX_BATCH)
    losses.answered(first)
    assert losses.report() == second
    losses.add("here", 8, 1, 64, Damage.MISSING, "gone")
    assert losses.report() == ReportLostFiles("here", 8, struct.pack("<3Q", 1, 64, 1)), "another disk, other files"


def test_the_scrub_finds_what_nobody_reads(disk: DiskTier, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.node.disk.scrub.BETWEEN_PASSES_SECONDS", 0.01)
    paths = [write(disk, 5 + i, i << 16, os.urandom(5_000)) for i in range(3)]
    flip(paths[1], HEADER.size + 4_000)
    scrub = Scrub(disk, Supervisor(), 1 << 30)
    scrub.start()
    try:
        wait_until(lambda: lost(disk) == [(6, 1 << 16, Damage.SPOILED)], what="it is found")
        paths[2].unlink()
        wait_until(lambda: len(lost(disk)) == 2, what="the next pass finds the next one")
    finally:
        scrub.stop()


def test_what_was_answered_and_is_still_read_is_said_again(disk: DiskTier) -> None:
    write(disk, 5, 0, b"x" * 1_000).unlink()
    for _ in range(2):
        with pytest.raises(DamagedFile):
            read(disk, 0, 1_000)
        report = disk.lost.report()
        assert report is not None
        disk.lost.answered(report)
        assert disk.lost.report() is None
    assert disk.lost.found[Damage.MISSING] == 2

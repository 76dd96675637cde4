"""A node copies what it is told to: real memory, real TCP between two nodes, a real disk; the master is the test."""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import xxhash

from holdfast.errors import BadRequest, DeadlineExceeded, HoldfastError, MemoryVoid, UnknownNode
from holdfast.ids import GrantId, SegmentName
from holdfast.instant import now_ms, now_seconds
from holdfast.messages import commands as c
from holdfast.messages.of_nodes import (
    AddReplicas,
    DiskMounted,
    FileList,
    FilesForgotten,
    ListFiles,
    MountDisk,
    ReportDisk,
    ReportFiles,
)
from holdfast.messages.requests import Done
from holdfast.messages.shapes import Message
from holdfast.node import primary_requests
from holdfast.node.commands.copier import Copier, Pace, PeerBytes
from holdfast.node.disk import files
from holdfast.node.disk.store import DiskStore
from holdfast.node.disk.tier import DiskTier
from holdfast.node.memory.data_server import DataServer
from holdfast.node.memory.lent_memory import Lending, LentMemory
from holdfast.operations.effects import Call, LeaveMaster, Operation, Sleep, Work
from tests.node.disk.test_store import Failing
from tests.tickets import TERMS, read_ticket

MIB = 1 << 20
KEY = b"the key of each of these nodes"
GRANT = GrantId(0, 1 << 40 | 1)


class Served:
    """A node's memory behind its TCP port."""

    def __init__(self, name: str, disk: Path | None = None) -> None:
        self.lending = Lending()
        self.memory = LentMemory.create(name, 4 * MIB, 1)
        self.lending.lend(self.memory)
        if disk is not None:
            store = DiskStore.open(disk, "boot")
            store.belongs_to(11)
            self.lending.disk = DiskTier(name, store, MIB)
        self.data = DataServer("127.0.0.1:0", self.lending, 8)
        self.data.tickets.trust(KEY, TERMS, now_ms())
        self.data.start()
        self.peers = PeerBytes(self.lending)
        self.pace = Pace()
        self.copier = Copier(name, self.peers, self.data, self.lending.disk, self.pace, now_seconds)

    @property
    def segment(self) -> SegmentName:
        return self.memory.segments[0].name

    @property
    def disk(self) -> DiskTier:
        assert self.lending.disk is not None
        return self.lending.disk

    def bytes_at(self, offset: int, size: int) -> bytes:
        return bytes(self.lending.range_of(self.segment, offset, size))

    def fill(self, offset: int, data: bytes) -> None:
        self.lending.range_of(self.segment, offset, len(data))[:] = data

    def stop(self) -> None:
        self.peers.close()
        self.data.stop()
        self.lending.withdraw()
        if self.lending.disk is not None:
            self.lending.disk.close()


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[tuple[Served, Served]]:
    here, there = Served("here", tmp_path / "disk"), Served("there")
    try:
        yield here, there
    finally:
        here.stop()
        there.stop()


@dataclass
class Master:
    """Runs an operation, and answers what it says."""

    said: list[Message] = field(default_factory=list)
    slept: float = 0.0
    left: int = 0
    answer: Callable[[Message], Message] = lambda message: Done(len(getattr(message, "rows", b"")) // 40)
    before_work: Callable[[], None] = lambda: None
    when_asleep: Callable[[], None] = lambda: None

    def run(self, operation: Operation[Any]) -> Any:
        result: Any = None
        error: HoldfastError | None = None
        try:
            while True:
                effect = operation.send(result) if error is None else operation.throw(error)
                result, error = None, None
                try:
                    if isinstance(effect, Call):
                        self.said.append(effect.message)
                        result = self.answer(effect.message)
                    elif isinstance(effect, Sleep):
                        self.slept += effect.seconds
                        self.when_asleep()
                    elif isinstance(effect, LeaveMaster):
                        self.left += 1
                    else:
                        assert isinstance(effect, Work)
                        self.before_work()
                        result = effect.run()
                except HoldfastError as thrown:
                    error = thrown
        except StopIteration as stop:
            return stop.value


def holding_nothing(message: Message) -> Message:
    """A log without any file on this disk."""
    return FileList(b"", 0) if isinstance(message, ListFiles) else FilesForgotten(getattr(message, "rows", b""))


def checksum(data: bytes) -> int:
    return xxhash.xxh3_64_intdigest(data) or 1


def order(
    target: SegmentName,
    offset: int,
    source: Served,
    objects: list[tuple[int, int, bytes]],
    sums: list[int] | None = None,
    **more: Any,
) -> c.CopyObjects:
    """objects: (id, offset at the source, bytes), laid out one after the other."""
    rows, at = b"", 0
    for number, (oid, source_offset, data) in enumerate(objects):
        wanted = sums[number] if sums is not None else checksum(data)
        rows += struct.pack("<6Q", oid, at, len(data), wanted, 0, source_offset)
        at += len(data)
    ranges = [(source_offset, len(data)) for _, source_offset, data in objects]
    sources = [c.Source(7, source.segment, source.data.address, [read_ticket(KEY, source.segment, *ranges)])]
    return c.CopyObjects(GRANT, target, offset, at, rows, sources, **more)


def test_objects_of_another_node_arrive_and_are_reported_with_their_checksums(nodes: tuple[Served, Served]) -> None:
    here, there = nodes
    objects = [(5, 0, os.urandom(100_000)), (6, MIB, os.urandom(64)), (7, 2 * MIB, os.urandom(MIB))]
    for _, at, data in objects:
        there.fill(at, data)
    master = Master()
    assert master.run(here.copier.carry_out(order(here.segment, 4096, there, objects))) == 3
    assert here.bytes_at(4096, 100_000) == objects[0][2]
    assert here.bytes_at(4096 + 100_064, MIB) == objects[2][2]
    [said] = master.said
    assert isinstance(said, AddReplicas)
    assert (said.node, said.grant, said.failed) == ("here", GRANT, b"")
    assert list(struct.iter_unpack("<5Q", said.rows)) == [
        (5, 0, 7, 0, checksum(objects[0][2])),
        (6, 100_000, 7, MIB, checksum(objects[1][2])),
        (7, 100_064, 7, 2 * MIB, checksum(objects[2][2])),
    ]


def test_wrong_bytes_are_reported_as_failed(nodes: tuple[Served, Served]) -> None:
    """I2: what does not have its checksum is no replica."""
    here, there = nodes
    there.fill(0, b"a" * 100)
    objects = [(5, 0, b"a" * 100), (6, 0, b"b" * 100)]
    master = Master()
    assert master.run(here.copier.carry_out(order(here.segment, 0, there, objects))) == 1
    [said] = master.said
    assert isinstance(said, AddReplicas)
    assert said.failed == struct.pack("<Q", 6)


def test_an_object_without_a_checksum_needs_a_read_without_any_error(nodes: tuple[Served, Served]) -> None:
    here, there = nodes
    there.fill(0, b"a" * 100)
    fine = order(here.segment, 0, there, [(5, 0, b"a" * 100)], sums=[0])
    assert Master().run(here.copier.carry_out(fine)) == 1
    broken = order(here.segment, 0, there, [(5, 0, b"a" * 100), (6, 64 * MIB, b"a" * 100)], sums=[0, 0])
    master = Master()
    assert master.run(here.copier.carry_out(broken)) == 0
    assert isinstance(master.said[0], AddReplicas)
    assert master.said[0].failed == struct.pack("<2Q", 5, 6)


def test_a_dead_source_fails_the_copy_and_nothing_else(nodes: tuple[Served, Served]) -> None:
    here, there = nodes
    told = order(here.segment, 0, there, [(5, 0, b"a" * 100)])
    there.data.stop()
    master = Master()
    assert master.run(here.copier.carry_out(told)) == 0
    assert isinstance(master.said[0], AddReplicas)
    assert here.data.clean([GRANT], now_seconds() + 5) == [GRANT], "nothing writes to it any more"


def test_a_cleaned_grant_is_not_written_to(nodes: tuple[Served, Served]) -> None:
    """I11: before the copy begins, and in its middle."""
    here, there = nodes
    there.fill(0, b"a" * 100)
    here.data.clean([GRANT], now_seconds() + 5)
    master = Master()
    assert master.run(here.copier.carry_out(order(here.segment, 0, there, [(5, 0, b"a" * 100)]))) == 0
    assert here.bytes_at(0, 100) == bytes(100)
    assert not master.said


def test_a_grant_cleaned_in_the_middle_ends_after_the_piece(nodes: tuple[Served, Served]) -> None:
    here, there = nodes
    big = os.urandom(3 * MIB)
    there.fill(0, big)
    other = GrantId(0, 9)
    told = order(here.segment, 0, there, [(5, 0, big), (6, 0, big[: MIB - 4096]), (7, 0, big[:4096])])
    told = c.CopyObjects(other, told.segment, 0, told.length, told.rows, told.sources)
    seen: list[int] = []

    def clean_after_first() -> None:
        seen.append(1)
        if len(seen) == 2:
            raise AssertionError("a second piece was begun")

    master = Master(before_work=clean_after_first)
    operation = here.copier.carry_out(told)
    effect = next(operation)
    assert isinstance(effect, Work)
    assert here.data.clean([other], now_seconds()) == [], "it waits while a piece is being copied"
    said = operation.send(effect.run())
    assert isinstance(said, Call)
    assert isinstance(said.message, AddReplicas)
    with pytest.raises(StopIteration):
        operation.send(Done(0))
    assert here.data.clean([other], now_seconds() + 5) == [other]
    assert not master.said


@pytest.mark.parametrize("bad", ["row", "source", "range"])
def test_an_order_that_makes_no_sense_is_refused_whole(nodes: tuple[Served, Served], bad: str) -> None:
    here, there = nodes
    told = order(here.segment, 0, there, [(5, 0, b"a" * 100)])
    if bad == "row":
        told.rows += b"x"
    elif bad == "source":
        told.sources = []
    else:
        told.length = 10
    with pytest.raises(BadRequest):
        Master().run(here.copier.carry_out(told))


def test_copies_keep_to_their_speed(nodes: tuple[Served, Served]) -> None:
    here, there = nodes
    data = os.urandom(2 * MIB)
    there.fill(0, data)
    master = Master()
    told = order(here.segment, 0, there, [(5, 0, data)], bytes_per_second=MIB)
    master.run(here.copier.carry_out(told))
    assert 1.5 < master.slept <= 2.0


def test_offloading_writes_files_and_bringing_back_reads_them(nodes: tuple[Served, Served]) -> None:
    here, _ = nodes
    data = os.urandom(50_000)
    here.fill(4096, data)
    on_disk = SegmentName("here", here.disk.store.disk, 0)
    offload = order(on_disk, 128 << 10, here, [(5, 4096, data)], to_disk=True)
    assert Master().run(here.copier.carry_out(offload)) == 1
    assert here.disk.files() == [(5, 128 << 10)]
    back = order(here.segment, MIB, here, [(5, 128 << 10, data)])
    back.sources = [c.Source(9, on_disk, here.data.address)]
    assert Master().run(here.copier.carry_out(back)) == 1
    assert here.bytes_at(MIB, len(data)) == data


def test_files_that_the_master_did_not_take_are_deleted(nodes: tuple[Served, Served]) -> None:
    """I7: an object that was removed while it was written to disk leaves no file."""
    here, _ = nodes
    here.fill(0, b"a" * 100)
    told = order(SegmentName("here", here.disk.store.disk, 0), 0, here, [(5, 0, b"a" * 100)], to_disk=True)
    master = Master(answer=lambda m: Done(0) if isinstance(m, AddReplicas) else FilesForgotten(getattr(m, "rows", b"")))
    assert master.run(here.copier.carry_out(told)) == 0
    assert isinstance(master.said[1], ReportFiles)
    assert here.disk.files() == []


def test_files_about_which_no_master_answered_are_audited_later(
    nodes: tuple[Served, Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    """I7, I17: if the log does not hold them, nobody else would ever delete them."""
    here, _ = nodes
    here.fill(0, b"a" * 100)
    told = order(SegmentName("here", here.disk.store.disk, 0), 0, here, [(5, 0, b"a" * 100)], to_disk=True)

    def silent(message: Message) -> Message:
        raise DeadlineExceeded("no master answered")

    monkeypatch.setattr(primary_requests, "REQUEST_SECONDS", 0.0)
    with pytest.raises(DeadlineExceeded):
        Master(answer=silent).run(here.copier.carry_out(told))
    assert here.disk.files() == [(5, 0)]
    master = Master(answer=holding_nothing)
    master.run(files.collect(here.disk, c.CollectGarbage(here.disk.store.disk, b"", audit=True)))
    assert here.disk.store.stored() == []


@pytest.mark.parametrize(("number", "readable"), [(errno.ENOSPC, True), (errno.EIO, False)])
def test_a_failing_disk_disables_the_tier_and_is_reported(
    nodes: tuple[Served, Served], number: int, readable: bool
) -> None:
    here, _ = nodes
    here.fill(0, b"a" * 100)
    here.disk.store.files = Failing(number)
    told: list[int] = []
    here.disk.on_trouble = lambda: told.append(1)
    on_disk = SegmentName("here", here.disk.store.disk, 0)
    master = Master()
    objects = [(5, 0, b"a" * 100), (6, 0, b"a" * 100)]
    assert master.run(here.copier.carry_out(order(on_disk, 0, here, objects, to_disk=True))) == 0
    assert told == [1], "it is said once"
    master.run(files.say_trouble(here.disk))
    said = master.said[-1]
    assert isinstance(said, ReportDisk)
    assert (said.disk, said.readable) == (here.disk.store.disk, readable)


NOTHING_RESTORED = (lambda _: pytest.fail("nothing was restored"), lambda: pytest.fail("it was mounted already"))


def test_a_disk_of_another_history_is_emptied_and_mounted_again(nodes: tuple[Served, Served]) -> None:
    """I7"""
    here, _ = nodes
    here.disk.write(5, 0, memoryview(b"a" * 100), 1)
    here.disk.answered([0])

    def answer(message: Message) -> Message:
        if not isinstance(message, MountDisk):
            return holding_nothing(message)
        if message.log_id:
            raise MemoryVoid("another history")
        return DiskMounted(77, 3)

    master = Master(answer=answer)
    master.run(files.mount(here.disk, 1, "here:1", "host", *NOTHING_RESTORED))
    assert [message.log_id for message in master.said if isinstance(message, MountDisk)] == [11, 0]
    assert (here.disk.files(), here.disk.store.log_id) == ([], 77)


def test_a_disk_is_offered_again_where_a_primary_that_was_overtaken_does_not_know_its_node(
    nodes: tuple[Served, Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    """liveness, found by simulation: the next primary knew the node, and its disk was never mounted."""
    here, _ = nodes

    def answer(message: Message) -> Message:
        if not isinstance(message, MountDisk):
            return holding_nothing(message)
        if not master.left:
            raise UnknownNode("the node is not registered here")
        return DiskMounted(77, 3)

    master = Master(answer=answer)
    mount = partial(files.mount, here.disk, 1, "here:1", "host", *NOTHING_RESTORED)
    master.run(mount())
    assert (master.left, here.disk.store.log_id) == (1, 77)
    monkeypatch.setattr(files, "OVERTAKEN_SECONDS", 0.0)
    master.left = 0
    with pytest.raises(UnknownNode):
        master.run(mount())


def test_an_audit_leaves_alone_what_the_master_has_not_answered_about(nodes: tuple[Served, Served]) -> None:
    here, _ = nodes
    here.disk.write(5, 0, memoryview(b"a" * 100), 1)
    here.disk.write(6, 4096, memoryview(b"a" * 100), 1)
    here.disk.answered([0])
    master = Master(answer=holding_nothing)
    order_ = c.CollectGarbage(here.disk.store.disk, b"", audit=True)
    master.run(files.collect(here.disk, order_))
    assert [stored.oid for stored in here.disk.store.stored()] == [6]

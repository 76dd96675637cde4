"""Memory before it is lent."""

from __future__ import annotations

import errno
import os

import pytest

from holdfast.errors import BadValue, NoRoom, UnknownSegment
from holdfast.ids import LARGE_ALIGN, SegmentName
from holdfast.node.memory.lent_memory import Lending, LentMemory, huge_page_for
from tests.node.rig import open_files

MEMINFO = (
    "MemTotal: 100 kB\nHugePages_Total: 8\nHugePages_Free: {free}\nHugePages_Rsvd: {reserved}\nHugepagesize: 2048 kB\n"
)


def test_memory_is_split_evenly_and_every_page_of_it_is_there_before_it_is_lent() -> None:
    memory = LentMemory.create("n1", 5 << 20, 3)
    try:
        each = (5 << 20) // 3 // LARGE_ALIGN * LARGE_ALIGN
        assert memory.sizes == [each] * 3
        for segment in memory.segments:
            assert os.fstat(segment.descriptor).st_blocks * 512 >= each
            assert os.fstat(segment.descriptor).st_size == each
    finally:
        memory.close()


def test_each_memory_has_a_boot_id_of_its_own() -> None:
    """I14."""
    boots = set()
    for _ in range(3):
        memory = LentMemory.create("n1", 1 << 20, 1)
        boots.add(memory.boot)
        memory.close()
    assert len(boots) == 3
    assert 0 not in boots


def test_too_little_for_a_page_each_is_refused() -> None:
    with pytest.raises(BadValue):
        LentMemory.create("n1", 4095, 1)


def test_memory_that_the_machine_does_not_have_is_missed_at_once_and_nothing_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(descriptor: int, start: int, length: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    before = open_files()
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(NoRoom):
        LentMemory.create("n1", 2 << 20, 2)
    assert open_files() == before


def test_nothing_is_served_before_memory_is_lent_and_after_it_was_withdrawn() -> None:
    lending = Lending()
    with pytest.raises(UnknownSegment):
        lending.range_of(SegmentName("n1", 1, 0), 0, 1)
    memory = LentMemory.create("n1", 1 << 20, 1)
    name = SegmentName("n1", memory.boot, 0)
    lending.lend(memory)
    view = lending.range_of(name, 0, 4)
    view[:] = b"kept"
    lending.withdraw()
    lending.withdraw()
    assert bytes(view) == b"kept"
    with pytest.raises(UnknownSegment):
        lending.range_of(name, 0, 4)


@pytest.mark.parametrize(
    ("size", "free", "reserved", "page"),
    [(4 << 20, 2, 0, 2 << 20), (4 << 20, 1, 0, 0), (4 << 20, 3, 2, 0), (3 << 20, 8, 0, 0), (4 << 20, 0, 0, 0)],
)
def test_huge_pages_are_taken_only_when_enough_are_reserved(size: int, free: int, reserved: int, page: int) -> None:
    assert huge_page_for(size, MEMINFO.format(free=free, reserved=reserved)) == page
    assert huge_page_for(size, "MemTotal: 1 kB\n") == 0

"""The memory that a node lends: some segments of shared memory under one boot id.

It is touched before it is lent, because the first touch of a page costs more than ten copies into it, and because a
lack of memory must show now and not when a client writes to it. New memory always has a new boot id, and a data request
that names another is refused: so a restart voids everything that was there before (I14).
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import re
import threading
from collections.abc import Callable
from pathlib import Path

import structlog

from holdfast.entropy import fresh_id
from holdfast.errors import BadValue, NoRoom, UnknownSegment
from holdfast.ids import LARGE_ALIGN, SegmentName
from holdfast.node.disk.tier import DiskTier
from holdfast.node.host_capacity import available_memory, check_memory
from holdfast.transport.bulk_copy import address_of
from holdfast.transport.shared_memory import MADV_POPULATE_WRITE, Mapping, create_memory, populate

PIECE = 64 << 20
PROGRESS_EVERY = 4 << 30

log = structlog.get_logger("holdfast.node")


class LentSegment:
    """One piece of the memory. Readers get `read_descriptor`, through which nobody can write."""

    __slots__ = ("descriptor", "mapping", "name", "read_descriptor", "size_bytes")

    def __init__(self, name: SegmentName, size_bytes: int, huge_pages: bool) -> None:
        self.name = name
        self.size_bytes = size_bytes
        self.descriptor = create_memory(f"holdfast-{name.node}-{name.number}", size_bytes, huge_pages)
        try:
            self.read_descriptor = os.open(f"/proc/self/fd/{self.descriptor}", os.O_RDONLY | os.O_CLOEXEC)
            try:
                self.mapping = Mapping(self.descriptor, size_bytes, writable=True, populate=False)
            except BaseException:
                os.close(self.read_descriptor)
                raise
        except BaseException:
            os.close(self.descriptor)
            raise

    def touch(self, start: int, length: int) -> None:
        """Touch these pages, so that the kernel allocates them."""
        try:
            os.posix_fallocate(self.descriptor, start, length)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.ENOMEM):
                raise
            raise NoRoom(f"the machine has no {self.size_bytes:,} bytes to lend ({error}); lend less") from None
        if not populate(self.mapping.address + start, length, MADV_POPULATE_WRITE):
            ctypes.memset(self.mapping.address + start, 0, length)

    def close(self) -> None:
        self.mapping.close()
        os.close(self.read_descriptor)
        os.close(self.descriptor)


class LentMemory:
    """All segments of one boot id."""

    def __init__(self, node: str, boot: int, segments: list[LentSegment]) -> None:
        self.node = node
        self.boot = boot
        self.segments = segments

    @classmethod
    def create(cls, node: str, size_bytes: int, count: int, stopped: Callable[[], bool] = lambda: False) -> LentMemory:
        """New memory, touched. Once `stopped`, returns early with the memory made so far."""
        each = size_bytes // count // LARGE_ALIGN * LARGE_ALIGN
        if each <= 0:
            raise BadValue(f"{size_bytes:,} bytes cannot be split into {count} segments of whole pages; lend more")
        memory = cls(node, fresh_id(), [])
        try:
            for number in range(count):
                name = SegmentName(node, memory.boot, number)
                memory.segments.append(_new_segment(name, each))
            memory._touch(each * count, stopped)
        except BaseException:
            memory.close()
            raise
        return memory

    @property
    def sizes(self) -> list[int]:
        return [segment.size_bytes for segment in self.segments]

    def segment(self, name: SegmentName) -> LentSegment:
        if name.node == self.node and name.boot == self.boot and 0 <= name.number < len(self.segments):
            return self.segments[name.number]
        raise UnknownSegment(f"this node does not lend segment {name} (any more); ask the master where the bytes are")

    def close(self) -> None:
        """Release the memory. Clients' maps stay valid; they are the clients' own."""
        for segment in self.segments:
            segment.close()
        self.segments = []

    def _touch(self, total: int, stopped: Callable[[], bool]) -> None:
        done = 0
        for segment in self.segments:
            for start in range(0, segment.size_bytes, PIECE):
                if stopped():
                    return
                length = min(PIECE, segment.size_bytes - start)
                segment.touch(start, length)
                if (done + length) // PROGRESS_EVERY > done // PROGRESS_EVERY:
                    log.info("touching memory", done_bytes=done + length, total_bytes=total)
                done += length


class Lending:
    """The memory that is lent now, if any. It can be replaced while servers use it, so they use it under its lock:
    otherwise a client could get a descriptor that was closed and reused for another file."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.disk: DiskTier | None = None
        """The disk beside the memory: it stays when the memory is replaced."""
        self._memory: LentMemory | None = None

    def segment(self, name: SegmentName) -> LentSegment:
        """The segment of this name. Call it with the lock held, and use the result only while it is."""
        if self._memory is None:
            raise UnknownSegment("this node lends no memory now; ask the master where the bytes are")
        return self._memory.segment(name)

    def range_of(self, name: SegmentName, offset: int, length: int) -> memoryview:
        """A view of these bytes. It keeps the map alive, so that the memory may be replaced while it is used."""
        with self.lock:
            segment = self.segment(name)
            if offset < 0 or length < 0 or offset + length > segment.size_bytes:
                raise BadValue(
                    f"bytes {offset:,} to {offset + length:,} are outside of segment {name} "
                    f"({segment.size_bytes:,} bytes); nothing was read or written"
                )
            return segment.mapping.view[offset : offset + length]

    def lend(self, memory: LentMemory) -> None:
        with self.lock:
            assert self._memory is None
            self._memory = memory

    def lends(self, name: SegmentName) -> bool:
        with self.lock:
            return self._memory is not None and (self._memory.node, self._memory.boot) == (name.node, name.boot)

    def grow(self, size_bytes: int, force: bool = False) -> tuple[int, int, int] | None:
        """Lend one more segment, so that the total is this much: (boot, its number, its size). None: it already is.
        NoRoom, with nothing touched, if the machine seems to lack it, unless forced."""
        with self.lock:
            memory = self._memory
            if memory is None:
                raise UnknownSegment("this node lends no memory now, so there is nothing to add to")
            missing = (size_bytes - sum(memory.sizes)) // LARGE_ALIGN * LARGE_ALIGN
            number = len(memory.segments)
        if missing <= 0:
            return None
        if not force:
            check_machine(missing)
        added = _new_segment(SegmentName(memory.node, memory.boot, number), missing)
        try:
            for start in range(0, missing, PIECE):
                added.touch(start, min(PIECE, missing - start))
            with self.lock:
                if self._memory is not memory or len(memory.segments) != number:
                    raise UnknownSegment("the node's memory was replaced meanwhile; nothing was added")
                memory.segments.append(added)
        except BaseException:
            added.close()
            raise
        return memory.boot, number, missing

    def release(self, number: int, limit_bytes: int) -> None:
        """Give the pages of this segment from there on back to the machine; clients that map them read zeros."""
        with self.lock:
            if self._memory is None or not 0 <= number < len(self._memory.segments):
                return
            segment = self._memory.segments[number]
            start = -(-limit_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
            if start < segment.size_bytes:
                segment.mapping.map.madvise(mmap.MADV_REMOVE, start, segment.size_bytes - start)

    def withdraw(self) -> None:
        """Stop lending: all requests for its segments are refused from now on."""
        with self.lock:
            memory, self._memory = self._memory, None
            if memory is not None:
                memory.close()


def _new_segment(name: SegmentName, size_bytes: int) -> LentSegment:
    page = huge_page_for(size_bytes, Path("/proc/meminfo").read_text(encoding="ascii"))
    if page:
        try:
            return LentSegment(name, size_bytes, huge_pages=True)
        except OSError as error:
            log.info("huge pages cannot be used, lending normal pages", reason=str(error))
    segment = LentSegment(name, size_bytes, huge_pages=False)
    # EINVAL: a kernel without transparent huge pages.
    with contextlib.suppress(OSError):
        segment.mapping.map.madvise(mmap.MADV_HUGEPAGE)
    return segment


def wipe(room: memoryview) -> None:
    """Make all bytes zero. Other threads run meanwhile."""
    ctypes.memset(address_of(room), 0, room.nbytes)


def check_machine(size_bytes: int) -> None:
    """Refuse to lend memory that this machine lacks, before a page is touched. Reserved huge pages are extra."""
    if not huge_page_for(size_bytes, Path("/proc/meminfo").read_text(encoding="ascii")):
        check_memory(size_bytes, available_memory())


def huge_page_for(size_bytes: int, meminfo: str) -> int:
    """The size of a reserved huge page if there are enough of them for this much memory, else 0."""
    numbers = dict(re.findall(r"^(\w+):\s+(\d+)", meminfo, re.MULTILINE))
    page = int(numbers.get("Hugepagesize", 0)) << 10
    free = int(numbers.get("HugePages_Free", 0)) - int(numbers.get("HugePages_Rsvd", 0))
    return page if page and size_bytes % page == 0 and free * page >= size_bytes else 0

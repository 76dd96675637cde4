"""Memory shared with a process of the same machine: a memfd, mapped by both sides.

A write is one copy into the map, a read is a view of it. Two dangers are prevented here. Unmapping under a running copy
would crash the process: so a copy holds an export of the map, and a map with exports is unmapped only when the last of
them is gone. A forked child that inherited a map would be a writer that nobody knows of (I11): so children do not
inherit maps, and the child never unmaps the addresses, which may hold something else there.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import threading
import weakref
from typing import TYPE_CHECKING

import xxhash

from holdfast.errors import BadValue, Unreachable
from holdfast.transport.bulk_copy import QuickerWays, address_of, copy_bulk

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SMALL_COPY = 64 << 10
"""Below this size a slice assignment, which holds the GIL, is cheaper than releasing the GIL."""
POPULATE_PIECE = 32 << 20
POPULATE_WAIT_SECONDS = 10.0

MADV_POPULATE_READ = 22
MADV_POPULATE_WRITE = 23

F_SEAL_FUTURE_WRITE = 0x0010
"""Nobody maps it for writing or writes to it from now on, but for maps that exist. The fcntl module lacks the name."""

_libc = ctypes.CDLL(None, use_errno=True)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_digest_of = xxhash.xxh3_64_intdigest


def create_memory(name: str, size_bytes: int, huge_pages: bool = False, seals: int = fcntl.F_SEAL_SEAL) -> int:
    """The descriptor of new shared memory, `size_bytes` long, none of it touched yet.

    It is sealed: a process that gets it can neither shrink nor grow it, which would kill the others that map it.
    `seals` are those beside.
    """
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING | (os.MFD_HUGETLB if huge_pages else 0)
    descriptor = os.memfd_create(name, flags)
    try:
        os.ftruncate(descriptor, size_bytes)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | seals)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def map_alone(name: str, size_bytes: int) -> tuple[int, mmap.mmap]:
    """New shared memory that this process alone writes to: its descriptor, and the one writable map of it there is.

    Whoever gets the descriptor can read. A read-only descriptor would not do: its owner could open it for writing."""
    descriptor = create_memory(name, size_bytes, seals=0)
    try:
        map_ = mmap.mmap(descriptor, size_bytes, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, F_SEAL_FUTURE_WRITE | fcntl.F_SEAL_SEAL)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor, map_


_populates = True


def populate_nothing() -> None:
    """Leave the page tables to be filled as memory is used, in this process from now on. For one that moves an object
    and ends: it would spend more time on the pages that it does not use."""
    global _populates
    _populates = False


_maps: weakref.WeakSet[mmap.mmap] = weakref.WeakSet()
_mappings: weakref.WeakSet[Mapping] = weakref.WeakSet()


def _disown_maps() -> None:
    """Disown the maps in a forked child, where they do not exist. Their addresses may soon hold something else, and the
    finalizer of an mmap object would unmap that: so these objects are never freed. A copy through one of them raises
    instead of crashing."""
    for mapping in list(_mappings):
        mapping.closed = True
    for map_ in list(_maps):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(map_))


os.register_at_fork(after_in_child=_disown_maps)


class Mapping:
    """One mapped segment. After `close` it must not be used, but views handed out before stay valid."""

    __slots__ = (
        "__weakref__",
        "_populating",
        "_stop",
        "_watches",
        "address",
        "closed",
        "map",
        "quicker",
        "size_bytes",
        "view",
        "writable",
    )

    def __init__(self, descriptor: int, size_bytes: int, writable: bool, populate: bool = True) -> None:
        protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        self.map = mmap.mmap(descriptor, size_bytes, mmap.MAP_SHARED, protection)
        self.map.madvise(mmap.MADV_DONTFORK)
        _maps.add(self.map)
        _mappings.add(self)
        self.view = memoryview(self.map)
        self.address = address_of(self.view)
        self.size_bytes = size_bytes
        self.writable = writable
        self.closed = False
        self.quicker = QuickerWays()
        """For large copies out of this map: what is quicker differs from client to client, and stays so."""
        self._stop = threading.Event()
        self._watches: list[weakref.finalize[[], mmap.mmap]] = []
        self._populating: threading.Thread | None = None
        if populate and _populates:
            advice = MADV_POPULATE_WRITE if writable else MADV_POPULATE_READ
            self._populating = threading.Thread(
                target=_populate_all,
                args=(self.view[:], self.address, advice, self._stop),
                name="populate",
                daemon=True,
            )
            self._populating.start()

    def close(self) -> None:
        """Unmap; if views or copies still use it, it is unmapped when the last of them ends."""
        if self.closed:
            return
        self.closed = True
        self._stop.set()
        if self._populating is not None:
            self._populating.join(POPULATE_WAIT_SECONDS)
        map_ = self.map
        del self.map
        self.view.release()
        try:
            map_.close()
        except BufferError:
            # A reader or copy still keeps the map; the end of the last one unmaps it.
            return
        for watch in self._watches:
            watch()

    def when_unmapped(self, then: Callable[[], None]) -> None:
        """Call `then` once no byte can be written through this map any more. Must be called before `close`."""
        watch = weakref.finalize(self.map, then)
        # Not needed when the process ends: the kernel drops its memory before it closes its files.
        watch.atexit = False
        self._watches.append(watch)


def _populate_all(pinned: memoryview, address: int, advice: int, stop: threading.Event) -> None:
    """Fill in the page tables, so that the first copy does not pay for the faults. `pinned` keeps the map alive."""
    size = len(pinned)
    for start in range(0, size, POPULATE_PIECE):
        # A kernel before 5.14 does not know the advice, and memory may be short: then pages fault in when used.
        if stop.is_set() or not populate(address + start, min(POPULATE_PIECE, size - start), advice):
            break
    pinned.release()


def populate(address: int, length: int, advice: int) -> bool:
    """Map these pages now; False if the kernel will not."""
    return bool(_libc.madvise(address, length, advice) == 0)


def _check(mapping: Mapping, offset: int, size: int) -> None:
    if mapping.closed:
        raise _unmapped()
    if offset < 0 or offset + size > mapping.size_bytes:
        raise BadValue(
            f"bytes {offset:,} to {offset + size:,} are outside of the segment ({mapping.size_bytes:,} bytes); "
            "nothing was copied"
        )


def _unmapped() -> Unreachable:
    return Unreachable("this memory is not mapped (any more) in this process; nothing was copied. Attach it again")


def copy_in(mapping: Mapping, offset: int, source: memoryview, checksum: bool) -> int:
    """Copy `source` to `offset`. Returns the checksum of the copy, or 0 if none is wanted."""
    size = source.nbytes
    _check(mapping, offset, size)
    # A bulk copy uses addresses, without Python's own check; it would crash the process.
    if not mapping.writable:
        raise BadValue("this segment is mapped for reading only; nothing was copied")
    try:
        if size < SMALL_COPY:
            mapping.map[offset : offset + size] = source
            return (_digest_of(source) or 1) if checksum else 0
        target = mapping.view[offset : offset + size]
    except (AttributeError, ValueError):
        if mapping.closed:
            # Another thread has just unmapped it.
            raise _unmapped() from None
        raise
    with target:
        return copy_bulk(target, source, checksum)


def copy_out(mapping: Mapping, offset: int, target: memoryview, checksum: bool) -> int:
    """Fill `target` from `offset`. Returns the checksum of the copy, or 0 if none is wanted."""
    size = target.nbytes
    _check(mapping, offset, size)
    if target.readonly:
        raise BadValue("the buffer cannot be written; nothing was copied. Pass a bytearray or a writable array")
    try:
        source = mapping.view[offset : offset + size]
        if size < SMALL_COPY:
            target[:] = source
            return (_digest_of(target) or 1) if checksum else 0
    except ValueError:
        if mapping.closed:
            # Another thread has just unmapped it.
            raise _unmapped() from None
        raise
    with source:
        return copy_bulk(target, source, checksum, mapping.quicker)


def copy_in_parts(mapping: Mapping, offset: int, sources: Sequence[memoryview], checksum: bool) -> int:
    """Copy these one after the other to `offset`. Returns the checksum of the whole copy, or 0 if none is wanted."""
    size = sum(source.nbytes for source in sources)
    _check(mapping, offset, size)
    if not mapping.writable:
        raise BadValue("this segment is mapped for reading only; nothing was copied")
    digest = xxhash.xxh3_64() if checksum else None
    with _exported(mapping, offset, size) as target:
        at = 0
        for source in sources:
            room = target[at : at + source.nbytes]
            if source.nbytes < SMALL_COPY:
                room[:] = source
            else:
                copy_bulk(room, source, False)
            if digest is not None:
                digest.update(room)
            at += source.nbytes
    return (digest.intdigest() or 1) if digest is not None else 0


def copy_out_parts(mapping: Mapping, offset: int, room: Sequence[tuple[int, memoryview]], checksum: bool) -> int:
    """Fill each of these (start from `offset`, target). Returns the checksum of all in order, or 0 if not wanted."""
    if len(room) == 1:
        [(start, target)] = room
        return copy_out(mapping, offset + start, target, checksum)
    for start, target in room:
        copy_out(mapping, offset + start, target, False)
    return digest_of_parts(room) if checksum else 0


def digest_of_parts(room: Sequence[tuple[int, memoryview]]) -> int:
    digest = xxhash.xxh3_64()
    for _, view in room:
        digest.update(view)
    return digest.intdigest() or 1


def _exported(mapping: Mapping, offset: int, size: int) -> memoryview:
    """A view that keeps the map alive until it is released."""
    try:
        return mapping.view[offset : offset + size]
    except ValueError:
        if mapping.closed:
            # Another thread has just unmapped it.
            raise _unmapped() from None
        raise

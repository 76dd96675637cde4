"""Copies of many bytes, with their checksum on the way; two threads share a copy if there are two cores for it.

One core cannot saturate the memory: two of them copy 1.7 times as fast. The whole process has one second thread, which
is asked only when it is idle and takes the next free chunk each time: if it comes late or not at all, the caller has
done the work by then and does not wait for it. When a copy returns or raises, no thread writes any more (I11). The
second thread also hashes the bytes that the caller is sending.

For some clients two threads are slower than one for as long as they live. So a copy out of a map may be timed, and goes
the way that `QuickerWay` finds quicker there (ADR 75).
"""

from __future__ import annotations

import ctypes
import logging
import mmap
import os
import threading
from collections import deque
from enum import Enum
from queue import SimpleQueue
from typing import Protocol

import xxhash

from holdfast.instant import now_seconds

log = logging.getLogger("holdfast.transport")

CHUNK = 256 << 10
"""Copied and then hashed while it is still in the CPU cache: source and copy fit into a second-level cache, and it is
long enough that releasing the GIL per chunk does not matter. Against memcpy: 1 MiB 0.75, 512 KiB 0.81, 256 KiB 0.86."""
SHARED_CHUNK = 1 << 20
"""The chunk that one of two threads takes at a time if nothing is hashed."""
SHARED_HASHED_CHUNK = 512 << 10
"""The same if it is hashed. Less would fit into a nearer cache; but a thread that wants the GIL while the other has it
sleeps until it is woken, so fewer steps are better."""
SHARED_FROM = 2 << 20
"""Copies from this size on are shared: waking a thread takes as long as copying some hundred KiB."""

LOOKS = 100
"""How often to check whether the other thread is done with its last chunk before sleeping until it is."""

COPIES_KNOWN = 8
"""Copies of the preferred way whose best a trial is held against: one whole round of some caller, and no more than what
the machine was like a moment ago."""
TRIED_SHARE = 0.02
"""Of all bytes, the most that go the other way, beyond one trial. One thread takes 1.6 times as long as two (ADR 21),
so this costs 1.2% of the time."""
CLEARLY = 0.9
"""A trial wins if it takes less than this part of the best time. Closer than that, either way will do."""

_memmove = ctypes.memmove


class _PyBuffer(ctypes.Structure):
    """Py_buffer of the stable ABI; `internal` and the array pointers are not read."""

    _fields_ = (
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.py_object),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    )


_get_buffer = ctypes.pythonapi.PyObject_GetBuffer
_get_buffer.argtypes = (ctypes.py_object, ctypes.POINTER(_PyBuffer), ctypes.c_int)
_get_buffer.restype = ctypes.c_int
_release_buffer = ctypes.pythonapi.PyBuffer_Release
_release_buffer.argtypes = (ctypes.POINTER(_PyBuffer),)
_release_buffer.restype = None


def address_of(buffer: bytes | bytearray | memoryview | mmap.mmap) -> int:
    """The address of a contiguous buffer's bytes; valid while the caller holds the buffer."""
    seen = _PyBuffer()
    _get_buffer(buffer, ctypes.byref(seen), 0)
    try:
        return seen.buf or 0
    finally:
        _release_buffer(ctypes.byref(seen))


class Way(Enum):
    """A way to make a large copy with its checksum."""

    TWO_THREADS = 0
    ONE_THREAD = 1

    @property
    def other(self) -> Way:
        return Way.ONE_THREAD if self is Way.TWO_THREADS else Way.TWO_THREADS


class QuickerWay:
    """The quicker of the two ways for copies of about one size, found by a trial now and then.

    1. Copies go the preferred way. Their best time is known once there were `COPIES_KNOWN` of them.
    2. When the share for trials allows it, one copy goes the other way. Other work on the machine makes copies slower,
       not quicker: so a trial that clearly beats the best of the others is worth a second one.
    3. If the second one does too, that way is preferred from then on, until trials of the other one win in the same
       manner.

    Reads no clock. Several threads may use it at once: a note that gets lost costs a sample, nothing else.
    """

    __slots__ = ("_bytes", "_recent", "_tried", "_won", "preferred")

    def __init__(self) -> None:
        self.preferred = Way.TWO_THREADS
        self._recent: tuple[float, ...] = ()
        """Seconds a byte of the last copies of the preferred way."""
        self._won: float | None = None
        """Seconds a byte of a trial that won and is to be repeated."""
        self._bytes = 0
        self._tried = 0
        """Those of them that went in trials."""

    def next(self) -> Way:
        """The way for the next copy."""
        due = len(self._recent) == COPIES_KNOWN and self._tried <= self._bytes * TRIED_SHARE
        return self.preferred.other if due or self._won is not None else self.preferred

    def note(self, way: Way, size: int, seconds: float) -> None:
        """A copy of this size went this way and took so long."""
        pace = seconds / size
        self._bytes += size
        recent = self._recent
        if way is self.preferred:
            self._recent = (*recent[1 - COPIES_KNOWN :], pace)
            return
        self._tried += size
        before, self._won = self._won, None
        if not recent or pace >= CLEARLY * min(recent):
            return
        if before is None:
            self._won = pace
        else:
            self.preferred, self._recent = way, (before, pace)


class QuickerWays:
    """The quicker way for each size of copies, by powers of two: a short copy is slower per byte than a long one."""

    __slots__ = ("_of_size",)

    def __init__(self) -> None:
        self._of_size: dict[int, QuickerWay] = {}

    def of(self, size: int) -> QuickerWay:
        return self._of_size.setdefault(size.bit_length(), QuickerWay())


def copy_bulk(target: memoryview, source: memoryview, checksum: bool, ways: QuickerWays | None = None) -> int:
    """Copy. Returns the checksum of the copy, or 0 if none is wanted. Callers hold both views, so that neither memory
    is freed while the GIL is released. `ways` is what such copies have taught, for large ones with a checksum."""
    size = source.nbytes
    if size < SHARED_FROM:
        return _copy_alone(target, source, checksum)
    if ways is None or not checksum:
        return SharedCopy(target, source, checksum).run()
    return _copy_the_quicker_way(target, source, ways.of(size))


def _copy_the_quicker_way(target: memoryview, source: memoryview, quicker: QuickerWay) -> int:
    way = quicker.next()
    began = now_seconds()
    if way is Way.ONE_THREAD:
        found = _copy_alone(target, source, True)
    else:
        shared = SharedCopy(target, source, True)
        found = shared.run()
        if not shared.offered:
            return found  # The other thread was busy, or there is no core for it: this says nothing about two.
    quicker.note(way, source.nbytes, now_seconds() - began)
    return found


def _copy_alone(target: memoryview, source: memoryview, checksum: bool) -> int:
    size = source.nbytes
    to, from_ = address_of(target), address_of(source)
    if not checksum:
        _memmove(to, from_, size)
        return 0
    digest = xxhash.xxh3_64()
    for start in range(0, size, CHUNK):
        count = min(CHUNK, size - start)
        _memmove(to + start, from_ + start, count)
        # The copy is hashed, not the original: others will read the copy, whatever happens to the original.
        digest.update(target[start : start + count])
    return digest.intdigest() or 1


class SharedCopy:
    """One copy whose chunks two threads take in order; the thread that finds the next one copied hashes it."""

    __slots__ = (
        "_copied",
        "_digest",
        "_from",
        "_hashed",
        "_hashing",
        "_helping",
        "_size",
        "_starts",
        "_step",
        "_target",
        "_to",
        "offered",
    )

    def __init__(self, target: memoryview, source: memoryview, checksum: bool) -> None:
        self._target = target
        self._to, self._from = address_of(target), address_of(source)
        self._size = source.nbytes
        self._step = SHARED_HASHED_CHUNK if checksum else SHARED_CHUNK
        self._starts = iter(range(0, self._size, self._step))
        """The chunks that no thread has taken: taking one is a single interpreter step."""
        self._copied: set[int] = set()
        self._digest = xxhash.xxh3_64() if checksum else None
        self._hashed = 0
        """Bytes hashed so far from the front. They are hashed in order, by one thread at a time."""
        self._hashing = threading.Lock()
        self._helping = threading.Lock()
        """Held by the second thread while it may touch the memory."""
        self.offered = False
        """The second thread was asked, as it was idle."""

    def run(self) -> int:
        """Run the copy. Called by the thread that holds the views."""
        try:
            self.offered = _hand.offer(self)
            self._take_chunks()
            self._wait_for_the_other()
            for start in range(0, self._size, self._step):
                if start not in self._copied:  # The other thread took it, and failed.
                    self._copy(start)
            if self._digest is not None:
                self._hash(self._digest)
        except BaseException:
            # An interrupt stops the copy for both threads.
            self._wait_for_the_other()
            raise
        return (self._digest.intdigest() or 1) if self._digest is not None else 0

    def help(self) -> None:
        """The second thread's part."""
        if self._helping.acquire(blocking=False):
            try:
                self._take_chunks()
            finally:
                self._helping.release()

    def _take_chunks(self) -> None:
        digest, copied = self._digest, self._copied
        for start in self._starts:
            self._copy(start)
            if digest is not None and self._hashed in copied:
                self._hash(digest)

    def _copy(self, start: int) -> None:
        _memmove(self._to + start, self._from + start, min(self._step, self._size - start))
        self._copied.add(start)

    def _hash(self, digest: xxhash.xxh3_64) -> None:
        """Hash the next copied chunks, unless the other thread is hashing; then that one will see them."""
        copied, step, hashing, target, update = self._copied, self._step, self._hashing, self._target, digest.update
        while self._hashed in copied and hashing.acquire(blocking=False):
            try:
                start = self._hashed
                while start in copied:
                    update(target[start : start + step])
                    self._hashed = start = start + step
            finally:
                hashing.release()

    def _wait_for_the_other(self) -> None:
        """Wait until it has left, however often this is interrupted. There is nothing left for it to take, so it does
        not come back."""
        interrupt: KeyboardInterrupt | None = None
        while True:
            try:
                for _ in self._starts:
                    pass
                for _ in range(LOOKS):
                    if not self._helping.locked():
                        break
                    os.sched_yield()
                with self._helping:
                    break
            except KeyboardInterrupt as error:
                interrupt = error
        if interrupt is not None:
            raise interrupt


class SharedHash:
    """The hash of bytes that one thread is sending: a second one reads them, in order, while the first is in the
    kernel."""

    __slots__ = ("_digest", "_failure", "_helping", "_source", "_starts")

    def __init__(self, source: memoryview, digest: xxhash.xxh3_64) -> None:
        self._source = source
        self._digest = digest
        self._starts = iter(range(0, source.nbytes, CHUNK))
        self._helping = threading.Lock()
        self._failure: Exception | None = None

    def begin(self) -> bool:
        """Start hashing. False: the second thread is not available now."""
        return _hand.offer(self)

    def help(self) -> None:
        if self._helping.acquire(blocking=False):
            try:
                self._go_on()
            except Exception as error:
                self._failure = error
                raise
            finally:
                self._helping.release()

    def _go_on(self) -> None:
        for start in self._starts:
            self._digest.update(self._source[start : start + CHUNK])

    def finish(self) -> None:
        """Called by the first thread. On return all is hashed, and no other thread reads the bytes."""
        with self._helping:
            self._go_on()
        if self._failure is not None:
            raise self._failure  # A part was taken and not hashed: a hash of the rest would be wrong.

    def leave(self) -> None:
        """As `finish`, if the hash is no longer wanted."""
        deque(self._starts, maxlen=0)
        with self._helping:
            pass


class Helped(Protocol):
    def help(self) -> None:
        """The second thread's part; called once, or, if that is busy, never."""


class Hand:
    """The second thread of this process: started when first needed, and running until the process ends."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Forget the thread, as in a forked child, where it does not exist whatever it was doing in the parent."""
        self._busy = threading.Lock()
        self._wanted: SimpleQueue[Helped] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def offer(self, work: Helped) -> bool:
        """Let the thread help with this work, if it is idle and there is a core for it."""
        if len(os.sched_getaffinity(0)) < 2 or not self._busy.acquire(blocking=False):
            return False
        if self._thread is None:
            thread = threading.Thread(target=self._work, name="holdfast-copy", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # No thread can be started here or now: the caller copies alone.
                self._busy.release()
                return False
            self._thread = thread
        self._wanted.put(work)
        return True

    def _work(self) -> None:
        while True:
            work = self._wanted.get()
            try:
                work.help()
            except Exception:
                # The first thread finds out what was not done: this one stays for the next copy.
                log.exception("the second thread of a copy failed; the first one does its part")
            finally:
                self._busy.release()
            del work


_hand = Hand()
os.register_at_fork(after_in_child=_hand.forget)

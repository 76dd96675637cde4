"""Shared memory: copies, maps and their ends."""

from __future__ import annotations

import ctypes
import errno
import faulthandler
import gc
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import BadValue, Unreachable
from holdfast.transport.bulk_copy import CHUNK, SHARED_FROM, QuickerWay, Way, address_of
from holdfast.transport.shared_memory import SMALL_COPY, Mapping, copy_in, copy_out, create_memory

SIZE = 4 << 20


@contextmanager
def mapped(writable: bool = True, size: int = SIZE, populate: bool = True) -> Iterator[Mapping]:
    descriptor = create_memory("of-a-test", size)
    mapping = Mapping(descriptor, size, writable, populate)
    os.close(descriptor)
    try:
        yield mapping
    finally:
        mapping.close()


def test_the_address_of_bytes_that_cannot_be_written_is_found() -> None:
    text = b"some bytes"
    assert ctypes.string_at(address_of(text), len(text)) == text
    assert ctypes.string_at(address_of(memoryview(text)[5:]), 5) == b"bytes"


@pytest.mark.parametrize("size", [0, 1, 100, SMALL_COPY - 1, SMALL_COPY, CHUNK, 2 * CHUNK + 3, SHARED_FROM + 77_777])
@pytest.mark.parametrize("checksum", [True, False])
def test_what_is_copied_in_comes_out_with_the_checksum_of_all_its_bytes(size: int, checksum: bool) -> None:
    data = os.urandom(size)
    right = xxhash.xxh3_64_intdigest(data) if checksum else 0
    with mapped() as mapping:
        assert copy_in(mapping, 64, memoryview(data), checksum) == right
        assert mapping.map[64 : 64 + size] == data
        assert mapping.map[64 + size : 64 + size + 64] == bytes(64)
        target = bytearray(size)
        assert copy_out(mapping, 64, memoryview(target), checksum) == right
        assert target == data


def test_large_copies_out_of_a_map_teach_that_map_and_copies_into_it_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    noted: list[tuple[QuickerWay, int]] = []
    monkeypatch.setattr(QuickerWay, "next", lambda _: Way.ONE_THREAD)
    monkeypatch.setattr(QuickerWay, "note", lambda quicker, way, size, seconds: noted.append((quicker, size)))
    data = os.urandom(SHARED_FROM)
    with mapped() as mapping:
        copy_in(mapping, 64, memoryview(data), True)
        assert noted == []
        copy_out(mapping, 64, memoryview(bytearray(SHARED_FROM)), True)
        assert noted == [(mapping.quicker.of(SHARED_FROM), SHARED_FROM)]


@given(st.integers(-(1 << 40), 1 << 40), st.sampled_from([1, 64, SMALL_COPY, CHUNK]))
def test_a_copy_beyond_the_segment_is_refused(offset: int, size: int) -> None:
    if 0 <= offset <= SMALL_COPY - size:
        offset += SMALL_COPY
    with mapped(size=SMALL_COPY) as mapping:
        with pytest.raises(BadValue):
            copy_in(mapping, offset, memoryview(b"x" * size), True)
        with pytest.raises(BadValue):
            copy_out(mapping, offset, memoryview(bytearray(size)), True)
        assert mapping.map[:] == bytes(SMALL_COPY)


def test_a_read_only_map_cannot_be_written_and_says_so_instead_of_crashing() -> None:
    with mapped(writable=False) as mapping:
        assert mapping.view.readonly
        for size in (5, SMALL_COPY):
            with pytest.raises(BadValue):
                copy_in(mapping, 0, memoryview(b"x" * size), False)
        assert mapping.map[:16] == bytes(16)


@pytest.mark.parametrize("size", [5, SMALL_COPY])
def test_a_buffer_that_cannot_be_written_is_refused(size: int) -> None:
    target = bytes(size)
    with mapped() as mapping:
        copy_in(mapping, 0, memoryview(b"x" * size), False)
        with pytest.raises(BadValue):
            copy_out(mapping, 0, memoryview(target), False)
    assert target == bytes(size)


def test_a_view_stays_good_when_the_map_is_closed_under_it() -> None:
    with mapped() as mapping:
        copy_in(mapping, 0, memoryview(b"held"), False)
        view = mapping.view[:4]
        mapping.close()
        mapping.close()
        assert bytes(view) == b"held"
        with pytest.raises(Unreachable):
            copy_in(mapping, 0, memoryview(b"late"), False)
        with pytest.raises(Unreachable):
            copy_out(mapping, 0, memoryview(bytearray(4)), False)


def test_the_end_of_a_map_is_told_only_when_the_last_view_is_gone() -> None:
    ended: list[bool] = []
    with mapped() as mapping:
        mapping.when_unmapped(lambda: ended.append(True))
        view = mapping.view[:4]
        mapping.close()
        gc.collect()
        assert not ended
        view.release()
        del view
        gc.collect()
        assert ended == [True]


def test_the_end_of_a_map_is_told_at_once_when_nobody_is_at_it() -> None:
    ended: list[bool] = []
    with mapped() as mapping:
        mapping.when_unmapped(lambda: ended.append(True))
        kept = mapping.map
        mapping.close()
        assert ended == [True]
        del kept
        gc.collect()
        assert ended == [True]


def test_whoever_is_handed_the_memory_cannot_shrink_it_under_the_others() -> None:
    descriptor = create_memory("of-a-test", SIZE)
    try:
        with pytest.raises(OSError) as raised:
            os.ftruncate(descriptor, 0)
        assert raised.value.errno == errno.EPERM
    finally:
        os.close(descriptor)


def test_a_forked_child_has_no_part_in_the_map() -> None:
    """I11: a child that kept the map would be a writer that nobody knows of."""
    with mapped() as mapping:
        address = f"{mapping.address:x}-"
        with open("/proc/self/maps", encoding="ascii") as maps:
            assert address in maps.read()
        child = os.fork()
        if child == 0:
            with open("/proc/self/maps", encoding="ascii") as maps:
                inherited = address in maps.read()
            mapping.close()
            del mapping
            gc.collect()
            os._exit(1 if inherited else 0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_forked_child_that_copies_by_its_parents_map_is_told_so_and_does_not_crash() -> None:
    with mapped() as mapping:
        child = os.fork()
        if child == 0:
            try:
                copy_in(mapping, 0, memoryview(bytes(SMALL_COPY)), False)
            except Unreachable:
                os._exit(0)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_what_a_child_maps_at_the_same_place_is_not_unmapped_with_the_parents_map() -> None:
    anonymous_at_exactly_this_place = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x100000
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    both = mmap.PROT_READ | mmap.PROT_WRITE
    with mapped(populate=False) as mapping:
        child = os.fork()
        if child == 0:
            faulthandler.disable()
            taken = libc.mmap(mapping.address, SIZE, both, anonymous_at_exactly_this_place, -1, 0)
            if taken != mapping.address:
                os._exit(2)
            mapping.view.release()
            del mapping.map
            gc.collect()
            ctypes.memset(taken, 1, SIZE)
            os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code == 2:
        pytest.skip("something else took the place first")
    assert code == 0

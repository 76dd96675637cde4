"""Any contiguous memory is a buffer, seen in place; and what is none is refused by name."""

from __future__ import annotations

import array
import ctypes
import gc
import mmap
import weakref
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import holdfast
from holdfast.client.arguments import checked_items, checked_target, checked_targets, checked_value
from holdfast.client.buffers import flat
from holdfast.client.targets import Part, Scattered, room_in
from holdfast.errors import BadValue, BufferTooSmall
from holdfast.transport.bulk_copy import address_of


class Tensor:
    """As much of a torch tensor as is looked at."""

    def __init__(self, memory: np.ndarray[Any, Any], device: str = "cpu", contiguous: bool = True) -> None:
        self._memory = memory
        self.device = SimpleNamespace(type=device)
        self._contiguous = contiguous

    def data_ptr(self) -> int:
        return int(self._memory.ctypes.data)

    def element_size(self) -> int:
        return int(self._memory.itemsize)

    def numel(self) -> int:
        return int(self._memory.size)

    def is_contiguous(self) -> bool:
        return self._contiguous


class Record(ctypes.Structure):
    _fields_ = (("a", ctypes.c_int), ("b", ctypes.c_double))


def anonymous_map() -> mmap.mmap:
    return mmap.mmap(-1, 4096)


BUFFERS: dict[str, Any] = {
    "bytearray": bytearray(b"abcdef"),
    "memoryview of doubles": memoryview(array.array("d", [1.0, 2.0])),
    "two dimensions": memoryview(bytearray(12)).cast("B", (3, 4)),
    "array": array.array("i", [1, 2, 3]),
    "ctypes array": (ctypes.c_uint16 * 5)(1, 2, 3, 4, 5),
    "ctypes structure": Record(1, 2.0),
    "mmap": anonymous_map(),
    "float32": np.arange(6, dtype=np.float32).reshape(2, 3),
    "big endian": np.arange(4, dtype=">i4"),
    "record": np.zeros(3, [("a", "i4"), ("b", "f8")]),
    "datetime": np.array(["2026-01-01", "2026-01-02"], "M8[s]"),
    "tensor": Tensor(np.arange(6, dtype=np.int16)),
    "zero dimensions": np.array(7.0),
}


def bytes_of(buffer: Any) -> bytes:
    if isinstance(buffer, Tensor):
        return buffer._memory.tobytes()
    return buffer.tobytes() if isinstance(buffer, np.ndarray) else bytes(memoryview(buffer))


@pytest.mark.parametrize("name", BUFFERS)
def test_any_contiguous_memory_is_seen_in_place(name: str) -> None:
    buffer = BUFFERS[name]
    view = flat(buffer, "a value")
    assert (view.format, view.ndim, view.readonly) == ("B", 1, False)
    assert bytes(view) == bytes_of(buffer)
    old = view[0]
    checked_target(buffer)[0] = old ^ 0xFF
    assert bytes_of(buffer)[0] == old ^ 0xFF
    view[0] = old


def test_memory_at_an_address() -> None:
    memory = bytearray(b"hello world")
    view = holdfast.memory_at(address_of(memory) + 6, 5)
    assert bytes(view) == b"world"
    view[0] = ord("W")
    assert memory == b"hello World"
    shown = holdfast.memory_at(address_of(memory), 5, writable=False)
    assert shown.readonly
    assert bytes(shown) == b"hello"
    with pytest.raises(TypeError, match="read-only"):
        checked_target(shown)
    assert holdfast.memory_at(0, 0).nbytes == 0


@pytest.mark.parametrize(("address", "length"), [(0, 1), (-8, 8), (4096, -1), (2**64 - 8, 8), (2**65, 1)])
def test_no_memory_is_there(address: int, length: int) -> None:
    with pytest.raises(BadValue, match="no memory"):
        holdfast.memory_at(address, length)


def test_an_address_is_a_number() -> None:
    with pytest.raises(TypeError, match="str"):
        holdfast.memory_at("4096", 8)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="float"):
        holdfast.memory_at(4096, 8.0)  # type: ignore[arg-type]


def test_a_view_of_a_tensor_keeps_it() -> None:
    tensor = Tensor(np.arange(1000, dtype=np.int64))
    gone = weakref.ref(tensor)
    view = flat(tensor, "a value")
    kept = view[8:16]
    del tensor, view
    gc.collect()
    assert gone() is not None
    assert int.from_bytes(kept, "little") == 1
    del kept
    gc.collect()
    assert gone() is None


def test_memory_of_a_device_is_refused() -> None:
    with pytest.raises(BadValue, match="'cuda'"):
        checked_value(Tensor(np.zeros(4), "cuda"))
    with pytest.raises(BadValue, match="contiguous"):
        checked_target(Tensor(np.zeros(4), contiguous=False))
    with pytest.raises(BadValue, match="contiguous"):
        checked_value(np.array(["2026-01-01"] * 4, "M8[s]")[::2])
    with pytest.raises(BadValue, match="contiguous"):
        checked_value(np.zeros((4, 4))[:, ::2])


def test_what_is_no_buffer_is_named() -> None:
    for wrong in ("text", 5, None, object(), {"a": 1}, [b"fine", "text"], [5], Part(0, bytearray(1))):
        with pytest.raises(TypeError):
            checked_value(wrong)
    with pytest.raises(TypeError, match="read-only"):
        checked_target([bytearray(2), b"bytes"])
    with pytest.raises(TypeError, match="only Parts or none"):
        checked_target([bytearray(2), Part(0, bytearray(2))])
    with pytest.raises(TypeError, match="start"):
        checked_target([Part("0", bytearray(2))])  # type: ignore[arg-type]
    with pytest.raises(BadValue, match="negative"):
        checked_target([Part(-1, bytearray(2))])
    for empty in ([], [bytearray()], [Part(0, bytearray())]):
        with pytest.raises(BadValue, match="empty"):
            checked_target(empty)
    for empty in (b"", [], [b"", bytearray()]):
        with pytest.raises(BadValue, match="empty"):
            checked_value(empty)
    with pytest.raises(BadValue, match="2 keys and 1 targets"):
        checked_targets(["a", "b"], [bytearray(1)])


def test_small_values_are_joined_and_large_ones_stay_where_they_are() -> None:
    assert checked_value([b"ab", bytearray(b"cd"), np.frombuffer(b"ef", "u1")]) == b"abcdef"
    large = checked_value([bytes(40_000), bytes(40_000)])
    assert len(large) == 80_000
    assert not isinstance(large, bytes)


def test_of_a_doubled_key_the_first_value_counts() -> None:
    items = checked_items([("a", b"1"), ("b", b"2"), ("a", b"3"), ("c", b"4"), ("b", b"5")])
    assert (items.keys, items.values) == (["a", "b", "c"], [b"1", b"2", b"4"])
    assert ([*items.places], items.count) == ([0, 1, 3], 5)


@pytest.mark.parametrize("seed", range(40))
def test_a_scattered_target_gets_what_slices_give(seed: int) -> None:
    random = np.random.default_rng(seed)
    data = random.bytes(int(random.integers(1, 200)))
    sizes = random.integers(0, 60, int(random.integers(1, 8))).tolist()
    in_row = Scattered([memoryview(bytearray(size)) for size in sizes])
    if sum(sizes) < len(data):
        with pytest.raises(BufferTooSmall):
            room_in(in_row, "key", len(data))
    else:
        fill(room_in(in_row, "key", len(data)), data)
        assert b"".join(in_row.buffers)[: len(data)] == data
        assert not any(b"".join(in_row.buffers)[len(data) :])
    starts = random.integers(0, 200, len(sizes)).tolist()
    parts = Scattered([memoryview(bytearray(size)) for size in sizes], starts)
    if any(size and start + size > len(data) for start, size in zip(starts, sizes, strict=True)):
        with pytest.raises(BadValue, match="Nothing was copied"):
            room_in(parts, "key", len(data))
    else:
        fill(room_in(parts, "key", len(data)), data)
        slices = [data[start : start + size] for start, size in zip(starts, sizes, strict=True)]
        assert [*map(bytes, parts.buffers)] == slices


def fill(room: list[tuple[int, memoryview]], data: bytes) -> None:
    for start, view in room:
        view[:] = data[start : start + view.nbytes]

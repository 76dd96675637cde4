"""The memory of any object that callers pass, as a flat memoryview of its bytes, without a copy.

Most objects export their memory to `memoryview`. Tensors and a few NumPy dtypes (bfloat16, fp8, datetime) do not:
these are recognised by their methods, so that neither torch nor NumPy is imported here. A view made from an address
keeps the object that owns the memory, because an asyncio copy may outlive the call that was cancelled.
"""

from __future__ import annotations

import ctypes
import math
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from holdfast.errors import BadValue

if TYPE_CHECKING:
    from typing_extensions import Buffer

    class _Tensor(Protocol):
        @property
        def device(self) -> Any: ...
        def data_ptr(self) -> int: ...
        def element_size(self) -> int: ...
        def numel(self) -> int: ...
        def is_contiguous(self) -> bool: ...

    class _Array(Protocol):
        @property
        def __array_interface__(self) -> dict[str, Any]: ...

    BytesLike: TypeAlias = Buffer | _Tensor | _Array
else:
    BytesLike = Any
"""Anything with contiguous memory: bytes, bytearray, memoryview, ctypes, array, mmap, a NumPy array, a CPU tensor. Not
text: type checkers refuse it."""

ADDRESS_SPACE = 1 << 64
_TENSOR_METHODS = ("data_ptr", "element_size", "numel", "is_contiguous", "device")


def memory_at(address: int, length: int, writable: bool = True) -> memoryview:
    """The `length` bytes at `address` of this process, read-only unless `writable`. The caller keeps that memory alive
    while the view is used."""
    for number, what in ((address, "an address"), (length, "a length")):
        if type(number) is not int:
            raise TypeError(f"{what} is an int, not {type(number).__name__}")
    if length < 0 or address < 0 or address + length >= ADDRESS_SPACE or (length and not address):
        raise BadValue(f"{length} bytes at {address:#x} are no memory of this process")
    return _view_at(address, length, None, bool(writable))


def flat(value: Any, what: str) -> memoryview:
    """The bytes of a buffer as they lie in memory. `what` names it in errors."""
    try:
        view = memoryview(value)
    except (TypeError, ValueError):
        return _flat_without_buffer(value, what)
    if view.format == "B" and view.ndim == 1 and view.contiguous:
        return view
    if not view.c_contiguous:
        raise _scattered(what)
    # An empty one cannot be cast if one of its dimensions is zero.
    return view.cast("B") if view.nbytes else memoryview(b"")


def _flat_without_buffer(value: Any, what: str) -> memoryview:
    if isinstance(value, str):
        raise TypeError(f"{what} is bytes-like, not str; encode it first, as in text.encode(). Nothing was changed")
    if all(hasattr(value, name) for name in _TENSOR_METHODS):
        return _of_tensor(value, what)
    described = getattr(value, "__array_interface__", None)
    if isinstance(described, dict):
        return _of_array(value, described, what)
    raise TypeError(
        f"{what} is anything with contiguous memory (bytes, bytearray, memoryview, a NumPy array, a CPU tensor), "
        f"not {type(value).__name__}. Nothing was changed"
    )


def _of_tensor(tensor: Any, what: str) -> memoryview:
    device = tensor.device.type
    if device != "cpu":
        raise BadValue(f"{what} is a tensor on the device {device!r}; copy it to the CPU first. Nothing was changed")
    if not tensor.is_contiguous():
        raise _scattered(what)
    return _view_at(tensor.data_ptr(), tensor.numel() * tensor.element_size(), tensor, True)


def _of_array(array: Any, described: dict[str, Any], what: str) -> memoryview:
    """A NumPy array whose dtype has no letter in the buffer protocol."""
    if described.get("strides") is not None:
        raise _scattered(what)
    address, readonly = described["data"]
    # The type is written as byte order, kind and size in bytes; of datetimes the unit follows, as in '<M8[s]'.
    item = int(described["typestr"][2:].partition("[")[0])
    return _view_at(address, item * math.prod(described["shape"]), array, not readonly)


def _scattered(what: str) -> BadValue:
    return BadValue(f"{what} is not contiguous in memory; make a contiguous copy first. Nothing was changed")


def _view_at(address: int, length: int, owner: object, writable: bool) -> memoryview:
    if not length:
        return memoryview(bytearray() if writable else b"")
    room = _array_type(length).from_address(address)
    room.owner = owner  # type: ignore[attr-defined]
    view = memoryview(room).cast("B")
    return view if writable else view.toreadonly()


@lru_cache(maxsize=256)
def _array_type(length: int) -> type[ctypes.Array[ctypes.c_ubyte]]:
    """Cached: making one takes 20 us, and callers' blocks have few sizes."""
    return ctypes.c_ubyte * length

"""How a tensor is stored: Mooncake's header of 304 bytes, then its elements. The header also says which part of a whole
it is. Programs read it, and slice tensors by it, so it is laid out as theirs.

torch is imported when the first tensor comes, so that the store needs it for tensors alone.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

HEADER_BYTES = 304
MAGIC = 0x4D4F4F4E
VERSION = 1
WHOLE, SPLIT = 0, 1
MOST_DIMS = 8
ABSENT = -1
"""In the place of a dimension that a tensor does not have."""
_HEADER = struct.Struct(f"<IHHiiiiQQ{MOST_DIMS}q{MOST_DIMS}q")
"""Magic, version, size of the header, dtype, dimensions, whole or split, number of axes, where the elements begin, how
many bytes they are, and the shape: of the whole where that is known, and of this part."""
_AXIS = struct.Struct("<6iq")
"""Kind, place, rank, count, dimension; the rest is not used."""
DTYPES = (
    *("float32", "float64", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "bool"),
    *("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "complex64", "complex128"),
)
"""A dtype is stored as its place in this list: new ones go to the end."""


@dataclass(frozen=True, slots=True)
class TensorLayout:
    """The contents of a header."""

    dtype: str
    shape: tuple[int, ...]
    data_bytes: int
    rank: int = 0
    count: int = 1
    """Of how many parts it is which."""
    split_dim: int = -1

    def packed(self) -> bytes:
        split = self.count > 1
        dims = [*self.shape, *([ABSENT] * (MOST_DIMS - len(self.shape)))]
        head = _HEADER.pack(
            *(MAGIC, VERSION, HEADER_BYTES, DTYPES.index(self.dtype), len(self.shape), SPLIT if split else WHOLE),
            *(int(split), HEADER_BYTES, self.data_bytes, *dims, *dims),
        )
        axis = _AXIS.pack(0, 0, self.rank, self.count, self.split_dim, 0, 0) if split else b""
        return (head + axis).ljust(HEADER_BYTES, b"\0")


def layout_in(stored: Any) -> TensorLayout | None:
    """The contents of the header at the front of these bytes; None: there is none."""
    view = memoryview(stored).cast("B")
    if view.nbytes < HEADER_BYTES:
        return None
    magic, version, size, dtype, ndim, _, axes, start, data_bytes, *dims = _HEADER.unpack_from(view)
    known = (magic, version, size, start) == (MAGIC, VERSION, HEADER_BYTES, HEADER_BYTES)
    if not known or not 0 <= dtype < len(DTYPES) or not 0 <= ndim <= MOST_DIMS:
        return None
    shape = tuple(dims[MOST_DIMS : MOST_DIMS + ndim])
    if HEADER_BYTES + data_bytes > view.nbytes or any(dim < 0 for dim in shape):
        return None
    if not axes:
        return TensorLayout(DTYPES[dtype], shape, data_bytes)
    _, _, rank, count, split_dim, _, _ = _AXIS.unpack_from(view, _HEADER.size)
    return TensorLayout(DTYPES[dtype], shape, data_bytes, rank, count, split_dim)


def stored_form(tensor: Any, rank: int = 0, count: int = 1, split_dim: int = -1) -> list[Any] | None:
    """The buffers of a tensor's object; None: it is no tensor that can be stored."""
    import torch

    if not isinstance(tensor, torch.Tensor):
        return None
    name = str(tensor.dtype).removeprefix("torch.")
    if name not in DTYPES or tensor.dim() > MOST_DIMS:
        return None
    whole = tensor.detach().cpu().contiguous()
    data_bytes = whole.numel() * whole.element_size()
    header = TensorLayout(name, tuple(whole.shape), data_bytes, rank, count, split_dim).packed()
    # As plain bytes, whatever the dtype: some of them have no buffer of their own.
    return [header, whole.reshape(-1).view(torch.uint8)] if data_bytes else [header]


def tensor_in(stored: Any) -> Any:
    """The tensor that these bytes are, looking at them in place; None: they are none."""
    import torch

    layout = layout_in(stored)
    if layout is None:
        return None
    dtype = getattr(torch, layout.dtype)
    if not layout.data_bytes:
        return torch.empty(layout.shape, dtype=dtype)
    whole = memoryview(stored).cast("B")
    count = layout.data_bytes // dtype.itemsize
    return torch.frombuffer(whole, dtype=dtype, count=count, offset=HEADER_BYTES).reshape(layout.shape)


def serialize_tensor(tensor: Any) -> tuple[bytes, int, int, Any]:
    """The header, where the elements are and how many bytes, and what keeps them there."""
    form = stored_form(tensor)
    if form is None:
        raise TypeError(f"a tensor is wanted, not {type(tensor).__name__}")
    owner = form[1] if len(form) > 1 else tensor
    return form[0], owner.data_ptr(), owner.numel() * owner.element_size(), owner


def deserialize_tensor(stored: bytes) -> Any:
    return tensor_in(bytearray(stored))


def tensor_metadata_size() -> int:
    return HEADER_BYTES

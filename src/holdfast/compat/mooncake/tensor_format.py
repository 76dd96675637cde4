"""How a tensor is stored: a header of 304 bytes, then its elements. The header also says which part of a whole it is.

torch is imported when the first tensor comes, so that the store needs it for tensors alone.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

HEADER_BYTES = 304
"""As in Mooncake, since programs reckon with it."""
MAGIC = 0x48465431
MOST_DIMS = 16
_HEADER = struct.Struct(f"<IHHiIQiii{MOST_DIMS}q")
DTYPES = (
    *("float32", "float64", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "bool"),
    *("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "complex64", "complex128"),
)
"""A dtype is stored as its place in this list: new ones go to the end."""


@dataclass(frozen=True, slots=True)
class Layout:
    """What a header says."""

    dtype: str
    shape: tuple[int, ...]
    data_bytes: int
    rank: int = 0
    count: int = 1
    """Of how many parts it is which."""
    split_dim: int = -1

    def packed(self) -> bytes:
        dims = [*self.shape, *([0] * (MOST_DIMS - len(self.shape)))]
        head = _HEADER.pack(
            *(MAGIC, 1, HEADER_BYTES, DTYPES.index(self.dtype), len(self.shape), self.data_bytes),
            *(self.rank, self.count, self.split_dim, *dims),
        )
        return head.ljust(HEADER_BYTES, b"\0")


def layout_in(stored: Any) -> Layout | None:
    """What the header says that these bytes begin with; None: it is none."""
    view = memoryview(stored).cast("B")
    if view.nbytes < HEADER_BYTES:
        return None
    magic, version, size, dtype, ndim, data_bytes, rank, count, split_dim, *dims = _HEADER.unpack_from(view)
    known = (magic, version, size) == (MAGIC, 1, HEADER_BYTES) and 0 <= dtype < len(DTYPES) and ndim <= MOST_DIMS
    if not known or HEADER_BYTES + data_bytes > view.nbytes:
        return None
    return Layout(DTYPES[dtype], tuple(dims[:ndim]), data_bytes, rank, count, split_dim)


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
    header = Layout(name, tuple(whole.shape), data_bytes, rank, count, split_dim).packed()
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


def serialize_tensor(tensor: Any) -> tuple[bytes, bytes]:
    """Header and elements."""
    form = stored_form(tensor)
    if form is None:
        raise TypeError(f"a tensor is wanted, not {type(tensor).__name__}")
    return form[0], bytes(form[1].numpy()) if len(form) > 1 else b""


def deserialize_tensor(stored: bytes) -> Any:
    return tensor_in(bytearray(stored))


def tensor_metadata_size() -> int:
    return HEADER_BYTES

"""The header in front of a tensor's bytes.

    4 bytes   "HFT" and the version, 1
    4 bytes   length of the whole header, little endian: a multiple of 64
    4 bytes   length of the msgpack that follows, without the zeros
    msgpack   [dtype, shape], dtype by its safetensors name ("F32", "BF16", "F8_E4M3")
    zeros     up to that length

The length is a multiple of 64, as are the places of objects in memory, so that the elements are aligned for any
vector instruction. The header follows from dtype and shape alone: equal tensors have equal headers.
"""

from __future__ import annotations

import math
import struct
from typing import NamedTuple

import msgspec

from holdfast.errors import BadValue

MAGIC = b"HFT\x01"
ALIGN = 64
MOST_DIMENSIONS = 64
_FRONT = struct.Struct("<4sII")
_encode = msgspec.msgpack.Encoder().encode

SIZES = {
    "BOOL": 1,
    "U8": 1,
    "I8": 1,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "F8_E8M0": 1,
    "F8_E4M3FNUZ": 1,
    "F8_E5M2FNUZ": 1,
    "U16": 2,
    "I16": 2,
    "F16": 2,
    "BF16": 2,
    "U32": 4,
    "I32": 4,
    "F32": 4,
    "U64": 8,
    "I64": 8,
    "F64": 8,
    "C64": 8,
    "C128": 16,
}
"""Bytes per element, by the name of the dtype in safetensors (and C128, which NumPy and torch have)."""


class Header(NamedTuple):
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """The size of the elements in bytes."""
        return math.prod(self.shape) * SIZES[self.dtype]

    def packed(self) -> bytes:
        body = _encode((self.dtype, self.shape))
        length = -(-(_FRONT.size + len(body)) // ALIGN) * ALIGN
        return (_FRONT.pack(MAGIC, length, len(body)) + body).ljust(length, b"\0")


_decode = msgspec.msgpack.Decoder(tuple[str, tuple[int, ...]]).decode


def header_of(key: str, content: memoryview, size_bytes: int = -1) -> tuple[Header, int]:
    """The header of a stored object, and where its elements begin. BadValue if the object is no tensor.

    With `size_bytes` the content may be the front of an object of that size."""
    size_bytes = content.nbytes if size_bytes < 0 else size_bytes
    if content.nbytes < _FRONT.size:
        raise _no_tensor(key)
    magic, length, body = _FRONT.unpack_from(content)
    if magic != MAGIC or length % ALIGN or not _FRONT.size + body <= length <= content.nbytes:
        raise _no_tensor(key)
    try:
        dtype, shape = _decode(content[_FRONT.size : _FRONT.size + body])
    except msgspec.MsgspecError:
        raise _no_tensor(key) from None
    if dtype not in SIZES or len(shape) > MOST_DIMENSIONS or any(size < 0 for size in shape):
        raise _no_tensor(key)
    header = Header(dtype, shape)
    if length + header.nbytes != size_bytes:
        raise _no_tensor(key)
    return header, length


def _no_tensor(key: str) -> BadValue:
    return BadValue(f"{key!r} holds no tensor: it was not put by put_tensor. Read it with get")

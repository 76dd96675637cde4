"""Compact encoding of numbers: columns by their smallest common width, ids by their distance from the one before.

Objects that are evicted or renewed together were often put together, so their ids are close: sorted, the steps between
them fit into one or two bytes where an id has eight. Vectorised, so that tens of thousands cost well under a
millisecond.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from holdfast.errors import BadValue

Column = npt.NDArray[np.int64]

_HEAD = struct.Struct("<BIQ")
"""bytes per number, count, and the base that is added to each"""
_WIDTHS: dict[int, str] = {1: "<u1", 2: "<u2", 4: "<u4", 8: "<u8"}


def pack_column(values: npt.ArrayLike) -> bytes:
    """Pack non-negative integers, in their order."""
    column = np.asarray(values, np.uint64)
    if not len(column):
        return b""
    least = column.min()
    above = column - least
    width = next(width for width in _WIDTHS if int(above.max()) < 1 << 8 * width)
    packed: bytes = above.astype(_WIDTHS[width]).tobytes()
    return _HEAD.pack(width, len(column), int(least)) + packed


def unpack_column(packed: bytes) -> npt.NDArray[np.uint64]:
    """BadValue unless the bytes are a column; a length that they claim never causes an allocation before that check."""
    if not packed:
        return np.zeros(0, np.uint64)
    if len(packed) < _HEAD.size:
        raise BadValue(f"a packed column of {len(packed)} bytes has no head")
    width, count, least = _HEAD.unpack_from(packed)
    if width not in _WIDTHS or len(packed) != _HEAD.size + width * count:
        raise BadValue(f"a packed column of {len(packed)} bytes does not hold {count} numbers of {width} bytes")
    return np.frombuffer(packed, _WIDTHS[width], offset=_HEAD.size).astype(np.uint64) + np.uint64(least)


def pack_sorted_ids(ids: Iterable[int] | npt.NDArray[np.uint64]) -> bytes:
    """Pack ids, given in any order, in ascending order."""
    given = ids if isinstance(ids, np.ndarray) else np.fromiter(ids, np.uint64)
    ordered = np.sort(given)
    if not len(ordered):
        return b""
    # The first id is kept apart, so that it does not widen the steps.
    return int(ordered[0]).to_bytes(8, "little") + pack_column(np.diff(ordered))


def unpack_sorted_ids(packed: bytes) -> npt.NDArray[np.uint64]:
    if not packed:
        return np.zeros(0, np.uint64)
    if len(packed) < 8:
        raise BadValue(f"{len(packed)} bytes hold no id")
    first = np.array([int.from_bytes(packed[:8], "little")], np.uint64)
    return np.cumsum(np.concatenate([first, unpack_column(packed[8:])]), dtype=np.uint64)

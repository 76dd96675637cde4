"""Validation of requests before anything is decided. Clients check too; a master trusts none of them."""

from __future__ import annotations

import struct

from holdfast.errors import BadKey, BadRequest, BadValue
from holdfast.ids import MAX_BATCH, MAX_KEY_BYTES, MAX_OBJECT_BYTES


def check_keys(keys: list[str]) -> None:
    if len(keys) > MAX_BATCH:
        raise BadRequest(f"{len(keys):,} keys in one request, at most {MAX_BATCH:,} are taken; nothing was changed")
    lengths = list(map(len, keys))
    if not lengths or (min(lengths) and max(lengths) <= MAX_KEY_BYTES // 4):
        return  # A character takes at most 4 bytes, so all of these keys are short enough.
    for key in keys:
        if not key:
            raise BadKey("a key is empty; nothing was changed")
        if len(key) > MAX_KEY_BYTES // 4 and (size := len(key.encode())) > MAX_KEY_BYTES:
            raise BadKey(
                f"the key {key[:40]!r}... takes {size:,} bytes, the limit is {MAX_KEY_BYTES:,}; nothing was changed"
            )


def unpack_words(packed: bytes, per_row: int, rows: int | None = None) -> tuple[int, ...]:
    """Unpack a column, or rows of `per_row` words, into one flat tuple."""
    check_rows(packed, per_row, rows)
    return struct.unpack(f"<{len(packed) // 8}Q", packed)


def check_rows(packed: bytes, per_row: int, rows: int | None = None) -> None:
    if len(packed) % (8 * per_row) or (rows is not None and len(packed) != 8 * per_row * rows):
        raise BadRequest(f"{len(packed)} bytes are not whole rows of {per_row} words; nothing was changed")
    if len(packed) > 8 * per_row * MAX_BATCH:
        raise BadRequest(f"more than {MAX_BATCH:,} rows in one request; nothing was changed")


def check_sizes(sizes: tuple[int, ...]) -> None:
    if sizes and not (min(sizes) > 0 and max(sizes) <= MAX_OBJECT_BYTES):
        raise BadValue(f"an object has from 1 to {MAX_OBJECT_BYTES:,} bytes; nothing was stored")

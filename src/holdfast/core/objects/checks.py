"""Validation of requests before anything is decided. Clients check too; a master trusts none of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from holdfast.errors import BadKey, BadRequest, BadValue
from holdfast.ids import MAX_BATCH, MAX_KEY_BYTES, MAX_KEYS, MAX_OBJECT_BYTES, KeysOf
from holdfast.messages.rows import RowLayout, RowT, unpack_ids, unpack_sizes


def check_keys(keys: list[str]) -> None:
    if len(keys) > MAX_KEYS:
        raise BadRequest(f"{len(keys):,} keys in one request, at most {MAX_KEYS:,} are taken; nothing was changed")
    if type(keys) is KeysOf:
        return
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


def checked_rows(layout: RowLayout[RowT], packed: bytes, most: int) -> Iterator[RowT]:
    check_rows(layout, packed, most=most)
    return layout.iter_unpack(packed)


def checked_sizes(packed: bytes, count: int | None = None) -> tuple[int, ...]:
    """The sizes of a request for memory, of which it must have `count` if given."""
    _check_words(packed, 1, count)
    sizes = unpack_sizes(packed)
    check_sizes(sizes)
    return sizes


def checked_ids(packed: bytes, most: int) -> list[int]:
    _check_words(packed, 1, most=most)
    return unpack_ids(packed)


def check_rows(layout: RowLayout[RowT], packed: bytes, count: int | None = None, most: int = MAX_BATCH) -> None:
    """Refuse rows that are not whole, too many, or another number than `count`."""
    _check_words(packed, len(layout.fields), count, most)


def _check_words(packed: bytes, per_row: int, count: int | None = None, most: int = MAX_BATCH) -> None:
    if len(packed) % (8 * per_row) or (count is not None and len(packed) != 8 * per_row * count):
        raise BadRequest(f"{len(packed)} bytes are not whole rows of {per_row} words; nothing was changed")
    if len(packed) > 8 * per_row * most:
        raise BadRequest(f"more than {most:,} rows in one request; nothing was changed")


def check_sizes(sizes: Sequence[int]) -> None:
    if sizes and not (min(sizes) > 0 and max(sizes) <= MAX_OBJECT_BYTES):
        raise BadValue(f"an object has from 1 to {MAX_OBJECT_BYTES:,} bytes; nothing was stored")

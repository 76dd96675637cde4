"""Copies of many objects at once are what a slice for each gives."""

from __future__ import annotations

import mmap
import os

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.client.bytes.mapped_copies import RUN, RUN_BELOW, copies_of

MEMORY = 1 << 19


@pytest.fixture(scope="module")
def maps() -> dict[int, mmap.mmap]:
    made = {number: mmap.mmap(-1, MEMORY) for number in (1, 2)}
    for each in made.values():
        each[:] = os.urandom(MEMORY)
    return made


Piece = tuple[int, int, int, int, int]
PIECES = st.tuples(
    st.integers(1, 2), st.integers(0, MEMORY), st.integers(1, 70), st.sampled_from([0, 1, 64, 100]), st.integers(0, 99)
)
"""Objects side by side: segment, first start, how many, bytes per object, bytes between them."""


@example(pieces=[(1, 0, 3 * RUN + 5, 1000, 24)])
@example(pieces=[(1, 0, 2 * RUN, 64, 0), (1, 7, RUN, 64, 0)])
@example(pieces=[(1, 4096, RUN, RUN_BELOW - 1, 1), (2, 0, RUN, 64, 0)])
@example(pieces=[(1, MEMORY - 64 * RUN + 1, RUN, 64, 0)])
@given(pieces=st.lists(PIECES, max_size=4))
def test_each_copy_is_the_slice_at_its_place(maps: dict[int, mmap.mmap], pieces: list[Piece]) -> None:
    segments, starts, sizes = [], [], []
    for segment, first, count, size, between in pieces:
        for number in range(count):
            segments.append(segment)
            starts.append(first + number * (size + between))
            sizes.append(size)
    copies = copies_of(maps, segments, starts, sizes)
    places = zip(segments, starts, sizes, strict=True)
    assert copies == [maps[segment][start : start + size] for segment, start, size in places]


@pytest.mark.parametrize("count", [1, RUN])
def test_memory_that_is_not_mapped_any_more_is_not_read(count: int) -> None:
    closed = mmap.mmap(-1, MEMORY)
    closed.close()
    starts = range(0, 64 * count, 64)
    with pytest.raises(ValueError, match="closed"):
        copies_of({1: closed}, [1] * count, starts, [64] * count)
    with pytest.raises(KeyError):
        copies_of({}, [1] * count, starts, [64] * count)

"""An array that grows without a copy."""

from __future__ import annotations

import numpy as np
import pytest

from holdfast.core.catalogue.growing_array import GrowingArray


@pytest.mark.parametrize("dtype", [np.uint64, np.int32, np.uint8])
def test_what_is_in_it_stays_and_the_rest_is_zero(dtype: type) -> None:
    column = GrowingArray(1000, dtype)
    column.array[:] = np.arange(1000) % 251
    for length in (1001, 5000, 1_000_000):
        column.grow(length)
        assert len(column.array) == len(column.cells) == length
        assert (column.array[:1000] == np.arange(1000) % 251).all()
        assert not column.array[1000:].any()
    column.cells[999_999] = 7
    assert column.array[999_999] == 7
    assert column.raw[999_999 * column.array.itemsize] == 7


def test_it_grows_elsewhere_while_somebody_looks_at_it() -> None:
    column = GrowingArray(1024, np.uint64)
    column.array[5] = 77
    kept = column.array[:10]
    column.grow(4096)
    column.array[5] = column.cells[4095] = 78
    assert (column.array[5], column.array[4095], kept[5]) == (78, 78, 77)

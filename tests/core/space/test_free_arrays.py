"""What large batches freed: as exactly known, lent and refused as what is freed one by one."""

from __future__ import annotations

from contextlib import ExitStack
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from holdfast.core.space import allocator as allocator_module
from holdfast.core.space import free_arrays
from holdfast.core.space.allocator import RESERVE_FROM, Allocator
from tests.core.space.test_allocator import EXAMPLES, AgainstByteMap, ranges, runs_of

SMALL = 192
"""Bytes of a range, in tests of many."""


class ByReserve(AgainstByteMap):
    """I9, the same, where even small batches go into the reserve, and few ranges come out of it at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.changed = ExitStack()
        self.changed.enter_context(patch.multiple(allocator_module, RESERVE_BATCH=1, RESERVE_FROM=0))
        self.changed.enter_context(patch.object(free_arrays, "TAKEN_AT_ONCE", 1))

    @precondition(lambda self: self.used.find(0) >= 0)
    @rule(data=st.data())
    def refuse_many_with_one_that_is_free(self, data: st.DataObject) -> None:
        free_at, free_size = data.draw(st.sampled_from(runs_of(self.used, 0)))
        others = self.pieces(data, 3)
        with pytest.raises(ValueError, match="free already"):
            self.allocator.free_many(*ranges(*others, (free_at, free_size)))

    def teardown(self) -> None:
        self.changed.close()


TestByReserve = ByReserve.TestCase
TestByReserve.settings = EXAMPLES


def holes(count: int) -> np.ndarray:
    """Every second one of twice as many ranges, in random order; what is freed last will be in the reserve."""
    return np.random.default_rng(4).permutation(count) * 2 * SMALL


def with_holes(count: int) -> Allocator:
    allocator = Allocator(2 * count * SMALL)
    assert allocator.alloc(2 * count * SMALL) == 0
    for batch in np.array_split(holes(count), count // 8192):
        allocator.free_many(batch, np.full(len(batch), SMALL))
    return allocator


def test_what_many_batches_freed_in_random_order_is_lent_hole_by_hole_and_grows_together_i9() -> None:
    count = 4 * RESERVE_FROM
    allocator = with_holes(count)
    allocator.check()
    assert allocator.free_ranges() == [(at * SMALL, SMALL) for at in range(0, 2 * count, 2)]
    assert allocator.alloc(SMALL + 64) is None
    lent = [allocator.alloc(SMALL) for _ in range(count // 2)]
    assert None not in lent
    assert len(set(lent)) == count // 2
    used = np.random.default_rng(5).permutation([*(offset for offset in lent if offset is not None)])
    allocator.free_many(used, np.full(len(used), SMALL))
    between = np.random.default_rng(6).permutation(np.arange(1, 2 * count, 2) * SMALL)
    for number, offset in enumerate(between[:5000].tolist()):
        if number % 2:
            allocator.free(offset, SMALL)
        else:
            allocator.free_many(*ranges((offset, SMALL)))
    allocator.check()
    for batch in np.array_split(between[5000:], 9):
        allocator.free_many(batch, np.full(len(batch), SMALL))
        allocator.check()
    assert allocator.free_ranges() == [(0, 2 * count * SMALL)]


@pytest.mark.parametrize(
    ("offset", "size"), [(0, SMALL), (64, 64), (0, 2 * SMALL), (-SMALL, 2 * SMALL), (-64, SMALL + 128), (128, 128)]
)
def test_a_double_free_of_what_a_batch_freed_is_refused_wherever_it_begins_i9(offset: int, size: int) -> None:
    count = 2 * RESERVE_FROM
    allocator = with_holes(count)
    before = allocator.free_ranges()
    last = int(holes(count)[-1])
    at = last + offset
    used = np.arange(count) * 2 * SMALL + SMALL
    used = used[abs(used - last) > 2 * SMALL]
    refusal = rf"\[{at}, {at + size}\).*free already"
    with pytest.raises(ValueError, match=refusal):
        allocator.free(at, size)
    for batch in (used[:3], used):
        with pytest.raises(ValueError, match=refusal):
            allocator.free_many(np.append(batch, at), np.append(np.full(len(batch), SMALL), size))
    assert allocator.free_ranges() == before
    allocator.check()


@pytest.mark.parametrize("at_once", [0, 1, 9000])
def test_what_grew_together_with_a_hole_of_a_batch_is_lent_and_freed_again_i9(at_once: int) -> None:
    count = 2 * RESERVE_FROM
    allocator = with_holes(count)
    late = set(holes(count)[-8192:].tolist())
    hole = next(at for at in late if at + 2 * SMALL in late)
    allocator.free(hole + SMALL, SMALL)
    whole = 3 * SMALL
    assert allocator.alloc(whole) == hole
    others = np.arange(count) * 2 * SMALL + SMALL
    others = others[abs(others - hole) > whole][: max(0, at_once - 1)]
    if at_once:
        allocator.free_many(np.append(others, hole), np.append(np.full(len(others), SMALL), whole))
    else:
        allocator.free(hole, whole)
    allocator.check()
    assert any(at <= hole and hole + whole <= at + size for at, size in allocator.free_ranges())


def test_a_segment_is_cut_off_through_what_batches_freed_i9() -> None:
    allocator = with_holes(2 * RESERVE_FROM)
    last = int(holes(2 * RESERVE_FROM)[-1])
    allocator.cut_off(last + 64)
    allocator.check()
    assert allocator.free_ranges() == [*((at, SMALL) for at in range(0, last, 2 * SMALL)), (last, 64)]

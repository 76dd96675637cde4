"""From ids to slots, against a dict."""

from __future__ import annotations

import random

import numpy as np
import pytest

from holdfast.core.catalogue.catalogue import MANY, MOST_AT_ONCE, PAGE_BITS, IdIndex
from holdfast.ids import COUNTER_BITS

EPOCH = 1 << COUNTER_BITS


def ids_of_three_kinds() -> dict[int, int]:
    """Side by side, far apart, and of another epoch; with the slots that they live in."""
    rng = random.Random(2)
    dense = range(EPOCH + 500, EPOCH + 500 + 20_000)
    sparse = [EPOCH + (number << PAGE_BITS + 2) + rng.randrange(1 << PAGE_BITS) for number in range(1000, 4000)]
    later = range(3 * EPOCH, 3 * EPOCH + 2000)
    ids = [*dense, *sparse, *later]
    slots = list(range(len(ids)))
    rng.shuffle(slots)
    return dict(zip(ids, slots, strict=True))


@pytest.mark.parametrize("count", [1, MANY - 1, MANY, MOST_AT_ONCE, MOST_AT_ONCE + 1, 24_000])
def test_many_ids_in_any_order_are_found_as_one_by_one(count: int) -> None:
    model = ids_of_three_kinds()
    index = IdIndex()
    index.bind_any(np.array([*model], np.uint64), [*model.values()])
    rng = random.Random(count)
    asked = rng.sample([*model], count * 2 // 3)
    # Such as never were: in pages that there are, and in pages that there are not.
    asked += [rng.choice([EPOCH + 400, 2 * EPOCH + rng.randrange(1 << 20)]) for _ in range(count - len(asked))]
    rng.shuffle(asked)
    assert index.slots_of(asked) == [model.get(oid, -1) for oid in asked] == [*map(index.slot_of, asked)]


@pytest.mark.parametrize("at_once", [100, MANY, 9000])
def test_what_is_unbound_is_found_no_more_and_keeps_no_page(at_once: int) -> None:
    model = ids_of_three_kinds()
    index = IdIndex()
    index.bind_any(np.array([*model], np.uint64), [*model.values()])
    ids = [*model]
    random.Random(3).shuffle(ids)
    for first in range(0, len(ids), at_once):
        index.unbind(ids[first : first + at_once])
        if first // at_once % 20 == 0:
            gone, left = ids[: first + at_once], ids[first + at_once :]
            assert set(index.slots_of(gone)) == {-1}
            assert index.slots_of(left) == [model[oid] for oid in left]
    assert not index._pages

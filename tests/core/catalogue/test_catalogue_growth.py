"""The columns of a catalogue grow by doubling, and no row is lost."""

from __future__ import annotations

import numpy as np

from holdfast.core.catalogue.catalogue import _COLUMNS, FIRST_CAPACITY, Catalogue

SIZE = 640


def test_rows_are_the_same_after_the_columns_have_grown() -> None:
    catalogue = Catalogue()
    held = []
    for number in range(5 * FIRST_CAPACITY):
        catalogue.insert(f"key/{number}", number + 1, SIZE, number, 7, number * SIZE, 0, number)
        if number == FIRST_CAPACITY:
            held.append(catalogue.ids[:10])  # Somebody who looks at a column while it grows sees it as it was.
    assert catalogue.lease_at.nbytes == catalogue.lease_until.nbytes == 8 * 8 * FIRST_CAPACITY
    count = np.arange(catalogue.top)
    for name, expected in (
        ("ids", count + 1),
        ("checksums", count),
        ("offsets", count * SIZE),
        ("last_used", count),
    ):
        assert (getattr(catalogue, name)[: catalogue.top] == expected).all(), name
    assert held[0].tolist() == [*range(1, 11)]


def test_a_batch_larger_than_all_the_room_there_is_has_room() -> None:
    catalogue = Catalogue()
    count = 40 * FIRST_CAPACITY + 3
    slots = catalogue.insert_rows(
        [f"key/{number}" for number in range(count)],
        {name: np.arange(count).astype(dtype) for name, dtype in _COLUMNS.items()},
    )
    assert len(slots) == catalogue.top == count
    assert (catalogue.ids[:count] == np.arange(count)).all()


def test_a_row_that_is_used_again_wants_no_replicas_of_its_former_object() -> None:
    catalogue = Catalogue()
    for oid, key in enumerate(("several", "several too"), 1):
        catalogue.further_wanted_at[catalogue.insert(key, oid, SIZE, 1, 7, 0, 0, 0)] = 2
    assert catalogue.wanted(np.arange(2)).tolist() == [3, 3] == [catalogue.wanted_of(0), catalogue.wanted_of(1)]
    catalogue.drop([0, 1])
    one = catalogue.insert("one", 3, SIZE, 1, 7, 0, 0, 0)
    [many] = catalogue.insert_many(["many"], 4, np.array([SIZE]), np.array([1], np.uint64), 7, np.array([0]), 0, 0)
    assert {one, many} == {0, 1}
    assert catalogue.wanted(np.arange(2)).tolist() == [1, 1]

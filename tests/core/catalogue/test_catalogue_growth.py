"""The columns of a catalogue grow by doubling, and not all at once: to copy them all would be a pause for everybody."""

from __future__ import annotations

import numpy as np

from holdfast.core.catalogue.catalogue import _COLUMNS, FIRST_CAPACITY, Catalogue

SIZE = 640


def addresses(catalogue: Catalogue) -> dict[str, int]:
    return {name: getattr(catalogue, name).ctypes.data for name in _COLUMNS}


def put(catalogue: Catalogue, count: int) -> None:
    first = catalogue.top
    keys = [f"key/{number}" for number in range(first, first + count)]
    words = np.full(count, SIZE, np.uint64)
    catalogue.insert_many(keys, first + 1, words, words, 7, np.arange(count) * SIZE, 0, 1)


def test_no_put_has_more_than_a_few_columns_copied_and_none_is_lost() -> None:
    catalogue = Catalogue()
    moved: dict[str, int] = dict.fromkeys(_COLUMNS, 0)
    before = addresses(catalogue)
    for number in range(5 * FIRST_CAPACITY):
        catalogue.insert(f"key/{number}", number + 1, SIZE, number, 7, number * SIZE, 0, number)
        after = addresses(catalogue)
        changed = [name for name in _COLUMNS if after[name] != before[name]]
        assert len(changed) <= 1
        for name in changed:
            moved[name] += 1
        before = after
    assert set(moved.values()) == {3}, "each was doubled as often as all the others"
    count = np.arange(catalogue.top)
    for name, expected in (
        ("ids", count + 1),
        ("checksums", count),
        ("offsets", count * SIZE),
        ("last_used", count),
    ):
        assert (getattr(catalogue, name)[: catalogue.top] == expected).all(), name


def test_batches_have_a_part_of_the_columns_copied_each() -> None:
    catalogue = Catalogue()
    batch = FIRST_CAPACITY // 4
    put(catalogue, 64 * FIRST_CAPACITY - 8 * batch)
    before = addresses(catalogue)
    moved = []
    for _ in range(8):
        put(catalogue, batch)
        after = addresses(catalogue)
        moved.append(sum(after[name] != before[name] for name in _COLUMNS))
        before = after
    assert sum(moved) == len(_COLUMNS)
    assert max(moved) <= 2


def test_a_batch_larger_than_all_the_room_there_is_has_room() -> None:
    catalogue = Catalogue()
    count = 40 * FIRST_CAPACITY + 3
    slots = catalogue.insert_rows(
        [f"key/{number}" for number in range(count)],
        {name: np.arange(count).astype(dtype) for name, dtype in _COLUMNS.items()},
    )
    assert len(slots) == catalogue.top == count
    assert (catalogue.ids[:count] == np.arange(count)).all()

"""The table of keys that is shown to others holds what the catalogue holds, whatever is put, dropped and hidden."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.catalogue import catalogue as catalogue_module
from holdfast.core.catalogue import key_table as module
from holdfast.core.catalogue.catalogue import Catalogue
from holdfast.core.catalogue.key_table import KeyTable
from holdfast.core.state.unlogged import EvictionMask
from holdfast.wire.key_table_layout import FIRST_PLACES, GONE, MASK, MOST_PROBES, SEQUENCE
from tests.core.key_table import fingerprints_in, show

NUMBERS = st.lists(st.integers(0, 40), min_size=1, max_size=12, unique=True)
WHAT = st.sampled_from(["put", "drop", "hide", "unhide", "unhide all", "catch up"])
STEPS = st.lists(st.tuples(WHAT, NUMBERS), max_size=40)


def few_fingerprints(key: bytes) -> int:
    """Many keys share one, and some have those that mean something else in the table."""
    return int(key.rpartition(b"-")[2]) % 7


def held(catalogue: Catalogue) -> list[int]:
    keys = [key for key in catalogue.keys if key is not None and catalogue.by_key.slot_of(key) >= 0]
    return sorted(max(catalogue.key_hash_at[catalogue.by_key.slot_of(key)], GONE + 1) for key in keys)


def insert(catalogue: Catalogue, keys: list[str], first_id: int) -> None:
    if len(keys) == 1:
        catalogue.insert(keys[0], first_id, 64, 0, 1, 0, 0, 0)
        return
    sizes = np.full(len(keys), 64, np.uint64)
    catalogue.insert_many(keys, first_id, sizes, sizes, 1, np.arange(len(keys)) * 64, 0, 0)


def settle(shown: KeyTable) -> None:
    while shown.catch_up():
        pass
    shown.mark_right()


class Story:
    def __init__(self) -> None:
        self.catalogue, self.mask = Catalogue(), EvictionMask()
        self.shown, self.words = show(self.catalogue)
        self._next_id = 1

    def go(self, what: str, numbers: list[int]) -> None:
        catalogue = self.catalogue
        keys = [f"key-{number}" for number in numbers]
        bound = [slot for slot in catalogue.by_key.slots_of(keys) if slot >= 0]
        if what == "put":
            absent = [key for key in keys if catalogue.by_key.slot_of(key) < 0 and self.mask.slot_of(key) < 0]
            if absent:
                insert(catalogue, absent, self._next_id)
                self._next_id += len(absent)
        elif what == "drop" and bound:
            catalogue.drop(bound)
        elif what == "hide" and bound:
            self.mask.add(catalogue, np.array(bound, np.intp))
        elif what == "unhide":
            self.mask.release(catalogue, self.mask.slots_under(keys))
        elif what == "unhide all":
            self.mask.clear(catalogue)
        else:
            self.shown.catch_up()


@given(STEPS, st.booleans())
def test_it_holds_what_the_catalogue_shows(steps: list[tuple[str, list[int]]], twins: bool) -> None:
    with pytest.MonkeyPatch.context() as patch:
        # Small, so that tables are begun anew and filled in slices all the time.
        patch.setattr(module, "FIRST_PLACES", 16)
        patch.setattr(module, "SLICE", 3)
        patch.setattr(module, "CLEARED", 7)
        if twins:
            patch.setattr(catalogue_module, "xxh3_64_intdigest", few_fingerprints)
        story = Story()
        for what, numbers in steps:
            story.go(what, numbers)
            if not story.words[SEQUENCE] & 1:
                assert fingerprints_in(story.words) == held(story.catalogue), "what is said to be right is right"
        settle(story.shown)
        assert not story.shown.is_off
        assert fingerprints_in(story.words) == held(story.catalogue)


def test_it_grows_with_the_catalogue_and_is_off_meanwhile() -> None:
    catalogue = Catalogue()
    shown, words = show(catalogue)
    settle(shown)
    assert not shown.is_off
    before = int(words[MASK]) + 1
    for batch in range(10):
        insert(catalogue, [f"{batch}/{number}" for number in range(2_000)], 1 + 2_000 * batch)
        assert shown.is_off
        settle(shown)
        assert not shown.is_off
    places = int(words[MASK]) + 1
    assert places >= 2 * catalogue.count > before, "no look takes long in a table that is half empty"
    assert fingerprints_in(words) == held(catalogue)


def test_what_fits_into_no_table_is_not_shown() -> None:
    catalogue = Catalogue()
    shown, _ = show(catalogue, words=2 * FIRST_PLACES)
    settle(shown)
    insert(catalogue, [f"key-{number}" for number in range(FIRST_PLACES)], 1)
    settle(shown)
    assert shown.is_off
    catalogue.drop([0, 1])
    settle(shown)
    assert shown.is_off


def test_another_term_begins_with_a_table_of_its_own() -> None:
    first, second = Catalogue(), Catalogue()
    shown, words = show(first)
    insert(first, ["old-1", "old-2"], 1)
    settle(shown)
    shown.turn_off()
    insert(second, ["new-1"], 1)
    again, _ = show(second, memory=words)
    assert again.is_off
    settle(again)
    assert fingerprints_in(words) == held(second)


def test_a_table_of_a_size_that_was_used_before_begins_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its memory cannot be given back, as nobody may write to it anew: it is zeroed, a part at a time."""
    monkeypatch.setattr(module, "CLEARED", 1_000)
    catalogue = Catalogue()
    shown, words = show(catalogue)
    for life in range(5):  # Tombstones count as taken: after some lives the table is begun again, at its size.
        keys = [f"{life}/{number}" for number in range(2_000)]
        insert(catalogue, keys, 1 + 2_000 * life)
        settle(shown)
        assert fingerprints_in(words) == held(catalogue)
        catalogue.drop([slot for slot in catalogue.by_key.slots_of(keys) if slot >= 0])
        settle(shown)
    assert not shown.is_off
    assert words[MASK] + 1 == FIRST_PLACES
    assert not fingerprints_in(words)


def test_keys_that_were_chosen_to_share_a_home_cost_a_bounded_look_and_then_the_table(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One client must not make every later put of all others walk through its keys."""
    monkeypatch.setattr(catalogue_module, "xxh3_64_intdigest", lambda key: (int(key.rpartition(b"-")[2]) + 2) << 32)
    catalogue = Catalogue()
    shown, words = show(catalogue)
    for number in range(MOST_PROBES):
        insert(catalogue, [f"near-{number}"], 1 + number)
    settle(shown)
    assert not shown.is_off
    assert len(fingerprints_in(words)) == MOST_PROBES
    insert(catalogue, [f"far-{MOST_PROBES}"], 1 + MOST_PROBES)
    settle(shown)
    assert shown.is_off
    catalogue.drop(list(range(MOST_PROBES - 100)))
    settle(shown)
    assert not shown.is_off, "when most have gone it is tried again"
    assert fingerprints_in(words) == held(catalogue)


@pytest.mark.parametrize("many", [1, 3])
def test_a_batch_of_such_keys_ends_too(monkeypatch: pytest.MonkeyPatch, many: int) -> None:
    monkeypatch.setattr(
        catalogue_module, "xxh3_64_intdigest", lambda key: (int(key.rpartition(b"-")[2]) // many + 2) << 32
    )
    catalogue = Catalogue()
    shown, _ = show(catalogue)
    settle(shown)
    insert(catalogue, [f"key-{number}" for number in range(MOST_PROBES + many)], 1)
    settle(shown)
    assert shown.is_off


@pytest.mark.parametrize("batch", [False, True])
def test_the_writer_ends_in_a_table_without_a_free_place(batch: bool) -> None:
    """The memory is its own, and yet: a loop that only an empty place ends would stop the master."""
    catalogue = Catalogue()
    shown, words = show(catalogue)
    insert(catalogue, ["a-1", "a-2", "a-3"], 1)
    settle(shown)
    words[FIRST_PLACES : 2 * FIRST_PLACES] = 7
    catalogue.drop([0, 1] if batch else [0])
    settle(shown)
    insert(catalogue, ["b-1", "b-2"] if batch else ["b-1"], 10)
    settle(shown)
    assert shown.is_off

"""From key to slot: the same answers as a dict, while tables grow, move and fill with tombstones, and for keys whose
hashes collide."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from holdfast.core.catalogue import key_index as module
from holdfast.core.catalogue.key_arena import KeyArena, pack
from holdfast.core.catalogue.key_index import ABSENT, KeyIndex

Hash = Callable[[bytes, int], int]
EVERY = [f"key-{each}" + "é" * (each % 3) for each in range(120)]
STEPS = st.lists(
    st.tuples(st.sampled_from(["bind", "unbind", "mask"]), st.lists(st.integers(0, 119), min_size=1, unique=True)),
    max_size=40,
)
HASHES: dict[str, Hash] = {
    "as it is": xxh3_64_intdigest,
    "all alike": lambda key, secret: 5,
    "a tombstone's": lambda key, secret: module.GONE,
    "few places": lambda key, secret: xxh3_64_intdigest(key, secret) % 7 << 20,
    "the last place": lambda key, secret: xxh3_64_intdigest(key, secret) | 0xFFFF,
    "few bits": lambda key, secret: xxh3_64_intdigest(key, secret) & 0x3F,
}


class Model:
    """An arena with its index, and the dict that it must equal."""

    def __init__(self) -> None:
        self.arena = KeyArena()
        self.index = KeyIndex(self.arena)
        self.slots: dict[str, int] = {}
        self.masked: dict[str, int] = {}

    def bind(self, keys: list[str]) -> None:
        slots = np.arange(len(self.arena), len(self.arena) + len(keys))
        self.arena.extend(len(keys))
        self.arena.put_many(slots, pack(keys))
        if len(keys) == 1:
            self.index.bind(keys[0], int(slots[0]))
        else:
            self.index.bind_many(keys, slots)
        self.slots.update(zip(keys, slots.tolist(), strict=True))

    def unbind(self, keys: list[str]) -> list[int]:
        slots = [self.slots.pop(key) for key in keys]
        self.index.unbind(keys, np.array(slots, np.intp))
        return slots

    def check(self, some: list[str]) -> None:
        index = self.index
        assert len(index) == len(self.slots)
        assert index.slots_of(EVERY) == [self.slots.get(key, ABSENT) for key in EVERY]
        assert index.presence(EVERY) == bytes(key in self.slots for key in EVERY)
        assert index.slots_of(some) == [index.slot_of(key) for key in some]
        assert index.presence(some[:1]) == bytes([some[0] in self.slots])
        bound = [*self.slots]
        assert index.find(bound).tolist() == [*self.slots.values()]


@pytest.mark.parametrize("hashed", HASHES)
@given(STEPS, st.sampled_from([1, 4, 1000]), st.sampled_from([2, 16]))
def test_it_answers_as_a_dict_would(
    hashed: str, steps: list[tuple[str, list[int]]], moved_at_once: int, few: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_digest", HASHES[hashed])
        patch.setattr(module, "FIRST_PLACES", 8)
        patch.setattr(module, "MOVED", 2)
        patch.setattr(module, "MOVED_AT_ONCE", moved_at_once)
        patch.setattr(module, "FEW", few)
        patch.setattr(module, "TOGETHER", 4)
        model = Model()
        for what, numbers in steps:
            some = [EVERY[number] for number in numbers]
            if what == "bind":
                fresh = [key for key in some if key not in model.slots]
                if fresh:
                    model.bind(fresh)
            else:
                gone = [key for key in some if key in model.slots]
                slots = model.unbind(gone)
                if what == "unbind":
                    model.arena.drop_many(np.array(slots, np.intp))
                # Else its key stays in the arena, as that of an object that is hidden does.
            model.check(some)


def test_words_move_a_few_at_a_time_and_all_are_found_meanwhile() -> None:
    model = Model()
    steps_with_both = 0
    for first in range(0, 40_000, 100):
        model.bind([f"{number:08}" for number in range(first, first + 100)])
        steps_with_both += model.index.is_moving
        sample = [f"{number:08}" for number in range(0, first + 100, 37)]
        assert model.index.find(sample).tolist() == [int(key) for key in sample]
    assert steps_with_both > 5


def test_coming_and_going_takes_no_more_memory() -> None:
    model = Model()
    model.bind([f"{number:08}" for number in range(10_000)])
    least = model.index.taken_bytes
    for first in range(10_000, 100_000, 500):
        model.bind([f"{number:08}" for number in range(first, first + 500)])
        model.arena.drop_many(np.array(model.unbind([*model.slots][:500]), np.intp))
        assert model.index.taken_bytes <= 4 * least
    assert model.index.find([*model.slots]).tolist() == [*model.slots.values()]
    model.unbind([*model.slots])
    assert model.index.taken_bytes < least / 10
    assert not any(model.index.presence([f"{number:08}" for number in range(99_000, 100_000)]))


def test_unbinding_what_is_not_bound_is_an_error() -> None:
    model = Model()
    model.bind(["a", "b"])
    with pytest.raises(AssertionError, match="unbound once"):
        model.index.unbind(["c"], np.array([7]))


def test_every_process_has_a_secret_of_its_own() -> None:
    code = "from holdfast.core.catalogue import key_index; print(key_index._SECRET)"
    found = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("random", "random", "7")
    }
    assert len(found) == 3

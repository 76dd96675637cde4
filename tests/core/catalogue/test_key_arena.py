"""Keys as bytes: the same as a list of strings, whatever comes, goes and is moved."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.catalogue import key_arena as module
from holdfast.core.catalogue.key_arena import KeyArena, pack

KEYS = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12),
    st.sampled_from(["a", "12345678", "123456789", "1234567812345678", "tenant/", "tenant/x", "\x01ab", "é" * 5]),
)
STEPS = st.lists(st.tuples(st.booleans(), st.lists(KEYS, min_size=1, max_size=40)), max_size=30)


@pytest.fixture(scope="module", autouse=True)
def small_chunks() -> Iterator[None]:
    """Chunks of a few keys, and sweeps that take many steps."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "CHUNK_BITS", 4)
        patch.setattr(module, "CHUNK", 16)
        patch.setattr(module, "SWEPT", 8)
        patch.setattr(module, "CHANGES", 3)
        patch.setattr(module, "FEW", 4)
        patch.setattr(module, "READ_AT_ONCE", 16)
        yield


class Model:
    """An arena, and the list that it must equal."""

    def __init__(self) -> None:
        self.arena = KeyArena()
        self.keys: list[str | None] = []

    def add(self, keys: list[str]) -> None:
        free = [slot for slot, key in enumerate(self.keys) if key is None][: len(keys) // 2]
        fresh = len(keys) - len(free)
        slots = free + list(range(len(self.keys), len(self.keys) + fresh))
        self.arena.extend(fresh)
        self.keys += [None] * fresh
        for slot, key in zip(slots, keys, strict=True):
            self.keys[slot] = key
        if len(keys) < 3:
            for slot, key in zip(slots, keys, strict=True):
                self.arena.put(slot, key.encode())
        else:
            self.arena.put_many(np.array(slots), pack(keys))

    def drop(self, slots: list[int]) -> None:
        there = np.array([slot for slot in slots if self.keys[slot] is not None], np.intp)
        assert self.arena.keys_of(there) == [self.keys[slot] for slot in there.tolist()]
        for slot in there.tolist():
            self.keys[slot] = None
        if len(there) == 1:
            self.arena.drop(int(there[0]))
        else:
            self.arena.drop_many(there)

    def check(self) -> None:
        arena, keys = self.arena, self.keys
        assert list(arena) == keys == arena[:]
        assert [arena[slot] for slot in range(len(arena))] == keys
        assert arena[3:20] == keys[3:20]
        there = [slot for slot, key in enumerate(keys) if key is not None]
        texts = [str(keys[slot]) for slot in there]
        names = [text.encode() for text in texts]
        at = np.array(there, np.intp)
        content, lengths = arena.bytes_of(at)
        assert (content, lengths.tolist()) == (b"".join(names), [len(name) for name in names])
        assert arena.differing(at, pack(texts)).tolist() == []
        others = [text + "." if i % 3 == 1 else "." + text[1:] if i % 7 == 2 else text for i, text in enumerate(texts)]
        wrong = [i for i, (one, other) in enumerate(zip(texts, others, strict=True)) if one != other]
        assert arena.differing(at, pack(others)).tolist() == wrong
        for prefix in (b"", b"1", b"12345678", b"1234567812", b"tenant/", b"\x01"):
            found = arena.slots_with(prefix, 2, 30).tolist()
            assert found == [s for s in there if 2 <= s < 30 and str(keys[s]).encode().startswith(prefix)]
        assert arena.used_bytes == sum((len(name) + 7) // 8 * 8 for name in names)


@given(STEPS)
def test_it_is_the_list_of_its_keys(steps: list[tuple[bool, list[str]]]) -> None:
    model = Model()
    for adds, keys in steps:
        if adds:
            model.add(keys)
        else:
            # Any slots, but the same ones for the same example.
            model.drop(sorted({sum(map(ord, key)) * 7 % len(model.keys) for key in keys} if model.keys else ()))
        model.check()


@settings(max_examples=20)
@given(st.integers(1, 3), st.integers(0, 1 << 30))
def test_the_memory_of_keys_that_went_is_used_again(stay_one_in: int, seed: int) -> None:
    model = Model()
    rng = np.random.default_rng(seed)
    swept = 0
    for turn in range(60):
        model.add([f"{turn}/{number}" + "x" * int(rng.integers(0, 30)) for number in range(30)])
        there = [slot for slot, key in enumerate(model.keys) if key is not None]
        surplus = max(0, len(there) - 60 * stay_one_in)
        gone = sorted(rng.permutation(there)[:surplus].tolist())
        for first in range(0, len(gone), 5):
            model.drop(gone[first : first + 5])
            swept += model.arena.is_sweeping
        model.check()
    assert swept, "some chunks were cleared by moving what was left in them"
    assert model.arena.taken_bytes < 3 * model.arena.used_bytes + 40 * 8 * module.CHUNK


def test_a_slot_that_does_not_exist_is_an_error() -> None:
    arena = KeyArena()
    arena.extend(2)
    for slot in (2, -1):
        with pytest.raises(IndexError):
            arena[slot]

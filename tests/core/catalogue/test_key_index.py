"""From key to slot: one dict, then many, the same answers before, at and after the change."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.catalogue import catalogue as module
from holdfast.core.catalogue.catalogue import ABSENT, KeyIndex

STEPS = st.lists(
    st.tuples(st.booleans(), st.lists(st.integers(0, 60), min_size=1, max_size=8, unique=True)), max_size=40
)


@given(STEPS, st.integers(0, 50))
def test_it_answers_as_one_dict_would(steps: list[tuple[bool, list[int]]], few: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "ONE_DICT_KEYS", few)
        index, model = KeyIndex(), dict[str, int]()
        for number, (binds, some) in enumerate(steps):
            names = [f"key-{each}" for each in some]
            if binds and len(names) == 1:
                index.bind(names[0], number)
                model[names[0]] = number
            elif binds:
                slots = [number * 100 + each for each in some]
                index.bind_many(names, slots)
                model.update(zip(names, slots, strict=True))
            else:
                gone = [name for name in names if name in model]
                index.unbind(gone)
                for name in gone:
                    del model[name]
            every = [f"key-{each}" for each in range(61)]
            assert len(index) == len(model)
            assert index.slots_of(every) == [model.get(name, ABSENT) for name in every]
            assert index.presence(every) == bytes(name in model for name in every)
            assert [index.slot_of(name) for name in names] == [model.get(name, ABSENT) for name in names]
            assert index.presence(names[:1]) == bytes([names[0] in model])

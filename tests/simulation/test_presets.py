"""Every preset in a world where everything goes wrong: no promise may break, whoever evicts, however leases travel."""

from __future__ import annotations

import pytest

from holdfast.settings import PRESETS, PresetName
from holdfast.simulation.runs.run import run
from holdfast.simulation.scripts.draw import draw
from holdfast.simulation.scripts.script import ScriptShape

SEEDS = (1, 2)


@pytest.mark.parametrize("preset", PRESETS)
def test_no_promise_breaks(preset: PresetName) -> None:
    """I1..I18, as far as the checkers know them."""
    for seed in SEEDS:
        done = run(draw(seed, ScriptShape(preset=preset)))
        assert done.violation is None, f"{done.violation}; seed {seed}, preset {preset}"


def test_three_masters_that_evict_by_themselves() -> None:
    """Two standbys guess differently, and either may be promoted."""
    for seed in SEEDS:
        done = run(draw(seed, ScriptShape(masters=3, preset="timer")))
        assert done.violation is None, f"{done.violation}; seed {seed}"

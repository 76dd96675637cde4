"""Three hundred worlds in which everything goes wrong: no promise may break. `make sim` plays many more."""

from __future__ import annotations

import pytest

from holdfast.simulation.seeds import play_seeds

SEEDS = 300
PROCESSES = 2


@pytest.mark.timeout(900)
def test_no_promise_breaks_in_any_of_them() -> None:
    """I1 to I18, as far as the checkers know them."""
    played = 0
    for one in play_seeds(range(SEEDS), PROCESSES):
        again = f"python -m holdfast.simulation replay {one.script.seed}"
        assert one.violation is None, f"seed {one.script.seed}: {one.violation}; again: {again}"
        played += 1
    assert played == SEEDS
